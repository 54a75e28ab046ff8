"""The checks that every endpoint's parser makes of single fields."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pellucid.server.api_errors import ApiError


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
