"""A JSON body → what is asked for. Every refusal names the field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pellucid.errors import PellucidError
from pellucid.sampling_params import SamplingParams
from pellucid.server.api_errors import ApiError, api_error
from pellucid.server.fields import CHAT, COMPLETIONS, DEFAULT_COMPLETION_TOKENS, Endpoint

MESSAGE_FIELDS = ("role", "content", "name")
ROLES = ("developer", "system", "user", "assistant")
MAX_METADATA = 16
MAX_LABEL_CHARS = 512


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A body that was understood."""

    model: str | None
    params: SamplingParams
    stream: bool
    include_usage: bool
    user: str | None


@dataclass(frozen=True, slots=True)
class CompletionRequest(ApiRequest):
    """A body of /v1/completions."""

    prompts: list[Any] = field(default_factory=list)
    """Texts, or lists of token ids."""
    echo: bool = False
    max_tokens_is_default: bool = False


@dataclass(frozen=True, slots=True)
class ChatRequest(ApiRequest):
    """A body of /v1/chat/completions."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    template_options: dict[str, Any] = field(default_factory=dict)


def parse_completion(body: dict[str, Any]) -> CompletionRequest:
    """Raises `ApiError`."""
    check_names(body, COMPLETIONS.known, COMPLETIONS.required)
    _check_unserved(body, COMPLETIONS)
    given = {name: body[name] for name in COMPLETIONS.sampling if body.get(name) is not None}
    echo = boolean(body, "echo")
    if echo and given.get("prompt_logprobs") is not None:
        raise refused("prompt_logprobs", "prompt_logprobs and echo exclude each other: echo with logprobs has them")
    if echo and given.get("logprobs") is not None:
        given["prompt_logprobs"] = given["logprobs"]
    is_default = "max_tokens" not in given
    if is_default:
        given["max_tokens"] = DEFAULT_COMPLETION_TOKENS
    params = _params(given, COMPLETIONS)
    if body.get("best_of") is not None and not same(body["best_of"], params.n):
        raise refused("best_of", f"best_of is {shown(body['best_of'])}, but only n ({params.n}) is served")
    return CompletionRequest(
        **_common(body, params, echo=echo),
        prompts=list_prompts(body["prompt"]),
        echo=echo,
        max_tokens_is_default=is_default,
    )


def parse_chat(body: dict[str, Any], *, maps_developer: bool) -> ChatRequest:
    """maps_developer: the template does not know the role `developer`, so it becomes `system`. Raises `ApiError`."""
    check_names(body, CHAT.known, CHAT.required)
    _check_unserved(body, CHAT)
    given = {name: body[name] for name in CHAT.sampling if body.get(name) is not None}
    renamed = dict(CHAT.renamed)
    limits = {name: body[name] for name in ("max_tokens", "max_completion_tokens") if body.get(name) is not None}
    if limits:
        if len(limits) == 2 and not same(*limits.values()):
            raise refused("max_tokens", "max_tokens and max_completion_tokens differ: give one of them")
        if "max_completion_tokens" in limits:
            renamed["max_tokens"] = "max_completion_tokens"
        given["max_tokens"] = next(iter(limits.values()))
    wants_logprobs = boolean(body, "logprobs")
    top = body.get("top_logprobs")
    if top is not None and not wants_logprobs:
        raise refused("top_logprobs", "top_logprobs needs logprobs to be true")
    if wants_logprobs:
        given["logprobs"] = 0 if top is None else top
    params = _params(given, CHAT, renamed)
    return ChatRequest(
        **_common(body, params),
        messages=check_messages(body["messages"], maps_developer=maps_developer),
        template_options=template_options(body),
    )


def template_options(body: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `encode_chat` that a body has."""
    variables = body.get("chat_template_kwargs") or {}
    if not isinstance(variables, dict):
        raise refused("chat_template_kwargs", "chat_template_kwargs must be an object")
    taken = {"messages", "tools", "documents", "tokenizer", "chat_template", "add_generation_prompt"}
    taken |= {"continue_final_message", "bos_token", "eos_token", "self"}
    if set(variables) & taken:
        name = sorted(set(variables) & taken)[0]
        raise refused("chat_template_kwargs", f"chat_template_kwargs cannot have {name}")
    flags = ("add_generation_prompt", "continue_final_message")
    return {**variables, **{name: boolean(body, name) for name in flags if body.get(name) is not None}}


