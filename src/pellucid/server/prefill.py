"""Filling the prefix cache ahead of a request: POST /v1/prefill, and a WebSocket for text that is still being typed.

Over the WebSocket every message has the text so far. What will still change at its end is held back: the last tokens
may become others with the next letter. The rest is computed whenever nothing else is to be, block by block, so that
what a later message replaces is not lost; when the request comes, only the end is left to compute.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request, WebSocket
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

from pellucid.engine.async_llm import AsyncLLM
from pellucid.errors import PellucidError
from pellucid.outputs import PrefillOutput
from pellucid.server.api_errors import ApiError, api_error
from pellucid.server.chat_format import chat_format
from pellucid.server.checks import check_names, refused
from pellucid.server.fields import CHAT, Schema
from pellucid.server.gate import KEY, NOTES, client_of, matching_key, unauthorized
from pellucid.server.messages import check_messages
from pellucid.server.models import ModelPool
from pellucid.server.origins import may_connect
from pellucid.server.parsing import cache_salt_of, chat_prompt, template_options
from pellucid.server.settings import ServerSettings
from pellucid.server.tools import parse_tools
from pellucid.server.wire import JsonResponse, read_object

HELD_BACK_TOKENS = 8
"""Tokens at the end of a text that is still being typed which are not computed yet."""
HELLO_SECONDS = 10.0
"""What a WebSocket's first message may take."""
_POLICY_VIOLATION = 1008
_TEMPLATE = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")
_SETTLED = ("model", "cache_salt", "user", "tools", "tool_choice", "chat_template_kwargs")
"""What the first message of a WebSocket says once for all that follow."""

PREFILL: Schema = {
    "type": "object",
    "properties": {
        "model": CHAT.own["model"],
        "prompt": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}],
            "description": "A raw prompt: text, or ids.",
        },
        **{name: CHAT.own[name] for name in ("messages", "tools", "tool_choice", "cache_salt", *_TEMPLATE)},
        "user": {"type": ["string", "null"]},
    },
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class PrefillRoutes:
    """The handlers."""

    models: ModelPool
    settings: ServerSettings

    def router(self) -> APIRouter:
        """Both endpoints."""
        router = APIRouter()
        body = {"requestBody": {"required": True, "content": {"application/json": {"schema": PREFILL}}}}
        summary = "Fill the prefix cache with a prompt that will be asked for"
        router.add_api_route("/v1/prefill", self.prefill, methods=["POST"], summary=summary, openapi_extra=body)
        router.add_api_websocket_route("/v1/prefill/ws", self.type_ahead)
        return router

    async def prefill(self, request: Request) -> Response:
        """The whole prompt, as the request that follows will have it."""
        body = await read_object(request, self.settings.max_body_bytes)
        check_names(body, set(PREFILL["properties"]), ())
        name = _model_name(body)
        used = await self.models.acquire(request.scope, name)
        request.scope[NOTES]["model"] = used.name
        ids = await self._ids(used.llm, body)
        try:
            output = await used.llm.prefill_ids(
                ids, cache_salt=cache_salt_of(body.get("cache_salt")), client=client_of(request.scope, body.get("user"))
            )
        except PellucidError as error:
            raise api_error(error, CHAT.renamed if "messages" in body else None) from None
        return JsonResponse({"object": "prefill", "model": used.name, **_counts(output)})

    async def type_ahead(self, socket: WebSocket) -> None:
        """See the module."""
        if not may_connect(socket.headers, self.settings):
            await socket.close(_POLICY_VIOLATION)
            return
        await socket.accept()
        typist = _Typist(self, socket)
        with suppress(WebSocketDisconnect, RuntimeError):  # gone while something was being sent
            await typist.serve()

    async def _ids(self, llm: AsyncLLM, body: Mapping[str, Any], *, is_typed: bool = False) -> list[int]:
        """What a prompt or messages become; the last message is left open where more will be typed."""
        if (body.get("prompt") is None) == (body.get("messages") is None):
            raise refused("prompt", "give either prompt or messages")
        prompt: Any = body.get("prompt")
        options: dict[str, Any] = {}
        if prompt is None:
            format = chat_format(llm.tokenizer, self.settings.tool_call_parser, self.settings.reasoning_parser)
            messages = check_messages(body["messages"], maps_developer=format.maps_developer)
            chosen = {**template_options(body), **({"continue_final_message": True} if is_typed else {})}
            prompt, options = chat_prompt(messages, chosen, parse_tools(body), format)
        else:
            _check_prompt(body, prompt, is_typed)
        try:
            return list((await llm.encode(prompt, **options)).token_ids)
        except PellucidError as error:
            raise api_error(error, CHAT.renamed if body.get("prompt") is None else None) from None


