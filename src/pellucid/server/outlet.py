"""The short way for the pieces of a stream, past the coroutines of ASGI and the state machine of HTTP."""

from __future__ import annotations

from asyncio import Transport
from typing import Any

OUTLET = "pellucid.outlet"
"""Key of the ASGI scope under which a request finds its `Outlet`."""


class Outlet:
    """Writes pieces of an answer's body, from any callback of the event loop.

    ASGI's `send` is a coroutine through all the layers around a route. They concern themselves with an answer's head
    and with who waits for a slow reader, so a stream of many small pieces needs none of them in between.
    """

    def __init__(self, transport: Transport, flow: Any, is_chunked: bool) -> None:
        """flow: uvicorn's. is_chunked: whether the body goes in chunks (RFC 9112, 7.1), or ends with the connection."""
        self._transport = transport
        self._flow = flow
        self._is_chunked = is_chunked

    def write(self, piece: bytes) -> bool:
        """A piece with something in it, after the head; false, and not written, when it has to wait for the client."""
        if self._flow.write_paused or self._transport.is_closing():
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._is_chunked else piece)
        return True
