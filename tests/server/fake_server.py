"""A server that speaks just enough HTTP to be asked, and does exactly what it is told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

Reply = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]


class FakeServer:
    """`reply` is given the body of each POST, and writes what it likes."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.num_open = self.most_open = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> FakeServer:
        self._thread.start()
        start = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop)
        self._server = start.result(10)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _end(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.headers.append(head)
            if head.startswith("GET"):
                await send(writer, json.dumps({"data": [{"id": "fake"}]}))
                return
            length = next(int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length:"))
            body = json.loads(await reader.readexactly(length))
            self.bodies.append(body)
            self.num_open += 1
            self.most_open = max(self.most_open, self.num_open)
            await self.reply(body, writer)
            self.num_open -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def send(writer: asyncio.StreamWriter, text: str, status: str = "200 OK") -> None:
    """A whole answer."""
    data = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()


async def begin_stream(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    await writer.drain()


async def event(writer: asyncio.StreamWriter, value: Any) -> None:
    writer.write(b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n")
    await writer.drain()


def piece(text: str, reason: str | None = None) -> dict[str, Any]:
    """A chunk of a chat's stream."""
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}
