"""The file form of a trace: one event a line, UTF-8, every line a JSON object whose first field is `type`."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from pellucid.errors import PellucidWarning, TraceFileError, shown
from pellucid.trace.checking import fault_of
from pellucid.trace.events import EVENT_TYPES, SCHEMA, Event

MAX_LINE_BYTES = 64 * 1024**2
NON_FINITE = ("NaN", "Infinity", "-Infinity")
"""What stands for numbers that JSON does not have."""
_MAX_NAME, _MAX_NAMED = 64, 4
"""Characters of an unknown type that are kept, and how many types a warning names."""


def line_of(event: Event) -> str:
    """One event as a line with its newline; numbers that are not finite become strings."""
    try:
        text = json.dumps(event, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(event), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text + "\n"


def number(value: Any) -> float:
    """A number of an event, also where it is one of `NON_FINITE`."""
    return float(value)


def write_trace(path: str | Path, events: Iterable[Event]) -> int:
    """Write events to a file; gives back how many. Raises OSError."""
    count = 0
    with Path(path).open("w", encoding="utf-8") as file:
        for event in events:
            file.write(line_of(event))
            count += 1
    return count


def read_trace(path: str | Path) -> list[Event]:
    """All events of a file. Raises `TraceFileError` for what is no trace, naming the line; OSError."""
    with Path(path).open("rb") as file:
        return list(parse_lines(bounded_lines(file), Path(path).name))


def bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """Not the file's own iterator, which reads a line whole before anyone can say that it is too long."""
    return iter(partial(file.readline, MAX_LINE_BYTES + 1), b"")


def parse_lines(lines: Iterable[bytes], name: str = "the trace") -> Iterator[Event]:
    """Lines → events, each an object of a known type with the fields that the schema says, a header first.

    Fields of later versions pass, as readers ignore them; events of types that only those know are passed over, with a
    warning at the end that counts them. Raises `TraceFileError`, naming the line and the field.
    """
    is_begun = False
    unknown: Counter[str] = Counter()
    for place, line in enumerate(lines, start=1):
        if len(line) > MAX_LINE_BYTES:
            raise TraceFileError(f"{name}, line {place}: longer than {MAX_LINE_BYTES} bytes")
        try:
            event = json.loads(line)
            if b"\\u" in line:
                json.dumps(event, ensure_ascii=False).encode()  # half of a surrogate pair could not be written anywhere
        except (ValueError, RecursionError):
            if is_begun and not line.endswith(b"\n"):
                raise TraceFileError(f"{name} was cut off within line {place}") from None
            raise TraceFileError(f"{name}, line {place}: no JSON, so this is not a trace ({SCHEMA})") from None
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(kind, str):
            raise TraceFileError(f"{name}, line {place}: {shown(kind)} is no type of event of {SCHEMA}")
        if not is_begun and (kind != "header" or event.get("schema") != SCHEMA):
            raise TraceFileError(f"{name}: a trace begins with a header whose schema is {SCHEMA}")
        if is_begun and kind == "header":
            raise TraceFileError(f"{name}, line {place}: a second header, but a trace has one")
        is_begun = True
        if kind not in EVENT_TYPES:
            unknown[kind[:_MAX_NAME]] += 1
            continue
        wrong = fault_of(event)
        if wrong is not None:
            raise TraceFileError(f"{name}, line {place}: {wrong}")
        yield event
    if not is_begun:
        raise TraceFileError(f"{name} is empty, so it is not a trace")
    if unknown:
        kinds = ", ".join(shown(kind) for kind in list(unknown)[:_MAX_NAMED])
        warnings.warn(
            f"{name}: {unknown.total()} events of a later version were passed over ({kinds})",
            PellucidWarning,
            stacklevel=2,
        )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value
