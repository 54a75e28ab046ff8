"""Filling the prefix cache ahead of a request: POST /v1/prefill. type_ahead.py does it for text that is being typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from pellucid.engine.async_llm import AsyncLLM
from pellucid.errors import PellucidError
from pellucid.outputs import PrefillOutput
from pellucid.server.api_errors import api_error
from pellucid.server.chat_format import chat_format
from pellucid.server.checks import check_names, refused
from pellucid.server.fields import CHAT, Schema
from pellucid.server.gate import NOTES, client_of
from pellucid.server.messages import check_messages
from pellucid.server.metrics import Metrics
from pellucid.server.models import ModelPool
from pellucid.server.parsing import cache_salt_of, chat_prompt, template_options
from pellucid.server.settings import ServerSettings
from pellucid.server.tools import parse_tools
from pellucid.server.wire import JsonResponse, read_object

_TEMPLATE = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")
PREFILL: Schema = {
    "type": "object",
    "properties": {
        "model": CHAT.own["model"],
        "prompt": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}, {"type": "null"}],
            "description": "A raw prompt: text, or ids.",
        },
        **{name: CHAT.own[name] for name in ("messages", "tools", "tool_choice", "cache_salt", *_TEMPLATE)},
        "user": {"type": ["string", "null"]},
    },
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class PrefillRoutes:
    """The handler."""

    models: ModelPool
    settings: ServerSettings
    metrics: Metrics

    def router(self) -> APIRouter:
        """The endpoint."""
        router = APIRouter()
        body = {"requestBody": {"required": True, "content": {"application/json": {"schema": PREFILL}}}}
        summary = "Fill the prefix cache with a prompt that will be asked for"
        router.add_api_route("/v1/prefill", self.prefill, methods=["POST"], summary=summary, openapi_extra=body)
        return router

    async def prefill(self, request: Request) -> Response:
        """The whole prompt, as the request that follows will have it."""
        body = await read_object(request, self.settings.max_body_bytes)
        check_names(body, set(PREFILL["properties"]), ())
        used = await self.models.acquire(request.scope, model_name(body))
        request.scope[NOTES]["model"] = used.name
        ids = await prompt_ids(used.llm, body, self.settings)
        try:
            output = await used.llm.prefill_ids(
                ids, cache_salt=cache_salt_of(body.get("cache_salt")), client=client_of(request.scope, body.get("user"))
            )
        except PellucidError as error:
            raise api_error(error, CHAT.renamed if "messages" in body else None) from None
        self.metrics.count_prefill(used.name, output.num_kept_tokens - output.num_cached_tokens)
        return JsonResponse({"object": "prefill", "model": used.name, **counts(output)})


async def prompt_ids(
    llm: AsyncLLM, body: Mapping[str, Any], settings: ServerSettings, *, is_typed: bool = False
) -> list[int]:
    """What a prompt or messages become; the last message is left open where more will be typed. Raises `ApiError`."""
    if (body.get("prompt") is None) == (body.get("messages") is None):
        raise refused("prompt", "give either prompt or messages")
    prompt: Any = body.get("prompt")
    options: dict[str, Any] = {}
    if prompt is None:
        format = chat_format(llm.tokenizer, settings.tool_call_parser, settings.reasoning_parser)
        messages = check_messages(body["messages"], maps_developer=format.maps_developer)
        chosen = {**template_options(body), **({"continue_final_message": True} if is_typed else {})}
        prompt, options = chat_prompt(messages, chosen, parse_tools(body), format)
    else:
        _check_prompt(body, prompt, is_typed)
    try:
        return list((await llm.encode(prompt, **options)).token_ids)
    except PellucidError as error:
        raise api_error(error, CHAT.renamed if body.get("prompt") is None else None) from None


def _check_prompt(body: Mapping[str, Any], prompt: Any, is_typed: bool) -> None:
    is_ids = isinstance(prompt, list) and all(type(item) is int for item in prompt) and not is_typed
    if not isinstance(prompt, str) and not is_ids:
        raise refused("prompt", "prompt must be a string" + ("" if is_typed else " or a list of token ids"))
    for name in (*_TEMPLATE, "tools", "tool_choice"):
        if body.get(name) is not None:
            raise refused(name, f"{name} goes with messages, which follow the chat template")


def model_name(body: Mapping[str, Any]) -> str | None:
    """The model that the body names; `user` is checked too."""
    name = body.get("model")
    if name is not None and not isinstance(name, str):
        raise refused("model", "model must be a string")
    if body.get("user") is not None and not isinstance(body["user"], str):
        raise refused("user", "user must be a string")
    return name


def counts(output: PrefillOutput) -> dict[str, int]:
    """As an answer has them."""
    return {
        "prompt_tokens": output.num_prompt_tokens,
        "cached_tokens": output.num_cached_tokens,
        "kept_tokens": output.num_kept_tokens,
    }
