"""Sampling settings compared on the same prompts: for choosing by looking instead of guessing.

- `grid.py`: lists of values → settings, each once. `measures.py`: numbers of one text.
- `runner.py`: every prompt under every setting, in one engine, prompts read once.
- `results.py`: what came out, as plain data and JSON, `pellucid-sweep/1`.
- `terminal.py`: tables for a terminal. `page.py`: one offline HTML file.
"""
