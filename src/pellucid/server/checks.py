"""The checks that every endpoint's parser makes of single fields."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from typing import Any

from pellucid.server.api_errors import ApiError
from pellucid.server.openai_fields import INNER_UNSERVED, Unserved


def check_names(body: Mapping[str, Any], known: set[str], required: tuple[str, ...]) -> None:
    """Refuse what nobody knows, and what lacks."""
    for name in body:
        if name not in known:
            close = difflib.get_close_matches(name[:64], known, n=1)
            hint = f", did you mean {close[0]}?" if close else ""
            raise ApiError(400, f"unknown field {shown(name)}{hint}", param=name[:64], code="unknown_field")
    for name in required:
        if body.get(name) is None:
            raise ApiError(400, f"{name} is missing", param=name, code="missing_field")
    if body.get("model") is not None and not isinstance(body["model"], str):
        raise refused("model", "model must be a string")


def check_inner(given: Mapping[str, Any], place: str, known: Collection[str]) -> None:
    """Refuse fields of an object that nobody reads. place: of the object, such as `tools[0]`."""
    for name, value in given.items():
        if name in known:
            continue
        field = INNER_UNSERVED.get(f"{place}.{name}")
        if field is None:
            raise refused(f"{place}.{name[:64]}", f"{place} has {shown(name)}, which is not served")
        check_neutral(value, f"{place}.{name}", field)


def check_sent_back(given: Mapping[str, Any], place: str, known: Collection[str]) -> None:
    """The same for a part of the conversation: what is empty passes, because clients send back all that they got."""
    check_inner({name: value for name, value in given.items() if value not in (None, [], "")}, place, known)


def check_neutral(value: Any, param: str, field: Unserved) -> None:
    """Refuse a field that is not served, where it asks for something."""
    if value is None or any(same(value, neutral) for neutral in field.neutral):
        return
    allowed = " or ".join(map(json.dumps, (None, *field.neutral)))
    raise refused(param, f"{param} is not served ({field.why}); it may only be {allowed}", "unsupported_parameter")


def boolean(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """A field that is true, false, or null for its default."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise refused(name, f"{name} is {shown(value)}, but must be true or false")
    return value


def refused(param: str, message: str, code: str = "invalid_parameter") -> ApiError:
    """A value that cannot be taken."""
    return ApiError(400, message, param=param, code=code)


def same(value: Any, other: Any) -> bool:
    """Equal, and of one type: in JSON 1 is not true."""
    return type(value) is type(other) and bool(value == other)


def shown(value: Any) -> str:
    """A value as a message can hold it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