def list_prompts(prompt: Any) -> list[Any]:
    """A text, several, a list of ids or several → a list of prompts."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, int) and not isinstance(item, bool) for item in prompt):
            return [prompt]
        if all(isinstance(item, str) for item in prompt) or all(isinstance(item, list) for item in prompt):
            return prompt
    raise refused(
        "prompt", "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids"
    )


def check_messages(messages: Any, *, maps_developer: bool) -> list[dict[str, Any]]:
    """Messages as the template gets them; contents are checked when it is rendered."""
    if not isinstance(messages, list):
        raise refused("messages", "messages must be a list of {role, content} objects")
    return [_check_message(m, f"messages[{i}]", maps_developer) for i, m in enumerate(messages)]


def _check_message(message: Any, place: str, maps_developer: bool) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise refused(place, f"{place} must be an object with role and content")
    for name, value in message.items():
        if name not in MESSAGE_FIELDS and value not in (None, [], ""):
            allowed = ", ".join(MESSAGE_FIELDS)
            raise refused(f"{place}.{name}", f"{place}.{shown(name)} is not served; a message has {allowed}")
    role, name = message.get("role"), message.get("name")
    if role not in ROLES:
        raise refused(f"{place}.role", f"{place}.role is {shown(role)}, but must be one of {', '.join(ROLES)}")
    if name is not None and not isinstance(name, str):
        raise refused(f"{place}.name", f"{place}.name must be a string")
    plain = {key: message[key] for key in MESSAGE_FIELDS if message.get(key) is not None}
    return {**plain, "role": "system"} if role == "developer" and maps_developer else plain


def check_names(body: Mapping[str, Any], known: set[str], required: tuple[str, ...]) -> None:
    """Refuse what nobody knows, and what lacks."""
    for name in body:
        if name not in known:
            close = difflib.get_close_matches(name[:64], known, n=1)
            hint = f", did you mean {close[0]}?" if close else ""
            raise ApiError(400, f"unknown field {shown(name)}{hint}", param=name[:64], code="unknown_field")
    for name in required:
        if body.get(name) is None:
            raise ApiError(400, f"{name} is missing", param=name, code="missing_field")
    if body.get("model") is not None and not isinstance(body["model"], str):
        raise refused("model", "model must be a string")


def boolean(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """A field that is true, false, or null for its default."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise refused(name, f"{name} is {shown(value)}, but must be true or false")
    return value


def refused(param: str, message: str, code: str = "invalid_parameter") -> ApiError:
    """A value that cannot be taken."""
    return ApiError(400, message, param=param, code=code)


def same(value: Any, other: Any) -> bool:
    """Equal, and of one type: in JSON 1 is not true."""
    return type(value) is type(other) and bool(value == other)


def shown(value: Any) -> str:
    """A value as a message can hold it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _params(given: dict[str, Any], endpoint: Endpoint, renamed: Mapping[str, str] | None = None) -> SamplingParams:
    try:
        return SamplingParams(**given)
    except PellucidError as error:
        raise api_error(error, endpoint.renamed if renamed is None else renamed) from None


def _common(body: Mapping[str, Any], params: SamplingParams, *, echo: bool = False) -> dict[str, Any]:
    stream = boolean(body, "stream")
    options = body.get("stream_options")
    if stream and params.prompt_logprobs is not None and not echo:
        raise refused("prompt_logprobs", "prompt_logprobs is not served with stream")
    return {
        "model": body.get("model"),
        "params": params,
        "stream": stream,
        "include_usage": options is not None and _include_usage(options, stream),
        "user": body.get("user"),
    }


def _include_usage(options: Any, stream: bool) -> bool:
    if not stream:
        raise refused("stream_options", "stream_options needs stream to be true")
    if not isinstance(options, dict):
        raise refused("stream_options", "stream_options must be an object")
    for name, value in options.items():
        neutral = name == "include_obfuscation" and value in (None, False)
        if name != "include_usage" and not neutral:
            raise refused(f"stream_options.{name[:64]}", f"stream_options has {shown(name)}, which is not served")
    return boolean(options, "include_usage")


def _check_unserved(body: Mapping[str, Any], endpoint: Endpoint) -> None:
    for name, unserved in endpoint.unserved.items():
        value = body.get(name)
        if value is not None and not any(same(value, neutral) for neutral in unserved.neutral):
            allowed = " or ".join(["null", *map(repr, unserved.neutral)])
            raise refused(name, f"{name} is not served; it may only be {allowed}", "unsupported_parameter")
    for name, kind in endpoint.labels.items():
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, kind):
            raise refused(name, f"{name} must be {'a string' if kind is str else 'an object'}")
        if isinstance(value, str) and len(value) > MAX_LABEL_CHARS:
            raise refused(name, f"{name} is longer than {MAX_LABEL_CHARS} characters")
        if isinstance(value, dict) and not (
            len(value) <= MAX_METADATA
            and all(isinstance(v, str) and len(v) <= MAX_LABEL_CHARS and len(k) <= 64 for k, v in value.items())
        ):
            raise refused(name, f"{name} must have at most {MAX_METADATA} short names with strings as values")
