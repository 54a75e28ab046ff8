"""Whole answers and event streams. A client that leaves ends its request, whichever it waits for."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pellucid.engine.streams import DeltaStream
from pellucid.errors import InvalidParameterError, PellucidError
from pellucid.outputs import RequestOutput
from pellucid.server.answers import Answers, Json
from pellucid.server.api_errors import ApiError, api_error
from pellucid.server.outlet import OUTLET, Outlet
from pellucid.server.wire import JsonResponse

NO_CACHE = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
_WHERE = re.compile(r"^request \S+, position \d+: ")
CLIENT_GONE = 499
"""The access log's status for a client that left (nginx's); nobody receives it."""


class Abortable(Protocol):
    """Work for a client."""

    def abort(self) -> None: ...


class Watch:
    """While entered, aborts the stream when the client's connection ends."""

    def __init__(self, receive: Receive, stream: Abortable) -> None:
        self._receive = receive
        self._stream = stream
        self.is_gone = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Watch:
        self._task = asyncio.create_task(self._wait())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stream.abort()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        self._stream.abort()


def check(output: RequestOutput, names: Mapping[str, str]) -> None:
    """Raise the `ApiError` that an answer which did not end by itself becomes.

    names: what the request calls the fields of SamplingParams. Where one of them shows in mid-answer to ask for what
    cannot be, as a shape that cannot be enforced, it is the request's fault, not the server's.
    """
    for completion in output.outputs:
        if completion.finish_reason == "error":
            error = completion.error or "the request failed"
            if completion.error_field is not None:
                raise api_error(InvalidParameterError(completion.error_field, _WHERE.sub("", error)), names)
            raise ApiError(500, error, code="request_failed")
        if completion.finish_reason == "abort":
            raise ApiError(503, "the server is shutting down and ended this request", code="shutting_down")


async def whole_answer(
    request: Request, stream: DeltaStream, answers: Answers, notes: dict[str, Any], names: Mapping[str, str]
) -> Response:
    """Wait for everything. Raises `ApiError` when an answer failed; names: as in `check`."""

    def take(output: RequestOutput) -> bool:
        answers.take(output)
        check(output, names)
        return True

    async with Watch(request.receive, stream) as watch:
        try:
            await stream.pour(take)
        finally:
            _note(notes, answers, watch)
    if watch.is_gone:
        return Response(status_code=CLIENT_GONE)
    return JsonResponse(answers.body())


class EventStream(Response):
    """Server-sent events, each written when it is there: in the very call of the event loop that brings it, without
    waking a task, unless the client is slow to read."""

    def __init__(self, stream: DeltaStream, answers: Answers, notes: dict[str, Any], names: Mapping[str, str]) -> None:
        """names: as in `check`."""
        super().__init__()
        self._stream = stream
        self._answers = answers
        self._notes = notes
        self._names = names
        self._outlet: Outlet | None = None
        self._held = b""
        """What could not be written at once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._outlet = scope.get(OUTLET)
        await send({"type": "http.response.start", "status": 200, "headers": list(NO_CACHE)})
        async with Watch(receive, self._stream) as watch:
            try:
                async for piece in self._waiting():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except OSError:
                watch.is_gone = True
            finally:
                _note(self._notes, self._answers, watch)
            if not watch.is_gone:
                await send({"type": "http.response.body", "body": self._answers.end_mark, "more_body": False})

    async def _waiting(self) -> AsyncIterator[bytes]:
        """The pieces that were not written at once."""
        answers = self._answers
        if opening := answers.opening():
            yield self._framed(opening)
        try:
            goes_on = True
            while goes_on:
                goes_on = await self._stream.pour(self._take)
                if self._held:
                    piece, self._held = self._held, b""
                    yield piece
        except (ApiError, PellucidError) as error:
            refusal = error if isinstance(error, ApiError) else api_error(error)
            self._notes["error"] = refusal.code
            yield self._framed(answers.failed(refusal))
            return
        if closing := answers.closing():
            yield self._framed(closing)

    def _take(self, output: RequestOutput) -> bool:
        """Write what an output says; false when it has to wait."""
        check(output, self._names)
        piece = self._answers.take(output)
        if not piece or (self._outlet is not None and self._outlet.write(piece)):
            return True
        self._held = piece
        return False

    def _framed(self, chunks: list[Json]) -> bytes:
        return b"".join(map(self._answers.frame, chunks))


def _note(notes: dict[str, Any], answers: Answers, watch: Watch) -> None:
    notes["prompt_tokens"], notes["completion_tokens"] = answers.num_prompt_tokens, answers.num_completion_tokens
    notes["cached_tokens"] = answers.num_cached_tokens
    notes["finish_reasons"] = [reason for _, reason in sorted(answers.finish_reasons.items())]
    if watch.is_gone:
        notes["client_gone"] = True
