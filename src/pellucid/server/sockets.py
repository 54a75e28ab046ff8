"""Around every WebSocket what the gate is around a request: its id, the key, limits, draining, a line in the log.

What the headers tell is refused as HTTP, before the handshake: a foreign page, a wrong key, a path that is not there.
What comes later is told in a message, {"type": "error", "error": …}, and where it ends the connection by the close code
(RFC 6455, section 7.4), which a page's script can read; it cannot read the status of a handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from websockets.frames import CloseCode

from pellucid.errors import PellucidError, ShuttingDownError
from pellucid.server.api_errors import ApiError, api_error, internal_error
from pellucid.server.gate import (
    NOTES,
    WRITE_SECONDS,
    ClientStalledError,
    Keys,
    foreign_origin,
    request_id_of,
    unauthorized,
)
from pellucid.server.logs import Log
from pellucid.server.metrics import Metrics
from pellucid.server.models import ModelPool
from pellucid.server.origins import may_connect
from pellucid.server.settings import ServerSettings
from pellucid.server.wire import JsonResponse, parse_object

TYPE_AHEAD_PATH = "/v1/prefill/ws"
KEY_IN_MESSAGE = frozenset((TYPE_AHEAD_PATH,))
"""Where the key may also come in the first message: browsers cannot send headers with a handshake."""
CONNECTION = "pellucid.connection"
"""Key of the ASGI scope for the `Connection`."""

OPEN = 101
"""The status of a handshake that has opened the connection."""

CLOSE_CODES: Mapping[str | None, int] = {
    "unsupported_media_type": CloseCode.UNSUPPORTED_DATA,
    "invalid_json": CloseCode.INVALID_DATA,
    "internal_error": CloseCode.INTERNAL_ERROR,
    "engine_dead": CloseCode.INTERNAL_ERROR,
    "shutting_down": CloseCode.SERVICE_RESTART,
    "too_many_websockets": CloseCode.TRY_AGAIN_LATER,
    "queue_full": CloseCode.TRY_AGAIN_LATER,
}
"""With which code an error closes the connection; any other is a policy violation."""
ALWAYS_FINAL = frozenset(("unsupported_media_type", "internal_error", "engine_dead", "shutting_down"))
"""Errors after which nothing can go well on this connection."""
_OF_THE_PROTOCOL: Mapping[int, str] = {
    CloseCode.INVALID_DATA: "invalid_utf8",
    CloseCode.MESSAGE_TOO_BIG: "body_too_large",
}
"""What the WebSocket layer itself closes connections for, as errors' codes."""


