"""The glass: shows a trace of requests, `pellucid-trace/1`, in a terminal or a browser.

- `explain/`: the terminal view. `view.py`: the events of one answer, put in order. `pieces.py`: tokens as safe text.
- `compare.py`: the first difference of two traces. `perfetto.py`: the timeline as Chrome's trace events.
- `web/`: scripts and styles, as they are served: no build step (docs/decisions/061).
- `report/`: `write_report` makes one self-contained file of a trace.
- `assets.py`: the pages' parts put together, with their Content-Security-Policy.
"""
