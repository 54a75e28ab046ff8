"""Around every request: its id, the API key, the access log, its span."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import time
import uuid
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pellucid.engine.streams import DeltaStream
from pellucid.errors import ShuttingDownError
from pellucid.outputs import RequestMetrics
from pellucid.sampling_params import SamplingParams
from pellucid.server.api_errors import ApiError, api_error
from pellucid.server.logs import Log
from pellucid.server.metrics import Metrics
from pellucid.server.models import ON_END, end
from pellucid.server.origins import is_foreign_page
from pellucid.server.settings import ServerSettings
from pellucid.server.tracing import Tracing
from pellucid.server.wire import JsonResponse

OPEN_PATHS = frozenset(("/health", "/ready", "/version"))
"""What needs no API key: what a load balancer asks."""
SHELL_PATHS = frozenset(("/", "/glass/playground.js", "/glass/style.css"))
"""The playground's page without any data: a browser cannot send a key when it opens an address."""
NOTES = "pellucid.notes"
"""Key of the ASGI scope under which a route leaves what the access log should have."""
FOLLOWED = "pellucid.followed"
"""Key under which a route leaves what the engine does for the request; see `follow`."""
KEY = "pellucid.key"
"""Key under which the gate leaves which API key was used, where there are several."""
WRITE_SECONDS = 60.0
"""A client that takes nothing of its answer for so long is given up, so that it holds neither memory nor a model."""
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class ClientStalledError(OSError):
    """The client has not read for WRITE_SECONDS; to whoever writes it is as good as gone."""


@dataclass(slots=True)
class Followed:
    """A request's times and streams."""

    arrival_time: float = field(default_factory=time.monotonic)
    """When its head had come (time.monotonic)."""
    streams: list[DeltaStream] = field(default_factory=list)
    params: SamplingParams | None = None

    @property
    def times(self) -> list[RequestMetrics]:
        return [metrics for stream in self.streams for metrics in stream.metrics.values()]


def follow(scope: MutableMapping[str, Any], stream: DeltaStream, params: Sequence[SamplingParams]) -> None:
    """Let the access log and the span have the stream's times."""
    followed = scope[FOLLOWED]
    followed.streams.append(stream)
    followed.params = params[0]


def client_of(scope: MutableMapping[str, Any], user: str | None) -> str:
    """Among whom the engine's time is shared: the API keys where there are several, else what `user` says."""
    return str(scope.get(KEY, user or ""))


def request_id_of(headers: Headers) -> str:
    """The client's own, or a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"


class Keys:
    """Who may enter. All keys are compared, and digests of one length, so that time tells nothing."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def admit(self, scope: MutableMapping[str, Any], given: str) -> bool:
        """Whether the key is one of them, or none is needed; the scope learns which, where there are several."""
        if not self._digests:
            return True
        digest = _digest(given)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if any(matches) and len(matches) > 1:
            scope[KEY] = f"key {matches.index(True)}"
        return any(matches)

    def admit_headers(self, scope: MutableMapping[str, Any], headers: Headers) -> bool:
        """The same for the key of `Authorization: Bearer KEY`."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        return self.admit(scope, key.strip() if scheme.lower() == "bearer" else "")


class Gate:
    """ASGI middleware."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        metrics: Metrics,
        tracing: Tracing | None = None,
        *,
        sockets: Callable[[ASGIApp], ASGIApp],
    ) -> None:
        """sockets: makes the gate for WebSockets."""
        self.app = app
        self._sockets = sockets(app)
        self._settings = settings
        self._keys = Keys(settings.api_key)
        self._metrics = metrics
        self._tracing = tracing
        self._log = Log(settings.log_format, settings.log_level)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await (self._sockets if scope["type"] == "websocket" else self.app)(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = request_id_of(headers)
        given_method = scope["method"]
        if given_method == "HEAD":  # the routes are those of GET; uvicorn, which has a scope of its own, sends no body
            scope = {**scope, "method": "GET"}
        notes: dict[str, Any] = {}
        # all three here, so that routers which copy the scope share them
        scope[NOTES], scope[FOLLOWED], scope[ON_END] = notes, Followed(), []
        status = 0
        span = None
        if self._tracing is not None and scope["method"] == "POST":
            span = self._tracing.begin(scope["method"], scope["path"][:256], headers)

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await send(message)
            except TimeoutError:
                notes["client_gone"] = True
                raise ClientStalledError(f"the client has read nothing for {WRITE_SECONDS:g} s") from None

        try:
            refusal = self._refusal(scope, headers)
            if refusal is not None:
                notes["error"] = refusal.code
                response = JsonResponse(refusal.body, refusal.status, refusal.headers)
                await response(scope, receive, send_with_id)
            else:
                await self.app(scope, receive, send_with_id)
        except ClientStalledError:
            pass  # nobody to tell; the server closes the connection of an answer that was not finished
        except asyncio.CancelledError:  # the server is closing, and this one did not end in time
            notes["error"] = ShuttingDownError.code
            if not status:
                refusal = api_error(ShuttingDownError())
                await JsonResponse(refusal.body, refusal.status, refusal.headers)(scope, receive, send_with_id)
        finally:
            end(scope)
            self._note_end(scope, given_method, request_id, status, span)

    def _refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        if is_foreign_page(scope["method"], scope["path"], headers, self._settings):
            return foreign_origin()
        if scope["path"] in OPEN_PATHS | SHELL_PATHS or self._keys.admit_headers(scope, headers):
            return None
        return unauthorized()

    def _note_end(self, scope: Scope, method: str, request_id: str, status: int, span: Any) -> None:
        route = getattr(scope.get("route"), "path", "other")
        notes, followed = scope[NOTES], scope[FOLLOWED]
        notes["status"] = status
        self._metrics.count_http(route, status)
        reason = notes.get("error") or ("client_gone" if notes.get("client_gone") else None)
        if reason is not None:
            self._metrics.count_failure(reason)
        if span is not None and self._tracing is not None:
            self._tracing.end(span, route, notes, followed.times, followed.params)
        if self._settings.access_log:
            client: Sequence[Any] | None = scope.get("client")
            self._log.request(
                {
                    "request_id": request_id,
                    "client": None if client is None else client[0],
                    "method": method,
                    "path": scope["path"][:256],
                    "seconds": round(time.monotonic() - followed.arrival_time, 4),
                    **notes,
                    **_seconds(followed.times),
                }
            )


def _seconds(times: Sequence[RequestMetrics]) -> dict[str, float]:
    """Where the time of a request went; of several prompts, the one that was first at each point."""
    if not times:
        return {}
    arrival = min(one.arrival_time for one in times)
    points = {
        "queue_seconds": [one.first_scheduled_time for one in times],
        "ttft_seconds": [one.first_token_time for one in times],
    }
    found = {
        name: min(given) - arrival for name, all_ in points.items() if (given := [t for t in all_ if t is not None])
    }
    tpot = [one.tpot for one in times if one.tpot is not None]
    if tpot:
        found["tpot_seconds"] = sum(tpot) / len(tpot)
    return {name: round(value, 5) for name, value in found.items()}


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def foreign_origin() -> ApiError:
    """A web page that may not."""
    return ApiError(
        403,
        "a web page of another origin, or a Host other than this server's own, may not do this: --cors-origin names "
        "the pages that may",
        code="foreign_origin",
    )


def unauthorized(how: str = "send it as `Authorization: Bearer KEY`") -> ApiError:
    """A key that is missing or wrong."""
    return ApiError(
        401,
        f"the API key is missing or wrong: {how}",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
