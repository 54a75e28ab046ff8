"""The shape of an answer as a request asks for it: OpenAI's `response_format`, vLLM's `structured_outputs`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pellucid.errors import InvalidParameterError
from pellucid.server.checks import boolean, check_inner, refused, shown
from pellucid.structured_outputs import NAME, StructuredOutputsParams

_FIELD = "response_format"
_NAMES = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SCHEMA_FIELDS = ("name", "description", "schema", "strict")


def parse_structured_outputs(body: Mapping[str, Any]) -> StructuredOutputsParams | None:
    """From whichever of the two fields is given; None where any text will do. Raises `ApiError`."""
    from_format = _from_response_format(body.get(_FIELD))
    own = body.get(NAME)
    if own is None:
        return from_format
    if from_format is not None:
        raise refused(NAME, f"{NAME} and {_FIELD} exclude each other: give one of them")
    try:
        return StructuredOutputsParams.from_mapping(own)
    except InvalidParameterError as error:
        raise refused(NAME, str(error)) from None


def names(body: Mapping[str, Any]) -> dict[str, str]:
    """What this body calls `structured_outputs`, for refusals that come later."""
    return {NAME: _FIELD} if body.get(_FIELD) is not None and body.get(NAME) is None else {}


def _from_response_format(value: Any) -> StructuredOutputsParams | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise refused(
            f"{_FIELD}.type" if isinstance(value, dict) else _FIELD,
            f"{_FIELD} must be an object whose type is text, json_object or json_schema, but is {shown(value)}",
        )
    check_inner(value, _FIELD, ("type", "json_schema") if kind == "json_schema" else ("type",))
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    return from_schema(value.get("json_schema"), f"{_FIELD}.json_schema")


def from_schema(given: Any, place: str) -> StructuredOutputsParams:
    """From name and schema. Strict or not: the schema is enforced, and one that cannot be is refused (`ApiError`)."""
    if not isinstance(given, dict):
        raise refused(place, f"{place} must be an object with name and schema")
    check_inner(given, place, _SCHEMA_FIELDS)
    label = given.get("name")
    if not isinstance(label, str) or not _NAMES.fullmatch(label):
        raise refused(f"{place}.name", f"{place}.name is {shown(label)}, but must be 1 to 64 letters, digits, _ or -")
    if not isinstance(given.get("description", ""), str):
        raise refused(f"{place}.description", f"{place}.description must be a string")
    boolean(given, "strict")
    if not isinstance(given.get("schema"), dict):
        raise refused(f"{place}.schema", f"{place}.schema must be a JSON Schema, an object")
    try:
        return StructuredOutputsParams(json=given["schema"])
    except InvalidParameterError as error:
        raise refused(f"{place}.schema", str(error).replace(f"{NAME}.json", f"{place}.schema", 1)) from None
