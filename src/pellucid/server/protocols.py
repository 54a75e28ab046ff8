"""What uvicorn's protocols lack: a time limit for a request's head, an answer to what is no request, and a short way
for the pieces of a stream.

Without them a client that says nothing, or half a head, holds its connection for ever; and so does a WebSocket's
handshake that the library cannot read.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable
from functools import partial
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from pellucid.errors import one_line
from pellucid.server.api_errors import ApiError
from pellucid.server.outlet import OUTLET, Outlet
from pellucid.server.wire import dump

HEAD_SECONDS = 60.0
"""What the head of a request may take, from the opening of the connection or its own first byte on."""
_PHRASES = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class HttpProtocol(H11Protocol):
    """HTTP/1.1 by h11, whether uvicorn has its faster parser or not: with that one a head has no limit."""

    _head_timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.app = partial(_with_outlet, self.app, self)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or self.transport.get_protocol() is not self:  # it has become a WebSocket
            self._drop_timer()
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it while it handles the parser's error."""
        error = sys.exception()
        # no line of the request: it may have a key in it
        reason = one_line(str(error).partition(": bytearray(")[0]) if error is not None else msg
        status = 431 if getattr(error, "error_status_hint", None) == 431 else 400
        if status == 431:
            reason = "its head is too large"
        logging.getLogger("pellucid").warning("no HTTP request from %s: %s", _host(self.client), reason)
        self._refuse(ApiError(status, f"this is no valid HTTP request: {reason}", code="invalid_http"))

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _drop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        message = f"the head of a request did not arrive within {HEAD_SECONDS:g} s"
        self._refuse(ApiError(408, message, code="head_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Answer where nothing was answered yet, and close the connection."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is None or not cycle.response_started or (cycle.response_complete and not cycle.more_body):
            self.transport.write(_response(error))
        self.transport.close()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSockets by websockets' parser."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        error = self.conn.handshake_exc
        if error is not None and not self.handshake_initiated and not self.transport.is_closing():
            reason = one_line(str(error.__cause__ or error))
            message = f"this is no handshake of a WebSocket: {reason}"
            self.transport.write(_response(ApiError(400, message, code="invalid_http")))
            self.transport.close()


def _with_outlet(app: ASGIApp, protocol: Any, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    # h11 puts a body of unknown length into chunks for who knows them, and else ends it with the connection
    scope[OUTLET] = Outlet(protocol.transport, protocol.flow, is_chunked=scope["http_version"] >= "1.1")
    return app(scope, receive, send)


def _response(error: ApiError) -> bytes:
    body = dump(error.body)
    head = (
        f"HTTP/1.1 {error.status} {_PHRASES[error.status]}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _host(client: tuple[str, int] | None) -> str:
    return "an unknown client" if client is None else client[0]
