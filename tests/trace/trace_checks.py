"""What every trace must be: valid by the schema, in order, and adding up."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

import jsonschema

from pellucid.trace.events import load_schema


@cache
def _validators() -> dict[str, Any]:
    schema = load_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return {
        kind: jsonschema.Draft202012Validator({**part, "$defs": schema["$defs"]})
        for kind, part in schema["$defs"].items()
    }


def valid_event(event: dict[str, Any]) -> None:
    """It is as the schema says."""
    errors = [f"{e.json_path}: {e.message[:200]}" for e in _validators()[event["type"]].iter_errors(event)]
    assert errors == [], event["type"]


def valid(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The events of JSON lines, each checked against the schema."""
    events = []
    for line in lines:
        assert line.endswith("\n")
        assert line.startswith('{"type":')
        event = json.loads(line, parse_constant=lambda name: (_ for _ in ()).throw(AssertionError(name)))
        valid_event(event)
        events.append(event)
    assert events[0]["type"] == "header"
    assert events[-1]["type"] == "end"
    assert events[-1]["events"] == len(events) - 1
    return events


def of_type(events: Iterable[dict[str, Any]], kind: str, **fields: Any) -> list[dict[str, Any]]:
    """Events of a type whose fields have these values."""
    return [e for e in events if e["type"] == kind and all(e.get(name) == value for name, value in fields.items())]


def check_parts(finish: dict[str, Any]) -> None:
    """A TTFT's parts add up to it, and the unaccounted one is small."""
    parts, ttft = finish["ttft_parts"], finish["ttft_ns"]
    assert sum(parts.values()) == ttft
    assert all(value >= 0 for name, value in parts.items() if name != "unaccounted"), parts
    assert abs(parts["unaccounted"]) <= 0.01 * ttft, parts
