"""JSON in and out, with its limits. What comes in is hostile until it is parsed."""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
from collections import Counter
from json.encoder import encode_basestring
from typing import Any, NoReturn

from starlette.requests import Request
from starlette.responses import Response

from pellucid.errors import shown
from pellucid.outputs import LOGPROB_FLOOR
from pellucid.server.api_errors import ApiError

MAX_PLACE = 128
"""Characters of the path to a value that a refusal names."""
_HALF_PAIR = re.compile("[\ud800-\udfff]")
BODY_SECONDS = 60.0
"""A body that has not come by then is given up, so that stalled clients hold nothing."""


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def dump(value: Any) -> bytes:
    """Compact UTF-8. Half surrogate pairs, as in a query, become `?`."""
    return _ENCODER.encode(value).encode("utf-8", "replace")


def dump_text(text: str) -> bytes:
    """The same of a string, without what `dump` does for all kinds of values."""
    return encode_basestring(text).encode("utf-8", "replace")


class JsonResponse(Response):
    """A value as a body."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return dump(content)


def finite(logprob: float) -> float:
    """A logprob as JSON can carry it."""
    return logprob if math.isfinite(logprob) else LOGPROB_FLOOR


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """The body as a JSON object.

    Raises `ApiError`: 408, 413, 415, or 400 for what is not strict JSON: NaN and Infinity are not, and a name that an
    object has twice would leave one of its values unread.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        # a web page may send other types to any address without being asked (CORS "simple requests")
        raise ApiError(415, "the Content-Type header must be application/json", code="unsupported_media_type")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise ApiError(415, "a body must come as it is, without a Content-Encoding", code="unsupported_media_type")
    return parse_object(await _read(request, max_bytes), "body")


def parse_object(content: bytes | str, what: str) -> dict[str, Any]:
    """Strict JSON that must be an object. what: what it is called. Raises `ApiError` 400."""
    try:
        text = content.decode("utf-8") if isinstance(content, bytes) else content
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_twice)
    except RecursionError:
        raise ApiError(400, f"the {what} is nested too deeply", code="invalid_json") from None
    except ValueError as error:
        raise ApiError(400, f"the {what} is not valid JSON: {_reason(error)}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"the {what} must be a JSON object", code="invalid_json")
    if "\\ud" in text or "\\uD" in text:
        _check_pairs(value, what)
    return value


def _reason(error: ValueError) -> str:
    """What is wrong, in words for who sent it."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is 0x{error.object[error.start]:02x}, where UTF-8 has no such byte"
    if "BOM" in str(error):
        return "it begins with a byte order mark"
    if "int_max_str_digits" in str(error):
        return f"a number has more than {sys.get_int_max_str_digits()} digits"
    return str(error)


def _check_pairs(value: dict[str, Any], what: str) -> None:
    """Refuse halves of surrogate pairs, which only JSON's escapes can bring in: they are no text."""
    found: list[tuple[str, dict[str, Any] | list[Any]]] = [("", value)]
    while found:  # no recursion: a body may nest deeper than Python's stack
        place, one = found.pop()
        if isinstance(one, dict) and any(map(_HALF_PAIR.search, one)):
            where = f"a name in {place}" if place else f"a name in the {what}"
            raise ApiError(400, f"{where} has half a surrogate pair", param=place or None, code="invalid_parameter")
        for key, inner in one.items() if isinstance(one, dict) else enumerate(one):
            is_text = isinstance(inner, str)
            if not (_HALF_PAIR.search(inner) if is_text else isinstance(inner, dict | list)):
                continue  # most are: a prompt may have a hundred thousand ids, none of which needs its place told
            inside = f"{place}[{key}]" if isinstance(one, list) else f"{place}.{key}" if place else str(key)
            if is_text:
                raise ApiError(
                    400,
                    f"{inside[:MAX_PLACE]} has half a surrogate pair",
                    param=inside[:MAX_PLACE],
                    code="invalid_parameter",
                )
            found.append((inside[:MAX_PLACE], inner))


async def _read(request: Request, max_bytes: int) -> bytes:
    too_large = ApiError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > max_bytes:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > max_bytes:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_SECONDS:g} s", code="body_timeout") from None
    return b"".join(parts)


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{shown(twice)} stands in one object twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
