"""The endpoints."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from pellucid.engine.async_llm import AsyncLLM
from pellucid.engine.overflow import FittedPrompt
from pellucid.engine.side_work import SideWork
from pellucid.errors import PellucidError
from pellucid.sampling_params import SamplingParams
from pellucid.server.answers import Answers
from pellucid.server.api_errors import api_error, retry_header
from pellucid.server.chat_answers import ChatAnswers
from pellucid.server.chat_format import ChatFormat, chat_format
from pellucid.server.checks import boolean, check_names, refused
from pellucid.server.completion_answers import CompletionAnswers
from pellucid.server.delivery import EventStream, whole_answer
from pellucid.server.fields import CHAT, COMPLETIONS, Schema
from pellucid.server.gate import FOLLOWED, NOTES, client_of, follow
from pellucid.server.messages import check_messages
from pellucid.server.metrics import Metrics
from pellucid.server.models import Model, ModelInUse, ModelPool
from pellucid.server.parsing import (
    ApiRequest,
    ChatRequest,
    CompletionRequest,
    chat_prompt,
    parse_chat,
    parse_completion,
    template_options,
)
from pellucid.server.response_format import names
from pellucid.server.responses.answers import ResponseAnswers
from pellucid.server.responses.fields import RESPONSES
from pellucid.server.responses.request import parse_response, shape_name
from pellucid.server.settings import ServerSettings
from pellucid.server.tools import parse_tools
from pellucid.server.traces import TraceRoutes
from pellucid.server.wire import JsonResponse, dump, read_object
from pellucid.structured_outputs import NAME

_TOKENIZE_CHAT = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")
TOKENIZE: Schema = {
    "type": "object",
    "properties": {
        "model": {"type": "string"},
        "prompt": {"type": "string"},
        "messages": CHAT.own["messages"],
        "add_special_tokens": {"type": "boolean", "default": True, "description": "For prompt: BOS where wanted."},
        "parse_special": {"type": "boolean", "default": False, "description": "Control strings become tokens."},
        "return_token_strs": {"type": "boolean", "default": False},
        **{name: CHAT.own[name] for name in _TOKENIZE_CHAT},
    },
    "additionalProperties": False,
}
DETOKENIZE: Schema = {
    "type": "object",
    "properties": {
        "model": {"type": "string"},
        "tokens": {"type": "array", "items": {"type": "integer"}},
        "skip_special_tokens": {"type": "boolean", "default": False},
    },
    "required": ["tokens"],
    "additionalProperties": False,
}


def _body(schema: Schema) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@dataclass(frozen=True, slots=True)
class Routes:
    """The handlers, with what they share."""

    models: ModelPool
    settings: ServerSettings
    metrics: Metrics
    version: str
    traces: TraceRoutes
    converting: SideWork = field(default_factory=lambda: SideWork("tokenize"))
    """For /tokenize and /detokenize."""

    def router(self) -> APIRouter:
        """All endpoints."""
        router = APIRouter()
        add = router.add_api_route
        one, many = {"methods": ["GET"]}, {"methods": ["POST"]}
        add("/v1/models", self.list_models, summary="The models that are served", **one)  # type: ignore[arg-type]
        add("/v1/models/{model:path}", self.model, summary="One model", **one)  # type: ignore[arg-type]
        posts = (
            ("/v1/completions", self.completions, "Continue a raw prompt", COMPLETIONS.schema()),
            ("/v1/chat/completions", self.chat, "Answer messages", CHAT.schema()),
            ("/v1/responses", self.responses, "Answer a text or items", RESPONSES.schema()),
            ("/tokenize", self.tokenize, "Text or messages to token ids", TOKENIZE),
            ("/detokenize", self.detokenize, "Token ids to text", DETOKENIZE),
        )
        for path, handler, summary, schema in posts:
            add(path, handler, summary=summary, openapi_extra=_body(schema), **many)  # type: ignore[arg-type]
        add("/health", self.health, summary="200 while the engine runs", **one)  # type: ignore[arg-type]
        add("/ready", self.ready, summary="200 while new requests are taken", **one)  # type: ignore[arg-type]
        add("/version", self.get_version, summary="Pellucid's version", **one)  # type: ignore[arg-type]
        add("/metrics", self.get_metrics, summary="For Prometheus", **one)  # type: ignore[arg-type]
        return router

    async def list_models(self) -> Response:
        return JsonResponse({"object": "list", "data": [self._model(model) for model in self.models.models]})

    async def model(self, model: str) -> Response:
        return JsonResponse(self._model(self.models.find(model)))

    async def completions(self, request: Request) -> Response:
        body = await read_object(request, self.settings.max_body_bytes)
        parsed = parse_completion(body)
        self._note(request, parsed, {"prompt": parsed.prompts})
        used = await self._use(request, body)
        _check_count(used.llm, len(parsed.prompts) * parsed.params.n)
        prompts = [await _encode(used.llm, prompt, request, parsed) for prompt in parsed.prompts]
        params = [_fitting(used.llm, parsed, prompt) for prompt in prompts]
        return await self._answer(
            request, used, parsed, prompts, params, CompletionAnswers, "cmpl-", {**COMPLETIONS.renamed, **names(body)}
        )

    async def chat(self, request: Request) -> Response:
        body = await read_object(request, self.settings.max_body_bytes)
        used = await self._use(request, body)
        parsed = parse_chat(body, self._format(used.llm))
        self._note(request, parsed, {"messages": parsed.messages})
        prompt = await _encode(used.llm, parsed.messages, request, parsed, **parsed.template_options)
        renamed = {**CHAT.renamed, **names(body)}
        params = _shaped(used.llm, parsed, prompt, renamed)
        if body.get("max_completion_tokens") is not None:
            renamed["max_tokens"] = "max_completion_tokens"
        return await self._answer(request, used, parsed, [prompt], [params], ChatAnswers, "chatcmpl-", renamed)

    async def responses(self, request: Request) -> Response:
        body = await read_object(request, self.settings.max_body_bytes)
        used = await self._use(request, body)
        parsed = parse_response(body, self._format(used.llm))
        self._note(request, parsed, {"messages": parsed.messages})
        prompt = await _encode(used.llm, parsed.messages, request, parsed, RESPONSES.renamed, **parsed.template_options)
        renamed = {**RESPONSES.renamed, **shape_name(body)}
        params = _shaped(used.llm, parsed, prompt, renamed)
        return await self._answer(request, used, parsed, [prompt], [params], ResponseAnswers, "resp_", renamed)

    async def tokenize(self, request: Request) -> Response:
        body = await read_object(request, self.settings.max_body_bytes)
        check_names(body, set(TOKENIZE["properties"]), ())
        llm = (await self._use(request, body)).llm
        flags = {name: boolean(body, name, default) for name, default in _TOKENIZE_FLAGS.items()}
        if (body.get("prompt") is None) == (body.get("messages") is None):
            raise refused("prompt", "give either prompt or messages")
        if body.get("messages") is not None:
            for name in ("add_special_tokens", "parse_special"):
                if body.get(name) is not None:
                    raise refused(name, f"{name} goes with prompt; messages follow the chat template")
            format = self._format(llm)
            messages = check_messages(body["messages"], maps_developer=format.maps_developer)
            messages, options = chat_prompt(messages, template_options(body), parse_tools(body), format)
            try:
                ids = (await llm.encode(messages, may_be_too_long=True, **options)).token_ids
            except PellucidError as error:
                raise api_error(error) from None
        else:
            for name in _TOKENIZE_CHAT:
                if body.get(name) is not None:
                    raise refused(name, f"{name} goes with messages; a prompt follows no chat template")
            ids = await self._tokenize_text(llm, body, flags)
        # in a thread, because a body may have millions of tokens
        content = await self.converting.run(len(ids), _tokens_content, llm, ids, flags["return_token_strs"])
        return Response(content, media_type="application/json")

    async def detokenize(self, request: Request) -> Response:
        body = await read_object(request, self.settings.max_body_bytes)
        check_names(body, set(DETOKENIZE["properties"]), ("tokens",))
        llm = (await self._use(request, body)).llm
        tokens, vocab_size = body["tokens"], llm.config.vocab_size
        if not isinstance(tokens, list) or not all(type(i) is int and 0 <= i < vocab_size for i in tokens):
            raise refused("tokens", f"tokens must be a list of token ids, whole numbers from 0 to {vocab_size - 1}")
        skip = boolean(body, "skip_special_tokens")
        text = await self.converting.run(len(tokens), llm.tokenizer.decode, tokens, skip_special_tokens=skip)
        return JsonResponse({"prompt": text})

    async def _tokenize_text(self, llm: AsyncLLM, body: dict[str, Any], flags: dict[str, bool]) -> list[int]:
        text = body["prompt"]
        if not isinstance(text, str):
            raise refused("prompt", "prompt must be a string")
        options = {name: flags[name] for name in ("add_special_tokens", "parse_special")}
        try:
            ids: list[int] = await self.converting.run(len(text), llm.tokenizer.encode, text, **options)
        except PellucidError as error:
            raise api_error(error) from None
        return ids

    async def health(self) -> Response:
        return _state(self.models.is_alive)

    async def ready(self) -> Response:
        return _state(self.models.is_ready)

    async def get_version(self) -> Response:
        return JsonResponse({"version": self.version})

    async def get_metrics(self) -> Response:
        page, content_type = self.metrics.page()
        return Response(page, media_type=content_type)

    async def _answer(
        self,
        request: Request,
        used: ModelInUse,
        parsed: ApiRequest,
        prompts: list[FittedPrompt],
        params: list[SamplingParams],
        kind: type[Answers],
        prefix: str,
        renamed: Any,
    ) -> Response:
        name = f"{prefix}{uuid.uuid4().hex}"
        self.traces.check_level(parsed.trace)
        if parsed.trace:
            self.traces.note(request, used.name, name, len(prompts))
        try:
            stream = await used.llm.submit(
                prompts,
                params,
                request_id=name,
                arrival_time=request.scope[FOLLOWED].arrival_time,
                priority=parsed.priority,
                cache_salt=parsed.cache_salt,
                client=client_of(request.scope, parsed.user),
                trace_level=parsed.trace,
            )
        except PellucidError as error:
            raise api_error(error, renamed) from None
        follow(request.scope, stream, params)
        notes = request.scope[NOTES]
        notes["id"] = name
        if parsed.trace:
            notes["trace"] = parsed.trace
        answers = kind(name, used.name, parsed, stream.request_ids, used.llm.tokenizer, keep=not parsed.stream)
        if parsed.stream:
            return EventStream(stream, answers, notes, renamed)
        try:
            return await whole_answer(request, stream, answers, notes, renamed)
        except PellucidError as error:
            raise api_error(error) from None

    async def _use(self, request: Request, body: dict[str, Any]) -> ModelInUse:
        """The model that the body names, loaded, until the answer is delivered."""
        name = body.get("model")
        if name is not None and not isinstance(name, str):
            raise refused("model", "model must be a string")
        used = await self.models.acquire(request.scope, name)
        request.scope[NOTES]["model"] = used.name
        return used

    def _format(self, llm: AsyncLLM) -> ChatFormat:
        return chat_format(llm.tokenizer, self.settings.tool_call_parser, self.settings.reasoning_parser)

    def _model(self, model: Model) -> dict[str, Any]:
        return {
            "id": model.name,
            "object": "model",
            "created": self.models.created,
            "owned_by": "pellucid",
            "max_model_len": None if model.llm is None else model.llm.max_model_len,
        }

    def _note(self, request: Request, parsed: ApiRequest, prompt: dict[str, Any]) -> None:
        """Leave what the access log should have."""
        notes = request.scope[NOTES]
        notes["stream"], notes["user"] = parsed.stream, parsed.user
        if self.settings.log_prompts:
            notes |= prompt


def _shaped(llm: AsyncLLM, parsed: ChatRequest, prompt: FittedPrompt, renamed: dict[str, str]) -> SamplingParams:
    """The parameters with what the answer must be; `renamed` learns what the body calls it."""
    params = parsed.shaped(prompt.text or "", llm.tokenizer.special_tokens, renamed)
    if parsed.tool_use is not None and params is not parsed.params:
        renamed[NAME] = "tools"
    return params


async def _encode(
    llm: AsyncLLM,
    prompt: Any,
    request: Request,
    parsed: ApiRequest,
    names: Mapping[str, str] | None = None,
    **options: Any,
) -> FittedPrompt:
    """The prompt's ids, shortened where it does not fit and the request's `overflow` says so."""
    client = client_of(request.scope, parsed.user)
    scoring = {"priority": parsed.priority, "cache_salt": parsed.cache_salt, "client": client}
    try:
        return await llm.encode(prompt, parsed.params, scoring=scoring, **options)
    except PellucidError as error:
        raise api_error(error, names) from None


def _tokens_content(llm: AsyncLLM, ids: Sequence[int], with_texts: bool) -> bytes:
    answer = {"count": len(ids), "max_model_len": llm.max_model_len, "tokens": list(ids)}
    if with_texts:
        answer["token_strs"] = [llm.tokenizer.token_text(i) for i in ids]
    return dump(answer)


def _check_count(llm: AsyncLLM, num_sequences: int) -> None:
    try:
        llm.check_num_sequences(num_sequences)
    except PellucidError as error:
        raise api_error(error) from None


def _fitting(llm: AsyncLLM, parsed: CompletionRequest, prompt: FittedPrompt) -> SamplingParams:
    """The default of max_tokens gives way where less room is left; what a client asks for never does."""
    limit = parsed.params.max_tokens
    if parsed.max_tokens_is_default and limit and len(prompt.token_ids) + limit > llm.max_model_len:
        return replace(parsed.params, max_tokens=None)
    return parsed.params


_TOKENIZE_FLAGS = {"add_special_tokens": True, "parse_special": False, "return_token_strs": False}


def _state(is_good: bool) -> Response:
    if is_good:
        return JsonResponse({"status": "ok"})
    return JsonResponse({"status": "unavailable"}, 503, retry_header(503))
