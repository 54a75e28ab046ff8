"""Events that were read from a file, held to `schema.json`: what passes has every field that readers rely on.

The part of JSON Schema that the file uses, as closures; fields that it does not name pass. A library would be one more
dependency, and takes minutes for a trace of every layer.
"""

from __future__ import annotations

import binascii
import math
from base64 import b64decode
from collections.abc import Callable
from functools import cache
from typing import Any

from pellucid.errors import shown
from pellucid.trace.events import Event, load_schema

MAX_INTEGER = 2**64 - 1
"""Seeds and clocks fit; what does not would overflow a reader's float."""

Check = Callable[[Any, str], None]
"""(value, where it stands); raises `FieldError`."""

_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "object": ("an object", lambda value: isinstance(value, dict)),
    "array": ("a list", lambda value: isinstance(value, list)),
    "string": ("a string", lambda value: isinstance(value, str)),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "null": ("null", lambda value: value is None),
    "integer": ("a whole number of at most 64 bits", lambda value: type(value) is int and abs(value) <= MAX_INTEGER),
    "number": ("a finite number", lambda value: _is_number(value)),
}


class FieldError(ValueError):
    """What is wrong with which field, as half a sentence."""


def check_event(event: Event) -> None:
    """Raises `FieldError` where a field is missing or is not what the schema says, or fields contradict each other."""
    kind = event["type"]
    _checks()[kind](event, kind)
    if kind == "layer":
        _check_pairs(event)
    elif kind == "request":
        for place, token in enumerate(event["tokens"]):
            if token["i"] != place:
                raise FieldError(f"request.tokens[{place}].i is {token['i']}, but must be {place}")
    elif kind == "step" and event["t1_ns"] < event["t0_ns"]:
        raise FieldError(f"step.t1_ns is {event['t1_ns']}, but must not be before t0_ns, {event['t0_ns']}")


def _check_pairs(event: Event) -> None:
    """Lists of a layer that go together, item by item."""
    pairs = [(f"attn[{place}].idx", one["idx"], "w", one["w"]) for place, one in enumerate(event["attn"] or ())]
    if event["lens"] is not None:
        pairs.append(("lens.ids", event["lens"]["ids"], "p", event["lens"]["p"]))
    if event["moe"] is not None:
        pairs.append(("moe.ids", event["moe"]["ids"], "w", event["moe"]["w"]))
    for name, ones, other, others in pairs:
        if len(ones) != len(others):
            raise FieldError(f"layer.{name} has {len(ones)} items, but must have as many as {other}, {len(others)}")


@cache
def _checks() -> dict[str, Check]:
    return {kind: _compiled(part) for kind, part in load_schema()["$defs"].items()}


def _compiled(schema: dict[str, Any]) -> Check:
    if "anyOf" in schema:
        return _any_of(schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return _one_of(schema["enum"] if "enum" in schema else [schema["const"]])
    kind = schema.get("type")
    if kind is None:
        return lambda value, where: None
    if kind == "object":
        return _object(schema)
    if kind == "array":
        return _array(schema)
    if kind in ("integer", "number"):
        return _number(schema)
    return _base64 if schema.get("contentEncoding") == "base64" else _plain(kind)


def _plain(kind: str) -> Check:
    words, is_right = _TYPES[kind]

    def check(value: Any, where: str) -> None:
        if not is_right(value):
            raise FieldError(f"{where} is {shown(value)}, but must be {words}")

    return check


def _any_of(schemas: list[dict[str, Any]]) -> Check:
    checks = [_compiled(schema) for schema in schemas]

    def check(value: Any, where: str) -> None:
        errors = []
        for one in checks:
            try:
                return one(value, where)
            except FieldError as error:
                errors.append(error)
        # null is the last of them; what is no null should have been the first
        raise errors[0]

    return check


def _one_of(allowed: list[Any]) -> Check:
    def check(value: Any, where: str) -> None:
        if not any(type(value) is type(one) and value == one for one in allowed):
            words = ", ".join("null" if one is None else str(one) for one in allowed)
            raise FieldError(f"{where} is {shown(value)}, but must be one of {words}")

    return check


def _object(schema: dict[str, Any]) -> Check:
    required = schema.get("required", [])
    fields = {name: _compiled(part) for name, part in schema.get("properties", {}).items()}
    rest = schema.get("additionalProperties")
    others = _compiled(rest) if isinstance(rest, dict) else None
    are_digits = "propertyNames" in schema
    is_object = _plain("object")

    def check(value: Any, where: str) -> None:
        is_object(value, where)
        for name in required:
            if name not in value:
                raise FieldError(f"{where}.{name} is missing")
        for name, item in value.items():
            one = fields.get(name, others)
            if one is not None:
                one(item, f"{where}.{name}" if name in fields else f"{where}[{shown(name)}]")
            if are_digits and not (name.isascii() and name.isdecimal() and len(name) <= 20):
                raise FieldError(f"{where} names {shown(name)}, but may name token ids only")

    return check


def _array(schema: dict[str, Any]) -> Check:
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    first = [_compiled(part) for part in schema.get("prefixItems", ())]
    items = _compiled(schema.get("items", {}))
    is_list = _plain("array")

    def check(value: Any, where: str) -> None:
        is_list(value, where)
        if not least <= len(value) <= most:
            raise FieldError(f"{where} has {len(value)} items, but must have {least} to {most}")
        for place, item in enumerate(value):
            (first[place] if place < len(first) else items)(item, f"{where}[{place}]")

    return check


def _number(schema: dict[str, Any]) -> Check:
    words, is_right = _TYPES[schema["type"]]
    least, most = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    below = schema.get("exclusiveMaximum", math.inf)

    def check(value: Any, where: str) -> None:
        if not (is_right(value) and least <= value <= most and value < below):
            limits = "" if least == -math.inf else f" of at least {least}"
            limits += "" if most == math.inf else f" and at most {most:.3g}"
            limits += "" if below == math.inf else f" and below {below}"
            raise FieldError(f"{where} is {shown(value)}, but must be {words}{limits}")

    return check


def _base64(value: Any, where: str) -> None:
    try:
        b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise FieldError(f"{where} is {shown(value)}, but must be base64") from None


def _is_number(value: Any) -> bool:
    return (type(value) is float and math.isfinite(value)) or (type(value) is int and abs(value) <= MAX_INTEGER)
