"""A trace as one HTML file: scripts, styles and data within, nothing fetched; it opens from a disk, offline."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pellucid.glass.assets import REPORT_SCRIPTS, offline_page, read, script
from pellucid.glass.report.compact import Compaction
from pellucid.trace.events import Event
from pellucid.trace.jsonl import line_of


def write_report(
    events: Iterable[Event], path: str | Path, *, token_bytes: Callable[[int], bytes] | None = None
) -> int:
    """Write a report; gives back its size in bytes.

    events: of one trace, its header first.
    token_bytes: the tokenizer's, for the texts of tokens that were not chosen; without it those show as `#id`.
    Raises OSError.
    """
    page = report_html(events, token_bytes=token_bytes).encode("utf-8")
    Path(path).write_bytes(page)
    return len(page)


def report_html(events: Iterable[Event], *, token_bytes: Callable[[int], bytes] | None = None) -> str:
    """The page. Data are base64, so no text of a model stands in the markup."""
    return offline_page("report", "pl-page", script(REPORT_SCRIPTS), read("style.css"), _lines(events, token_bytes))


def _lines(events: Iterable[Event], token_bytes: Callable[[int], bytes] | None) -> Iterator[str]:
    """What is kept of the events, as JSON lines, and what was left out."""
    compaction = Compaction()
    ids: set[int] = set()
    for event in compaction.events(events):
        yield line_of(event)
        ids.update(_ids_of(event))
    if token_bytes is not None:
        pieces = {str(i): b64encode(token_bytes(i)).decode("ascii") for i in sorted(ids)}
        yield line_of({"type": "pieces", "bytes_b64": pieces})
    if compaction.cut is not None:
        yield line_of(compaction.cut)


def _ids_of(event: Event) -> set[int]:
    """Tokens that an event names without their text."""
    kind = event["type"]
    if kind == "sample":
        return {int(one[0]) for stage in event["stages"] for one in stage["top"]}
    if kind == "layer" and event.get("lens"):
        return {int(i) for i in event["lens"]["ids"]}
    if kind == "spec":
        return {int(i) for i in (*event["draft"], event["bonus_id"])}
    if kind == "finish" and event.get("stop_id") is not None:
        return {int(event["stop_id"])}
    return set()
