"""Whether events are as `schema.json` says: for readers that must not trip over a damaged or hostile file.

Covers the words of JSON Schema (draft 2020-12) that the file uses. Fields that it does not name pass, as they do for
every reader; numbers are finite and whole ones have at most 64 bits, so that arithmetic on them cannot fail.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from pellucid.errors import TraceFileError, shown
from pellucid.trace.events import Event, load_schema

_Fault = tuple[str, str]
"""Where, as `.stages[0].alive`, and what is wrong there."""
_Check = Callable[[Any], _Fault | None]
_KINDS = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
_BASE64 = "bytes_b64"
"""Fields of this name are base64."""
_MAX_NAME = 256


def check_events(events: Iterable[Event], name: str = "the trace") -> None:
    """Raise `TraceFileError`, naming line, field and what is allowed, for the first event that is not as it must be."""
    for line, event in enumerate(events, start=1):
        wrong = fault_of(event)
        if wrong is not None:
            raise TraceFileError(f"{name}, line {line}: {wrong}")


def fault_of(event: Event) -> str | None:
    """What is wrong with an event of a known type, field first, as half a sentence; None where nothing is."""
    kind = event["type"]
    fault = _checks()[kind](event) or (_contradiction(event) if kind in ("request", "step", "layer") else None)
    return None if fault is None else f"{kind}{fault[0]} {fault[1]}"


def _contradiction(event: Event) -> _Fault | None:
    """Fields that are right alone and not together, on which readers rely."""
    if event["type"] == "request":
        places = (place for place, token in enumerate(event["tokens"]) if token["i"] != place)
        wrong = next(places, None)
        return None if wrong is None else (f".tokens[{wrong}].i", f"must be {wrong}, as tokens stand in their order")
    if event["type"] == "step":
        return (".t1_ns", "must not be before t0_ns") if event["t1_ns"] < event["t0_ns"] else None
    pairs = [(f".attn[{place}].w", one["w"], "idx", one["idx"]) for place, one in enumerate(event["attn"] or ())]
    if event["lens"] is not None:
        pairs.append((".lens.p", event["lens"]["p"], "ids", event["lens"]["ids"]))
    if event["moe"] is not None:
        pairs.append((".moe.w", event["moe"]["w"], "ids", event["moe"]["ids"]))
    for where, ones, other, others in pairs:
        if len(ones) != len(others):
            return where, f"has {len(ones)} entries, but must have as many as {other}, {len(others)}"
    return None


@cache
def _checks() -> dict[str, _Check]:
    return {kind: _compiled(part) for kind, part in load_schema()["$defs"].items()}


def _compiled(schema: dict[str, Any], field: str = "") -> _Check:
    """A function that finds the first fault of a value."""
    if "anyOf" in schema:
        return _any_of([_compiled(part, field) for part in schema["anyOf"]])
    if "const" in schema or "enum" in schema:
        return _one_of(schema["enum"] if "enum" in schema else [schema["const"]])
    kind = schema.get("type")
    if kind == "object":
        return _object(schema, field)
    if kind == "array":
        return _array(schema, field)
    if kind == "string":
        return _base64 if field == _BASE64 else _text
    if kind in ("integer", "number"):
        return _number(schema, kind)
    if kind == "boolean":
        return lambda value: None if isinstance(value, bool) else _wrong(value, kind)
    if kind == "null":
        return lambda value: None if value is None else _wrong(value, kind)
    return _anything


def _wrong(value: Any, kind: str) -> _Fault:
    return "", f"is {shown(value)}, but must be {_KINDS[kind]}"


def _anything(value: Any) -> _Fault | None:
    """A field of any form still has finite numbers only."""
    if isinstance(value, (int, float)):
        return _number({}, "number")(value) if not isinstance(value, bool) else None
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        fault = _anything(item)
        if fault is not None:
            return f"[{shown(key)}]{fault[0]}", fault[1]
    return None


def _any_of(checks: list[_Check]) -> _Check:
    def check(value: Any) -> _Fault | None:
        first: _Fault | None = None
        for one in checks:
            fault = one(value)
            if fault is None:
                return None
            # what lies deeper says more than that the whole is not null
            first = fault if first is None or len(fault[0]) > len(first[0]) else first
        return first

    return check


def _one_of(allowed: list[Any]) -> _Check:
    words = ", ".join(str(one) for one in allowed)

    def check(value: Any) -> _Fault | None:
        # equality alone would take True for 1
        known = any(value == one and type(value) is type(one) for one in allowed)
        return None if known else ("", f"is {shown(value)}, but must be {'one of ' if len(allowed) > 1 else ''}{words}")

    return check


def _text(value: Any) -> _Fault | None:
    return None if isinstance(value, str) else _wrong(value, "string")


def _base64(value: Any) -> _Fault | None:
    if not isinstance(value, str):
        return _wrong(value, "string")
    try:
        b64decode(value, validate=True)
    except (Base64Error, ValueError):
        return "", f"is {shown(value)}, but must be base64"
    return None


def _number(schema: dict[str, Any], kind: str) -> _Check:
    low, high, below = schema.get("minimum"), schema.get("maximum"), schema.get("exclusiveMaximum")

    def check(value: Any) -> _Fault | None:
        if type(value) is int:
            if not -(2**63) <= value < 2**64:
                return "", f"is {shown(value)}, but must have at most 64 bits"
        elif kind == "integer" or type(value) is not float or not math.isfinite(value):
            return _wrong(value, kind)
        if low is not None and value < low:
            return "", f"is {shown(value)}, but must be at least {low}"
        if (high is not None and value > high) or (below is not None and value >= below):
            return "", f"is {shown(value)}, but must be {f'below {below}' if high is None else f'at most {high:g}'}"
        return None

    return check


def _array(schema: dict[str, Any], field: str) -> _Check:
    item = _compiled(schema["items"], field) if "items" in schema else _anything
    first = [_compiled(part, field) for part in schema.get("prefixItems", ())]
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)

    def check(value: Any) -> _Fault | None:
        if not isinstance(value, list):
            return _wrong(value, "array")
        if not least <= len(value) <= most:
            span = f"{least}" if least == most else f"{least} to {most}" if most < math.inf else f"at least {least}"
            return "", f"has {len(value)} entries, but must have {span}"
        for place, one in enumerate(value):
            fault = (first[place] if place < len(first) else item)(one)
            if fault is not None:
                return f"[{place}]{fault[0]}", fault[1]
        return None

    return check


def _object(schema: dict[str, Any], field: str) -> _Check:
    known = {name: _compiled(part, name) for name, part in schema.get("properties", {}).items()}
    required = schema.get("required", [])
    others = schema.get("additionalProperties")
    other = _compiled(others, field) if isinstance(others, dict) else _anything
    pattern = re.compile(schema.get("propertyNames", {}).get("pattern", ""))

    def check(value: Any) -> _Fault | None:
        if not isinstance(value, dict):
            return _wrong(value, "object")
        for name in required:
            if name not in value:
                return f".{name}", "is missing"
        for name, one in value.items():
            if name not in known and (len(name) > _MAX_NAME or not pattern.search(name)):
                return "", f"has the odd name {shown(name)}"
            fault = known.get(name, other)(one)
            if fault is not None:
                return f".{name}{fault[0]}", fault[1]
        return None

    return check