@dataclass(slots=True)
class _Typist:
    """One WebSocket: the latest text counts, and what is being computed for an earlier one is dropped for it."""

    routes: PrefillRoutes
    socket: WebSocket
    settled: dict[str, Any] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)
    """The whole blocks that were computed last."""

    async def serve(self) -> None:
        """Until the client leaves, or its key is wrong."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await self._hello(await self._receive())
        except TimeoutError:
            await self._refuse(ApiError(408, f"the first message did not come within {HELLO_SECONDS:g} s"))
            await self.socket.close(_POLICY_VIOLATION)
            return
        except ApiError as error:
            await self._refuse(error)
            await self.socket.close(_POLICY_VIOLATION)
            return
        computing: asyncio.Task[None] | None = None
        try:
            while True:
                try:
                    body = await self._receive()
                except ApiError as error:
                    await self._refuse(error)
                    continue
                if computing is not None:
                    computing.cancel()
                    with suppress(asyncio.CancelledError):
                        await computing
                computing = asyncio.create_task(self._compute(body))
        finally:
            if computing is not None:
                computing.cancel()

    async def _hello(self, body: dict[str, Any]) -> None:
        """{"api_key"?, "model"?, "cache_salt"?, …}: who asks, and what holds for all texts."""
        settings = self.routes.settings
        check_names(body, {"api_key", *_SETTLED}, ())
        key = body.pop("api_key", None)
        if settings.api_key:
            place = matching_key(settings.api_key, key if isinstance(key, str) else "")
            if place is None:
                raise unauthorized()
            if len(settings.api_key) > 1:
                self.socket.scope[KEY] = f"key {place}"
        cache_salt_of(body.get("cache_salt"))
        name = self.routes.models.find(_model_name(body)).name
        self.settled = body
        await self._send({"type": "ready", "model": name})

    async def _compute(self, body: dict[str, Any]) -> None:
        """Fill the cache with what is stable of the text, and say how much of it is there."""
        try:
            check_names(body, {"prompt", "messages"}, ())
            async with self.routes.models.using(_model_name(self.settled)) as used:
                llm = used.llm
                ids = await self.routes._ids(llm, {**self.settled, **body}, is_typed=True)
                stable = ids[: max(0, len(ids) - HELD_BACK_TOKENS)]
                output = await self._fill(llm, stable)
            counts = {**_counts(output), "prompt_tokens": len(ids)}
            await self._send({"type": "prefilled", **counts})
        except ApiError as error:
            await self._refuse(error)
        except PellucidError as error:
            await self._refuse(api_error(error))

    async def _fill(self, llm: AsyncLLM, ids: list[int]) -> PrefillOutput:
        whole = ids[: len(ids) - len(ids) % llm.args.block_size]
        if whole == self.kept:  # a few more letters
            return PrefillOutput(len(ids), len(whole), len(whole))
        client = client_of(self.socket.scope, self.settled.get("user"))
        salt = cache_salt_of(self.settled.get("cache_salt"))
        output = await llm.prefill_ids(whole, cache_salt=salt, client=client)
        self.kept = whole
        return output

    async def _receive(self) -> dict[str, Any]:
        message = await self.socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1000))
        text = message.get("text")
        limit = self.routes.settings.max_body_bytes
        if text is None or len(text) > limit:
            raise ApiError(413, f"a message must be text of at most {limit} characters", code="body_too_large")
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            raise ApiError(400, "the message is not valid JSON", code="invalid_json") from None
        if not isinstance(body, dict):
            raise ApiError(400, "the message must be a JSON object", code="invalid_json")
        return body

    async def _send(self, value: Any) -> None:
        await self.socket.send_text(json.dumps(value))

    async def _refuse(self, error: ApiError) -> None:
        await self._send({"type": "error", **error.body})


def _check_prompt(body: Mapping[str, Any], prompt: Any, is_typed: bool) -> None:
    is_ids = isinstance(prompt, list) and all(type(item) is int for item in prompt) and not is_typed
    if not isinstance(prompt, str) and not is_ids:
        raise refused("prompt", "prompt must be a string" + ("" if is_typed else " or a list of token ids"))
    for name in (*_TEMPLATE, "tools", "tool_choice"):
        if body.get(name) is not None:
            raise refused(name, f"{name} goes with messages, which follow the chat template")


def _model_name(body: Mapping[str, Any]) -> str | None:
    name = body.get("model")
    if name is not None and not isinstance(name, str):
        raise refused("model", "model must be a string")
    if body.get("user") is not None and not isinstance(body["user"], str):
        raise refused("user", "user must be a string")
    return name


def _counts(output: PrefillOutput) -> dict[str, int]:
    return {
        "prompt_tokens": output.num_prompt_tokens,
        "cached_tokens": output.num_cached_tokens,
        "kept_tokens": output.num_kept_tokens,
    }
