"""One offline file of a trace.

- `writer.py`: `write_report`, the page with its data.
- `compact.py`: what is left out, or rounded, so that the file stays small; the page says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pellucid.glass.report.writer import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    if name == "write_report":
        from pellucid.glass.report.writer import write_report

        return write_report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
