"""What llguidance would take from a JSON Schema without enforcing it, or only at a great cost, is refused here.

Keywords that it does not know at all it refuses itself; annotations and unknown names say nothing about an answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pellucid.structured_outputs import MAX_REGEX_CHARS, check_text, refusal, schema_number

OUR_KEY = "x-guidance"
"""llguidance's options inside a schema: they could switch the enforcement off, so only we write them."""
OLD_KEYWORDS = ("disallow", "divisibleBy", "extends")
"""Assertions of draft 3, which llguidance would take for annotations."""
MAX_MULTIPLE = 100_000
"""Common multiple of all multipleOf, without decimal point: each needs an automaton with so many states."""
MAX_DEPTH = 100
MANY = 100
"""Names that may come first in an object, and alternatives twice, from which on a part of a schema is tried out."""

_ONE = ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAPS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


def read_schema(text: str) -> dict[str, Any]:
    """The schema as a dict, checked. Raises `InvalidParameterError`."""
    try:
        schema = json.loads(text, parse_float=schema_number, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise refusal("json", f"is no JSON: {error}") from None
    if schema is True:
        schema = {}
    if schema is False:
        raise refusal("json", "is false: no answer can satisfy it")
    if not isinstance(schema, dict):
        raise refusal("json", "must be a JSON Schema, which is an object")
    multiple = 1
    for part in _parts(schema, 0):
        _check(part)
        if "multipleOf" in part:
            multiple = math.lcm(multiple, _coefficient(part["multipleOf"]))
            if multiple > MAX_MULTIPLE:
                raise refusal(
                    "json", f"has multipleOf with the common multiple {multiple}, but at most {MAX_MULTIPLE} is served"
                )
    return schema


def wide_parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of each part that can be read in many ways behind its opening bracket, what tells how many: the names that may
    come first, without what follows them. Together no larger than the schema, however deep it nests."""
    for part in _parts(schema, 0):
        found = _outline(part)
        if _width(found) >= MANY:
            yield found


def _outline(part: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if isinstance(part.get("properties"), dict):
        required = part["required"] if isinstance(part.get("required"), list) else []
        found |= {"type": "object", "properties": {name: {"type": "null"} for name in part["properties"]}}
        found["required"] = [name for name in required if isinstance(name, str) and name in part["properties"]]
        found["additionalProperties"] = part.get("additionalProperties") is not False
    for name in ("anyOf", "oneOf"):
        if isinstance(part.get(name), list):
            alternatives = [_outline(one) for one in part[name] if isinstance(one, dict)]
            found |= {"anyOf": known} if (known := [one for one in alternatives if one]) else {}
    return found


def _width(outline: dict[str, Any]) -> int:
    optional = len(outline.get("properties", ())) - len(outline.get("required", ()))
    return optional + sum(2 + _width(one) for one in outline.get("anyOf", ()))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _parts(schema: Any, depth: int) -> Iterator[dict[str, Any]]:
    """The schema and the schemas inside it."""
    if not isinstance(schema, dict):
        return
    if depth > MAX_DEPTH:
        raise refusal("json", f"nests schemas more than {MAX_DEPTH} deep")
    yield schema
    for name in _ONE:
        yield from _parts(schema.get(name), depth + 1)
    for name in _LISTS:
        if isinstance(schema.get(name), list):
            for part in schema[name]:
                yield from _parts(part, depth + 1)
    for name in _MAPS:
        if isinstance(schema.get(name), dict):
            for part in schema[name].values():
                yield from _parts(part, depth + 1)


def _check(part: dict[str, Any]) -> None:
    if OUR_KEY in part:
        raise refusal("json", f"has {OUR_KEY}, which is not taken: whitespace has options of its own")
    for name in OLD_KEYWORDS:
        if name in part:
            raise refusal("json", f"has the keyword {name}, which is not supported")
    if "required" in part and not isinstance(part["required"], list):
        raise refusal("json", "has a `required` that is no list of names")
    if isinstance(part.get("pattern"), str) and part["pattern"]:
        check_text("json: pattern", part["pattern"], MAX_REGEX_CHARS)
    least, required = part.get("minProperties"), part.get("required", ())
    # Names beyond `properties` can come twice, which counts once: the minimum could be missed.
    if isinstance(least, int) and least > len(set(map(str, required))) + 1:
        raise refusal("json", f"has minProperties {least}, but more than one above the required names is not supported")


def _coefficient(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise refusal("json", "has a multipleOf that is no number above 0")
    digits = int("".join(map(str, Decimal(str(value)).normalize().as_tuple().digits)))
    return max(1, digits)
