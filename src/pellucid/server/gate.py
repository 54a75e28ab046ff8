"""Around every request: its id, the API key, the access log."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import json
import re
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid.server.api_errors import ApiError
from pellucid.server.metrics import Metrics
from pellucid.server.models import ON_END, end
from pellucid.server.settings import ServerSettings
from pellucid.server.wire import JsonResponse

OPEN_PATHS = frozenset(("/health", "/ready", "/version"))
"""What needs no API key: what a load balancer asks."""
NOTES = "pellucid.notes"
"""Key of the ASGI scope under which a route leaves what the access log should have."""
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Gate:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self.app = app
        self._settings = settings
        self._metrics = metrics
        self._keys = [_digest(key) for key in settings.api_key]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = f"req-{uuid.uuid4().hex}"
        notes: dict[str, Any] = {}
        scope[NOTES] = notes
        scope[ON_END] = []  # here, so that routers which copy the scope share it
        status = 0
        began = time.monotonic()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        try:
            if scope["path"] not in OPEN_PATHS and not self._may_enter(headers):
                refusal = _unauthorized()
                notes["error"] = refusal.code
                response = JsonResponse(refusal.body, refusal.status, refusal.headers)
                await response(scope, receive, send_with_id)
            else:
                await self.app(scope, receive, send_with_id)
        finally:
            end(scope)
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.count_http(route, status)
            reason = notes.get("error") or ("client_gone" if notes.get("client_gone") else None)
            if reason is not None:
                self._metrics.count_failure(reason)
            if self._settings.access_log:
                self._log(scope, request_id, status, time.monotonic() - began, notes)

    def _may_enter(self, headers: Headers) -> bool:
        if not self._keys:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = _digest(key.strip() if scheme.lower() == "bearer" else "")
        # every key is compared, and digests of one length, so that time tells nothing
        return bool(sum(hmac.compare_digest(given, known) for known in self._keys))

    def _log(self, scope: Scope, request_id: str, status: int, seconds: float, notes: dict[str, Any]) -> None:
        client: Sequence[Any] | None = scope.get("client")
        line = {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "request_id": request_id,
            "client": None if client is None else client[0],
            "method": scope["method"],
            "path": scope["path"][:256],
            "status": status,
            "seconds": round(seconds, 4),
            **notes,
        }
        print(json.dumps(line), file=sys.stderr, flush=True)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _unauthorized() -> ApiError:
    return ApiError(
        401,
        "the API key is missing or wrong: send it as `Authorization: Bearer KEY`",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
