"""Traces of requests over HTTP: of one request under its answer's id, and live for the page that sent it.

A trace has the prompt in it, so it is for whoever sent the request. An answer's id cannot be guessed and is in the
answer alone: it opens that request's trace, with the same API key where there are several. A page that follows its
requests live names itself by a random `X-Pellucid-Viewer`, in the requests and in the stream. What the steps and blocks
of a trace say of other requests has no names.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from pellucid.engine.async_llm import AsyncLLM
from pellucid.server.api_errors import ApiError
from pellucid.server.checks import refused
from pellucid.server.gate import KEY
from pellucid.server.models import ModelPool
from pellucid.server.origins import TRACES
from pellucid.server.settings import ServerSettings
from pellucid.trace.events import Event
from pellucid.trace.jsonl import line_of
from pellucid.trace.reader import TraceReader

VIEWER_HEADER = "x-pellucid-viewer"
_VIEWER = re.compile(r"[A-Za-z0-9_-]{16,128}")
MAX_VIEWERS = 256
MAX_IDS = 512
"""Newest requests that are kept in mind: of a viewer, and those that can be read by id."""
POLL_SECONDS = 0.03
RECORDS_AT_ONCE = 256
"""Read between two writes: the event loop serves others meanwhile."""
HEARTBEAT_SECONDS = 15.0
"""A comment is written when nothing has happened for so long: a client that is gone is noticed."""
MAX_STREAMS = 32
MAX_HASHES = 1 << 16
"""Blocks of own requests that a stream remembers."""
NDJSON = "application/x-ndjson"


class TraceRoutes:
    """The handlers, and whose requests were whose."""

    def __init__(self, models: ModelPool, settings: ServerSettings) -> None:
        self._models = models
        self._settings = settings
        self._viewers: OrderedDict[str, dict[str, None]] = OrderedDict()
        self._requests: OrderedDict[str, tuple[str, str, list[str]]] = OrderedDict()
        """By an answer's id: the model, the API key it was sent with, the engine's names."""
        self._num_streams = 0

    def router(self) -> APIRouter:
        """Both endpoints."""
        router = APIRouter()
        add = router.add_api_route
        add(f"{TRACES}/live", self.live, methods=["GET"], summary="The traces of a page's requests as they come")
        add(f"{TRACES}/{{name}}", self.one, methods=["GET"], summary="The trace of a request, as JSON lines")
        return router

    def check_level(self, level: int) -> None:
        """Raise `ApiError` for more than the server allows."""
        most = self._settings.most_trace_level
        if level > most:
            raise refused("trace", f"trace is {level}, but this server traces up to level {most}: see --trace-level")

    def note(self, request: Request, model: str, name: str, num_prompts: int) -> None:
        """A traced request is about to be queued under this name."""
        names = [name] if num_prompts == 1 else [f"{name}-{i}" for i in range(num_prompts)]
        self._requests[name] = (model, request.scope.get(KEY, ""), names)
        while len(self._requests) > MAX_IDS:
            self._requests.popitem(last=False)
        viewer = request.headers.get(VIEWER_HEADER, "")
        if _VIEWER.fullmatch(viewer):
            ids = self._ids_of(viewer)
            ids.update(dict.fromkeys(names))
            while len(ids) > MAX_IDS:
                del ids[next(iter(ids))]

    async def one(self, request: Request, name: str) -> Response:
        """What is kept of a request, running or ended."""
        model, key, names = self._requests.get(name, ("", "", []))
        found = self._models.find(model).llm if names and key == request.scope.get(KEY, "") else None
        if found is None:
            raise ApiError(404, "there is no trace of that name here, or no more", code="trace_not_found")
        lines = await asyncio.to_thread(lambda: "".join(map(line_of, _whole(found.trace_reader(names), names))))
        return Response(lines, media_type=NDJSON)

    async def live(self, request: Request) -> Response:
        """Server-sent events, each an event of the trace; the header comes at once."""
        most = self._settings.most_trace_level
        if not most:
            raise ApiError(404, "this server traces nothing: see --trace-level", code="tracing_is_off")
        if self._num_streams >= MAX_STREAMS:
            raise ApiError(429, "too many pages follow live traces; try again later", code="too_many_streams")
        own: dict[str, None] | None = None
        if not self._settings.playground_all:
            viewer = request.headers.get(VIEWER_HEADER, "")
            if not _VIEWER.fullmatch(viewer):
                raise ApiError(
                    400,
                    "X-Pellucid-Viewer must be a random name of 16 to 128 letters and digits, that of the requests",
                    code="viewer_needed",
                )
            own = self._ids_of(viewer)
        llm = self._models.find(request.query_params.get("model")).llm
        if llm is None:
            raise ApiError(404, "the model is not loaded", code="model_not_loaded")
        headers = {"Cache-Control": "no-cache"}
        return StreamingResponse(self._follow(llm, own, most), media_type="text/event-stream", headers=headers)

    async def _follow(self, llm: AsyncLLM, own: dict[str, None] | None, most: int) -> AsyncIterator[bytes]:
        reader = llm.trace_reader(own, from_start=False)
        names = _Names(own)
        last = time.monotonic()
        self._num_streams += 1
        try:
            while llm.is_ready:
                events = await asyncio.to_thread(reader.read, RECORDS_AT_ONCE) if reader.has_more else []
                if events:
                    last = time.monotonic()
                    yield b"".join(_frame(_capped(event, most)) for event in map(names.hide, events))
                elif time.monotonic() - last > HEARTBEAT_SECONDS:
                    last = time.monotonic()
                    yield b":\n\n"
                else:
                    await asyncio.sleep(POLL_SECONDS)
        finally:
            self._num_streams -= 1

    def _ids_of(self, viewer: str) -> dict[str, None]:
        """In the order in which they came; read by threads while it grows."""
        ids = self._viewers.setdefault(viewer, {})
        self._viewers.move_to_end(viewer)
        while len(self._viewers) > MAX_VIEWERS:
            self._viewers.popitem(last=False)
        return ids


class _Names:
    """Takes the names of other requests out of events."""

    def __init__(self, own: Collection[str] | None) -> None:
        self._own = own
        self._others: dict[str, str] = {}
        self._hashes: set[str] = set()
        """Of blocks that own requests had."""

    def hide(self, event: Event) -> Event:
        if self._own is None:
            return event
        kind = event["type"]
        if kind == "header":
            return {**event, "redacted": True}
        if kind == "step":
            seqs = [{**seq, "req": self._shown(seq["req"])} for seq in event["seqs"]]
            waiting = [{**one, "req": self._shown(one["req"])} for one in event["waiting"]]
            return {**event, "seqs": seqs, "waiting": waiting}
        if kind == "kv":
            return self._block(event, self._own)
        return event

    def _block(self, event: Event, own: Collection[str]) -> Event:
        """What is in others' blocks is not told; that one which was an own request's is evicted, is."""
        if event["req"] in own:
            if event["hash"] is not None and len(self._hashes) < MAX_HASHES:
                self._hashes.add(event["hash"])
            return event
        if event["req"] is None and event["hash"] in self._hashes:
            return event
        name = None if event["req"] is None else self._shown(event["req"])
        return {**event, "req": name, "hash": None, "parent": None}

    def _shown(self, name: str) -> str:
        if self._own is None or name in self._own:
            return name
        if len(self._others) > 10_000:
            self._others.clear()
        return self._others.setdefault(name, f"other-{len(self._others) + 1}")


def _whole(reader: TraceReader, names: list[str]) -> list[Event]:
    hidden = _Names(names)
    return [*map(hidden.hide, reader.read()), reader.end()]


def _capped(event: Event, most: int) -> Event:
    """A live header says what may be asked for."""
    return {**event, "level": most} if event["type"] == "header" else event


def _frame(event: Any) -> bytes:
    return b"data: " + line_of(event).encode("utf-8", "replace") + b"\n"
