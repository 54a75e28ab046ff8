"""What happened: how the engine can be watched, and the form in which it is told. Plain data, imported by anyone.

- `probe.py`: named tensors of a forward pass, for whoever asks for them.
- `ring.py`: the buffer between the engine, which writes records, and readers at their own pace.
- `reader.py`: a reader's place in it: records → events (dicts) → JSON lines.
- `events.py`: the names of the events and levels; `schema.json` says what each field means.
- `checking.py`: events from a file held to `schema.json`.
- `jsonl.py`: the form `pellucid-trace/1`, one event a line: writing and reading files.

What the engine notes and when is in `engine/tracing/`; who shows it is in `glass/`.
"""
