"""Every failure in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pellucid.errors import (
    ChatTemplateError,
    EngineDeadError,
    InvalidParameterError,
    PellucidError,
    QueueFullError,
    ShuttingDownError,
)
from pellucid.structured_outputs import KINDS, NAME

MAX_MESSAGE_CHARS = 1000
"""Messages show the value at fault, which a client may have made as large as its body."""
RETRY_SECONDS = {429: 1, 503: 5}
"""What a client is told to wait: a full queue has moved on by then; another instance, or the next one, can answer."""

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A refusal with its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = {**retry_header(status), **(headers or {})}
        if len(message) > MAX_MESSAGE_CHARS:
            message = message[: MAX_MESSAGE_CHARS - 1] + "…"
        self.message = message

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def internal_error() -> ApiError:
    """A mistake of ours. uvicorn closes the connection after it, which a client must know before it sends more."""
    message = "the server made a mistake; its log has the details"
    return ApiError(500, message, code="internal_error", headers={"Connection": "close"})


def retry_header(status: int) -> dict[str, str]:
    """`Retry-After` for a status after which trying again can succeed."""
    return {"Retry-After": str(RETRY_SECONDS[status])} if status in RETRY_SECONDS else {}


def api_error(error: PellucidError, names: Mapping[str, str] | None = None) -> ApiError:
    """The refusal that an error of the engine becomes.

    names: what a request calls the fields of SamplingParams, where that differs.
    """
    message, code = str(error), error.code
    if isinstance(error, QueueFullError):
        return ApiError(429, message, code=code)
    if isinstance(error, ShuttingDownError | EngineDeadError):
        return ApiError(503, message, code=code)
    if isinstance(error, InvalidParameterError):
        param = error.field
        renamed = (names or {}).get(param)
        if renamed is not None:
            # a schema of a tool or of response_format has become one of several kinds of structured_outputs
            inner = rf"(\.({'|'.join(KINDS)})\b)?" if param == NAME else ""
            message = re.sub(rf"{param}{inner}", lambda _: renamed, message, count=1)
            param = renamed
        return ApiError(400, message, param=param, code=code)
    if isinstance(error, ChatTemplateError):
        return ApiError(400, message, param=(names or {}).get("messages", "messages"), code=code)
    return ApiError(500, message, code=code)
