"""Answers of a given shape: which tokens may come next. llguidance knows the grammars, we know the tokens.

json_schema.py   what a JSON Schema may not have here, because it would not be enforced or would cost too much
grammar_text.py  StructuredOutputsParams → one grammar in llguidance's Lark notation
compiler.py      GrammarCompiler: the model's vocabulary, grammars compiled within limits, the last ones kept
constraint.py    Constraint: one answer's place in its grammar, the mask of the next token
mask_worker.py   MaskWorker: fills the masks of a step while the model computes it
"""
