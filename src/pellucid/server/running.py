"""The process: a socket, signals, draining."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from pellucid.errors import InvalidParameterError
from pellucid.server.app import create_app
from pellucid.server.logs import Log
from pellucid.server.models import ModelPool
from pellucid.server.protocols import HttpProtocol, WebSocketProtocol
from pellucid.server.settings import ServerSettings
from pellucid.server.tracing import Tracing

CLOSE_SECONDS = 5
"""Once all requests have ended, what connections get to close."""
KEEP_ALIVE_SECONDS = 75
_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, "SO_REUSEADDR", 1),
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 30),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 60_000),
)
"""Connections inherit them: a machine that vanished without a word is noticed within a minute or so, not a quarter of
an hour. Seconds, and milliseconds for the last."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not listening yet. Raises `InvalidParameterError` in one sentence."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidParameterError("host", f"cannot listen on {host}: {error.strerror}") from None
    try:
        for level, name, value in _SOCKET_OPTIONS:
            if hasattr(socket, name):
                bound.setsockopt(level, getattr(socket, name), value)
        bound.bind(address)
    except OSError as error:
        bound.close()
        reason = (error.strerror or "").lower()
        raise InvalidParameterError(
            "port", f"cannot listen on {host} port {port}: {reason}; choose another --port or --host"
        ) from None
    return bound


def address_of(bound: socket.socket) -> str:
    """The address as it stands in a URL."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Server(uvicorn.Server):
    """Signals are ours: they begin the draining."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def uvicorn_config(app: Any, settings: ServerSettings) -> uvicorn.Config:
    """How uvicorn serves the application."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=HttpProtocol,
        ws=WebSocketProtocol,
        ws_max_size=settings.max_body_bytes,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )


def run(
    models: ModelPool,
    settings: ServerSettings,
    bound: socket.socket,
    *,
    version: str = "unknown",
    tracing: Tracing | None = None,
    on_ready: Callable[[], Any] = lambda: None,
) -> None:
    """Serve until SIGINT or SIGTERM, then drain: no new requests, running ones get `shutdown_timeout`, a second signal
    ends them at once. From then on the process ignores both, so that it ends in peace.
    """
    app = create_app(models, settings, version=version, tracing=tracing)
    with Log(settings.log_format, settings.log_level).installed():
        asyncio.run(_serve(app, models, settings, bound, on_ready))
        if tracing is not None:
            tracing.close()


async def _serve(
    app: Any, models: ModelPool, settings: ServerSettings, bound: socket.socket, on_ready: Callable[[], Any]
) -> None:
    server = _Server(uvicorn_config(app, settings))
    loop = asyncio.get_running_loop()
    signals: asyncio.Queue[None] = asyncio.Queue()
    for number in SIGNALS:  # not the loop's own handlers: when it closes, it would put back those that interrupt
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(signals.put_nowait, None))
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    first = asyncio.create_task(signals.get())
    try:
        while not (server.started or serving.done()):
            await asyncio.sleep(0.005)
        if not serving.done():
            on_ready()
        await asyncio.wait((serving, first), return_when=asyncio.FIRST_COMPLETED)
        await _drain(models, settings.shutdown_timeout, signals)
    finally:
        first.cancel()
        server.should_exit = True
        await serving
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


async def _drain(models: ModelPool, seconds: float, signals: asyncio.Queue[None]) -> None:
    closing = asyncio.create_task(models.close(seconds))
    second = asyncio.create_task(signals.get())
    await asyncio.wait((closing, second), return_when=asyncio.FIRST_COMPLETED)
    second.cancel()
    if not closing.done():
        await models.close(0.0)
    await closing
