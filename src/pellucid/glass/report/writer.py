"""A trace as one HTML file: scripts, styles and data within, nothing fetched; it opens from a disk, offline."""

from __future__ import annotations

import gzip
import io
from base64 import b64encode
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

from pellucid.glass.assets import REPORT_SCRIPTS, read, report_policy, script
from pellucid.glass.report.compact import Compaction
from pellucid.trace.events import Event
from pellucid.trace.jsonl import line_of

_LINE = 16 * 1024


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
    scripts, style = script(REPORT_SCRIPTS), read("style.css")
    policy = escape(report_policy(scripts, style), quote=False)
    data = _packed(events, token_bytes)
    return (
        '<!doctype html>\n<html lang="en" data-theme="light">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>Pellucid</title>\n'
        f"<style>{style}</style>\n</head>\n"
        '<body data-kind="report"><pl-page></pl-page>\n<noscript>This report needs JavaScript.</noscript>\n'
        f'<script type="application/gzip" id="trace">\n{data}\n</script>\n'
        f"<script>{scripts}</script>\n</body>\n</html>\n"
    )


def _packed(events: Iterable[Event], token_bytes: Callable[[int], bytes] | None) -> str:
    """JSON lines, gzipped (without a time, so that the same trace makes the same file), in base64."""
    compaction = Compaction()
    ids: set[int] = set()
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as file:
        for event in compaction.events(events):
            file.write(line_of(event).encode())
            ids.update(_ids_of(event))
        if token_bytes is not None:
            pieces = {str(i): b64encode(token_bytes(i)).decode("ascii") for i in sorted(ids)}
            file.write(line_of({"type": "pieces", "bytes_b64": pieces}).encode())
        if compaction.cut is not None:
            file.write(line_of(compaction.cut).encode())
    text = b64encode(buffer.getvalue()).decode("ascii")
    return "\n".join(text[at : at + _LINE] for at in range(0, len(text), _LINE))


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