@dataclass(slots=True)
class Connection:
    """One WebSocket as the log and the metrics see it."""

    request_id: str
    notes: dict[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    status: int = 0
    """Of the handshake; OPEN where it succeeded."""
    is_admitted: bool = False
    """Whether the handshake had a key that may enter."""
    close_code: int | None = None
    num_messages: int = 0
    failures: list[str] = field(default_factory=list)
    """Codes of the errors that were told."""


class SocketGate:
    """ASGI application around another one, for WebSockets alone."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._keys = Keys(settings.api_key)
        self._log = Log(settings.log_format, settings.log_level)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        connection = Connection(request_id_of(headers))
        scope[NOTES], scope[CONNECTION] = connection.notes, connection
        noted_receive, noted_send = self._noted(scope, connection, receive, send)
        try:
            refusal = self._refusal(scope, headers)
            if refusal is not None:
                await _deny(refusal, scope, noted_receive, noted_send)
            else:
                await self._app(scope, noted_receive, noted_send)
        except (WebSocketDisconnect, OSError):  # gone while something was being sent
            pass
        finally:
            self._note_end(scope, connection)

    def _refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        if not may_connect(headers, self._settings):
            return foreign_origin()
        if "authorization" not in headers and scope["path"] in KEY_IN_MESSAGE:
            return None
        if not self._keys.admit_headers(scope, headers):
            return unauthorized()
        scope[CONNECTION].is_admitted = True
        return None

    def _noted(self, scope: Scope, connection: Connection, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """The same channels, noting what passes."""

        async def noted_receive() -> Message:
            message = await receive()
            if message["type"] == "websocket.receive":
                connection.num_messages += 1
                self._metrics.count_socket_message(_route(scope))
            elif message["type"] == "websocket.disconnect" and connection.close_code is None:
                connection.close_code = _code_of(message)
            return message

        async def noted_send(message: Message) -> None:
            kind = message["type"]
            if kind == "websocket.close" and not connection.status:  # the router's: there is no such path
                missing = ApiError(404, f"there is no {scope['path'][:128]} here", code="not_found")
                await _deny(missing, scope, noted_receive, noted_send)
                return
            if kind in ("websocket.accept", "websocket.http.response.start"):
                connection.status = message.get("status", OPEN)
                MutableHeaders(scope=message)["X-Request-Id"] = connection.request_id
            await _sent(send, message)
            if kind == "websocket.accept":
                self._metrics.count_socket(_route(scope), +1)
            elif kind == "websocket.close":
                connection.close_code = message.get("code", CloseCode.NORMAL_CLOSURE)

        return noted_receive, noted_send

    def _note_end(self, scope: Scope, connection: Connection) -> None:
        notes = connection.notes
        self._metrics.count_http(_route(scope), connection.status)
        if connection.status == OPEN:
            self._note_close(scope, connection)
        for reason in connection.failures:
            self._metrics.count_failure(reason)
        if not self._settings.access_log:
            return
        client = scope.get("client")
        self._log.request(
            {
                "request_id": connection.request_id,
                "client": None if client is None else client[0],
                "method": "GET",
                "path": scope["path"][:256],
                "seconds": round(time.monotonic() - connection.began, 4),
                "status": connection.status,
                **notes,
            }
        )

    def _note_close(self, scope: Scope, connection: Connection) -> None:
        code = int(connection.close_code or CloseCode.ABNORMAL_CLOSURE)
        notes = connection.notes
        if code in _OF_THE_PROTOCOL and "error" not in notes:
            notes["error"] = _OF_THE_PROTOCOL[code]
            connection.failures.append(notes["error"])
        notes |= {"close_code": code, "messages": connection.num_messages, "errors": len(connection.failures)}
        self._metrics.count_socket(_route(scope), -1)
        self._metrics.count_socket_close(_route(scope), code)


class JsonSocket:
    """A WebSocket after its handshake: JSON objects in and out."""

    def __init__(self, socket: WebSocket) -> None:
        self.scope = socket.scope
        self.connection: Connection = socket.scope[CONNECTION]
        self._socket = socket

    @property
    def is_over(self) -> bool:
        """Whether the end has come, from either side."""
        return WebSocketState.DISCONNECTED in (self._socket.client_state, self._socket.application_state)

    async def receive(self) -> dict[str, Any]:
        """The next message. Raises `ApiError`, or `WebSocketDisconnect` when the connection has ended."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", CloseCode.NO_STATUS_RCVD))
        if message.get("text") is None:
            raise ApiError(415, "a message must be text, but this one is binary", code="unsupported_media_type")
        return parse_object(message["text"], "message")

    async def send(self, value: Any) -> None:
        """Raises `WebSocketDisconnect` when the connection has ended."""
        if self._socket.application_state is not WebSocketState.CONNECTED:
            raise WebSocketDisconnect(self.connection.close_code or CloseCode.ABNORMAL_CLOSURE)
        await self._socket.send_text(json.dumps(value))

    async def refuse(self, error: ApiError) -> None:
        """Tell an error; the connection stays."""
        self.connection.failures.append(str(error.code))
        await self.send({"type": "error", **error.body})

    async def end(self, error: ApiError) -> None:
        """Tell an error, and close the connection for it."""
        self.connection.notes.setdefault("error", error.code)
        await self.refuse(error)
        if self._socket.application_state is WebSocketState.CONNECTED:
            await self._socket.close(CLOSE_CODES.get(error.code, CloseCode.POLICY_VIOLATION), error.code)

    @contextlib.asynccontextmanager
    async def telling(self, *, all_are_final: bool) -> AsyncIterator[None]:
        """What goes wrong inside is told; all of it closes the connection, or only what is `ALWAYS_FINAL`."""
        try:
            try:
                yield
            except ApiError:
                raise
            except PellucidError as error:
                raise api_error(error) from None
            except WebSocketDisconnect:
                raise
            except Exception:
                logging.getLogger("pellucid").exception(
                    "WebSocket %s failed (%s)", self.scope["path"], self.connection.request_id
                )
                raise internal_error() from None
        except ApiError as error:
            final = all_are_final or error.code in ALWAYS_FINAL
            with contextlib.suppress(WebSocketDisconnect):
                await (self.end if final else self.refuse)(error)
        except WebSocketDisconnect:
            pass  # nobody is there to be told


class OpenSockets:
    """Those that were let in: how many there may be, and that they end when the server drains."""

    def __init__(self, models: ModelPool, most: int) -> None:
        self._models = models
        self._most = most
        self._num_open = 0

    @contextlib.contextmanager
    def let_in(self, socket: JsonSocket) -> Iterator[None]:
        """While entered it counts. Raises `ApiError` where it is one too many, `ShuttingDownError` while draining."""
        loop = asyncio.get_running_loop()
        ending: set[asyncio.Task[None]] = set()

        def end() -> None:
            ending.add(loop.create_task(_ended(socket)))

        def end_from_any_thread() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the connection
                loop.call_soon_threadsafe(end)

        with self._models.told_of_closing(end_from_any_thread):
            self._models.check_open()
            if self._num_open >= self._most:
                raise ApiError(
                    429,
                    f"{self._num_open} WebSockets are open, as many as may be; try again later",
                    code="too_many_websockets",
                )
            self._num_open += 1
            try:
                yield
            finally:
                self._num_open -= 1


async def _ended(socket: JsonSocket) -> None:
    async with socket.telling(all_are_final=True):
        raise ShuttingDownError()


async def _sent(send: Send, message: Message) -> None:
    """Raises an `OSError` where nobody takes it."""
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            await send(message)
    except TimeoutError:
        raise ClientStalledError(f"the client has read nothing for {WRITE_SECONDS:g} s") from None
    except RuntimeError:  # how uvicorn says that the WebSocket layer has closed the connection meanwhile
        raise ConnectionResetError("the connection is closed") from None


async def _deny(refusal: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse the handshake."""
    connection: Connection = scope[CONNECTION]
    connection.notes["error"] = refusal.code
    connection.failures.append(str(refusal.code))
    await JsonResponse(refusal.body, refusal.status, refusal.headers)(scope, receive, send)


def _code_of(message: Message) -> int:
    """uvicorn says 1005 (closed without a code) of a connection that broke off too, but then without a reason."""
    code = int(message.get("code", CloseCode.NO_STATUS_RCVD))
    if code == CloseCode.NO_STATUS_RCVD and "reason" not in message:
        return CloseCode.ABNORMAL_CLOSURE
    return code


def _route(scope: Scope) -> str:
    return str(getattr(scope.get("route"), "path", "other"))
