"""The glass: pages that show a trace of requests, `pellucid-trace/1`, in a browser.

- `web/`: scripts and styles, as they are served: no build step (docs/decisions/061).
- `report/`: `write_report` makes one self-contained file of a trace.
- `assets.py`: the pages' parts put together, with their Content-Security-Policy.
"""
