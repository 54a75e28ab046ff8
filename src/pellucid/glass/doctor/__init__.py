"""The doctor: rules that find what is wrong with a model, or with what happened to a request.

- `finding.py`: what a rule says: a finding (the trace's own event), a verdict.
- `rules.py`: the table of rules; `examine` runs them.
- `trace_exam.py`: a trace as the rules read it. `model_exam.py`: a model, loaded once, with short forward passes on it.
- `bos.py`, `wrong_tokenizer.py`, `never_stops.py`, `positions.py`, `overflow.py`, `sampling.py`, `timing.py`,
  `memory.py`, `speculation.py`: the rules themselves, those over traces beside those over models.
- `drawing.py`: the terminal view.
"""
