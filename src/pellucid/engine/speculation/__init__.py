"""Speculation: guess the next tokens cheaply, verify them in one step of the model. The answer does not change.

The target's choice at each position is a pure function of its logits, the seed and the position, and a row's logits
are the same bits whatever else is in the batch. So a draft is right exactly when it equals that choice; the first
one that does not is replaced by the choice itself, and the rows after it are forgotten.

- `ngram.py`: prompt lookup, what followed when the last tokens stood there before.
- `forced.py`: what the grammar of a structured answer leaves no choice about.
- `draft_model.py`: a smaller model with the same vocabulary, drawing with the target's own random numbers.
- `acceptance.py`: how often guesses came true, per request.
- `costs.py`: what a step of so many rows takes, as observed.
- `speculator.py`: whose guesses go into a step, and how many.
"""
