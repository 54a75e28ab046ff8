"""A WebSocket for text that is still being typed: its prompt is computed while it grows.

Every message has the text so far. What will still change at its end is held back: the last tokens may become others
with the next letter. The rest is computed whenever nothing else is to be, block by block, so that what a later message
replaces is not lost; when the request comes, only the end is left to compute.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, WebSocket

from pellucid.engine.async_llm import AsyncLLM
from pellucid.outputs import PrefillOutput
from pellucid.server.api_errors import ApiError
from pellucid.server.checks import check_names, refused
from pellucid.server.gate import Keys, client_of, unauthorized
from pellucid.server.metrics import Metrics
from pellucid.server.models import ModelPool
from pellucid.server.parsing import cache_salt_of
from pellucid.server.prefill import counts, model_name, prompt_ids
from pellucid.server.settings import ServerSettings
from pellucid.server.sockets import TYPE_AHEAD_PATH, JsonSocket, OpenSockets

HELD_BACK_TOKENS = 8
"""Tokens at the end of a text that is still being typed which are not computed yet."""
FIRST_MESSAGE_SECONDS = 10.0
"""What the first message may take."""
_SETTLED = ("model", "cache_salt", "user", "tools", "tool_choice", "chat_template_kwargs")
"""What the first message says once for all that follow."""


class TypeAhead:
    """The endpoint."""

    def __init__(self, models: ModelPool, settings: ServerSettings, metrics: Metrics) -> None:
        self.models, self.settings, self.metrics = models, settings, metrics
        self.keys = Keys(settings.api_key)
        self.open_sockets = OpenSockets(models, settings.max_websockets)

    def router(self) -> APIRouter:
        """The route, and what an ordinary request to its address is told."""
        router = APIRouter()
        router.add_api_websocket_route(TYPE_AHEAD_PATH, self.serve)
        router.add_api_route(TYPE_AHEAD_PATH, self.no_upgrade, methods=["GET"], include_in_schema=False)
        return router

    async def serve(self, socket: WebSocket) -> None:
        """See the module."""
        await socket.accept()
        await _Typist(self, JsonSocket(socket)).serve()

    async def no_upgrade(self) -> None:
        raise ApiError(
            426, f"{TYPE_AHEAD_PATH} is a WebSocket", code="upgrade_required", headers={"Upgrade": "websocket"}
        )


@dataclass(slots=True)
class _Typist:
    """One WebSocket: the latest text counts, and what is being computed for an earlier one is dropped for it."""

    endpoint: TypeAhead
    socket: JsonSocket
    settled: dict[str, Any] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)
    """The whole blocks that were computed last."""

    async def serve(self) -> None:
        """Until the client leaves, or something ends it."""
        async with self.socket.telling(all_are_final=True):
            try:
                async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
                    hello = await self.socket.receive()
            except TimeoutError:
                raise ApiError(
                    408, f"the first message did not come within {FIRST_MESSAGE_SECONDS:g} s", code="body_timeout"
                ) from None
            model = self._settle(hello)
            with self.endpoint.open_sockets.let_in(self.socket):
                await self.socket.send({"type": "ready", "model": model})
                await self._follow()

    def _settle(self, hello: dict[str, Any]) -> str:
        """{"api_key"?, "model"?, "cache_salt"?, …}: who asks, and what holds for all texts. Gives the model's name."""
        check_names(hello, {"api_key", *_SETTLED}, ())
        key = hello.pop("api_key", None)
        if key is not None and not isinstance(key, str):
            raise refused("api_key", "api_key must be a string")
        is_admitted = self.socket.connection.is_admitted and key is None
        if not is_admitted and not self.endpoint.keys.admit(self.socket.scope, key or ""):
            raise unauthorized("send it as `Authorization: Bearer KEY`, or as `api_key` of the first message")
        cache_salt_of(hello.get("cache_salt"))
        name = self.endpoint.models.find(model_name(hello)).name
        self.settled = hello
        self.socket.connection.notes |= {"model": name, "user": hello.get("user"), "prefilled_tokens": 0}
        return name

    async def _follow(self) -> None:
        """One text after the other."""
        computing: asyncio.Task[None] | None = None
        try:
            while True:
                async with self.socket.telling(all_are_final=False):
                    body = await self.socket.receive()
                    await _dropped(computing)
                    computing = asyncio.create_task(self._compute(body))
                if self.socket.is_over:
                    return
        finally:
            await _dropped(computing)

    async def _compute(self, body: dict[str, Any]) -> None:
        """Fill the cache with what is stable of the text, and say how much of it is there."""
        async with self.socket.telling(all_are_final=False):
            check_names(body, {"prompt", "messages"}, ())
            async with self.endpoint.models.using(model_name(self.settled)) as used:
                asked = {**self.settled, **body}
                ids = await prompt_ids(used.llm, asked, self.endpoint.settings, is_typed=True)
                output = await self._fill(used.llm, ids[: max(0, len(ids) - HELD_BACK_TOKENS)])
            num_computed = output.num_kept_tokens - output.num_cached_tokens
            self.socket.connection.notes["prefilled_tokens"] += num_computed
            self.endpoint.metrics.count_prefill(used.name, num_computed)
            await self.socket.send({"type": "prefilled", **counts(output), "prompt_tokens": len(ids)})

    async def _fill(self, llm: AsyncLLM, ids: list[int]) -> PrefillOutput:
        whole = ids[: len(ids) - len(ids) % llm.args.block_size]
        if whole == self.kept:  # a few more letters
            return PrefillOutput(len(ids), len(whole), len(whole))
        client = client_of(self.socket.scope, self.settled.get("user"))
        salt = cache_salt_of(self.settled.get("cache_salt"))
        output = await llm.prefill_ids(whole, cache_salt=salt, client=client)
        self.kept = whole
        return output


async def _dropped(computing: asyncio.Task[None] | None) -> None:
    """End what is computed for a text that counts no more, and wait for its end."""
    if computing is not None:
        computing.cancel()
        await asyncio.wait({computing})
