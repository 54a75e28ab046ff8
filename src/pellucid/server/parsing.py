"""A JSON body → what is asked for. Every refusal names the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pellucid.errors import PellucidError
from pellucid.sampling_params import SamplingParams
from pellucid.server.api_errors import api_error
from pellucid.server.chat_format import ChatFormat
from pellucid.server.checks import boolean, check_inner, check_names, check_neutral, refused, same, shown
from pellucid.server.fields import CHAT, COMPLETIONS, DEFAULT_COMPLETION_TOKENS, REASONING_EFFORTS, Endpoint
from pellucid.server.harmony_history import harmony_history
from pellucid.server.messages import check_messages
from pellucid.server.output.choice import ChoiceParser
from pellucid.server.response_format import names, parse_structured_outputs
from pellucid.server.tool_prompt import messages_with_tools
from pellucid.server.tools import ToolUse, parse_tools
from pellucid.trace.events import LEVEL_HELP, MAX_LEVEL

MAX_PRIORITY = 2**31 - 1
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
    priority: int = 0
    cache_salt: str = ""
    trace: int = 0


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
    """As the template gets them."""
    template_options: dict[str, Any] = field(default_factory=dict)
    format: ChatFormat | None = None
    tool_use: ToolUse | None = None

    def parser(self, prompt: str) -> ChoiceParser:
        """A parser for one of the answers to the rendered prompt."""
        if self.format is None:
            return ChoiceParser()
        return self.format.parser(self.tool_use, prompt, self._going_on)

    @property
    def _going_on(self) -> str:
        continues = self.template_options.get("continue_final_message")
        return str(self.messages[-1].get("content", "")) if continues else ""

    def num_reasoning_tokens(self, token_ids: list[int], prompt: str, tokenizer: Any) -> int:
        """How many tokens of an answer are reasoning, with its marks; the rendered prompt tells where it begins."""
        assert self.format is not None
        return self.format.num_reasoning_tokens(
            token_ids, prompt, self._going_on, tokenizer, skip_special_tokens=self.params.skip_special_tokens
        )

    def shaped(self, prompt: str, controls: Mapping[str, int], names: Mapping[str, str]) -> SamplingParams:
        """The parameters with what the answer must be: calls, a shape, reasoning before them. Raises `ApiError`.

        prompt: as rendered. controls: ids of control tokens. names: what the body calls `structured_outputs`.
        """
        if self.format is None:
            return self.params
        try:
            shape = self.format.shape(self.tool_use, self.params.structured_outputs, prompt, self._going_on, controls)
            return (
                self.params
                if shape == self.params.structured_outputs
                else replace(self.params, structured_outputs=shape)
            )
        except PellucidError as error:
            raise api_error(error, names) from None


def parse_completion(body: dict[str, Any]) -> CompletionRequest:
    """Raises `ApiError`."""
    check_names(body, COMPLETIONS.known, COMPLETIONS.required)
    check_unserved(body, COMPLETIONS)
    given = {name: body[name] for name in COMPLETIONS.sampling if body.get(name) is not None}
    echo = boolean(body, "echo")
    if echo and given.get("prompt_logprobs") is not None:
        raise refused("prompt_logprobs", "prompt_logprobs and echo exclude each other: echo with logprobs has them")
    if echo and given.get("logprobs") is not None:
        given["prompt_logprobs"] = given["logprobs"]
    is_default = "max_tokens" not in given
    if is_default:
        given["max_tokens"] = DEFAULT_COMPLETION_TOKENS
    given["structured_outputs"] = parse_structured_outputs(body)
    params = sampling_params(given, COMPLETIONS, names(body))
    if body.get("best_of") is not None and not same(body["best_of"], params.n):
        raise refused("best_of", f"best_of is {shown(body['best_of'])}, but only n ({params.n}) is served")
    return CompletionRequest(
        **common_fields(body, params, echo=echo),
        prompts=list_prompts(body["prompt"]),
        echo=echo,
        max_tokens_is_default=is_default,
    )


def parse_chat(body: dict[str, Any], format: ChatFormat) -> ChatRequest:
    """Raises `ApiError`."""
    check_names(body, CHAT.known, CHAT.required)
    check_unserved(body, CHAT)
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
    tool_use = parse_tools(body)
    if format.reads_control_tokens(tool_use):
        given["skip_special_tokens"] = False
    given["structured_outputs"] = parse_structured_outputs(body)
    params = sampling_params(given, CHAT, renamed | names(body))
    messages, options = chat_prompt(
        check_messages(body["messages"], maps_developer=format.maps_developer), template_options(body), tool_use, format
    )
    options |= effort_options(body.get("reasoning_effort"), "reasoning_effort", format)
    return ChatRequest(
        **common_fields(body, params), messages=messages, template_options=options, format=format, tool_use=tool_use
    )


def chat_prompt(
    messages: list[dict[str, Any]], options: dict[str, Any], tool_use: ToolUse | None, format: ChatFormat
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Messages and options for the template, the tools among them. Raises `ApiError`."""
    tools = [] if tool_use is None else list(tool_use.tools)
    if tools and format.tools is None:
        raise refused(
            "tools",
            "the model's way to write tool calls is not known: the server can be told with --tool-call-parser",
            "unsupported_parameter",
        )
    if format.writes_harmony:
        messages = harmony_history(messages)
    if not format.knows_tools:
        return messages_with_tools(messages, tools, format.tools), options
    return messages, {**options, "tools": tools} if tools else options


def effort_options(effort: Any, param: str, format: ChatFormat) -> dict[str, Any]:
    """What the chat template is told about how much to reason. Raises `ApiError`."""
    if effort is None:
        return {}
    if effort not in REASONING_EFFORTS:
        raise refused(param, f"{param} is {shown(effort)}, but must be one of {', '.join(REASONING_EFFORTS)}")
    if "reasoning_effort" in format.variables:
        return {"reasoning_effort": effort}
    if effort == "none" and "enable_thinking" in format.variables:
        return {"enable_thinking": False}
    if effort == "none" and "thinking" in format.variables:
        return {"thinking": False}
    if effort == "none" and format.reasoning is None:
        return {}
    raise refused(param, f"{param} is {shown(effort)}, but this model knows no such setting", "unsupported_parameter")


def template_options(body: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `encode_chat` that a body has."""
    variables = {} if body.get("chat_template_kwargs") is None else body["chat_template_kwargs"]
    if not isinstance(variables, dict):
        raise refused("chat_template_kwargs", "chat_template_kwargs must be an object")
    taken = {"messages", "tools", "documents", "tokenizer", "chat_template", "add_generation_prompt"}
    taken |= {"continue_final_message", "bos_token", "eos_token", "self"}
    taken |= {"prompt", "params", "scoring", "may_be_too_long"}  # arguments of AsyncLLM.encode
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


def sampling_params(
    given: dict[str, Any], endpoint: Endpoint, renamed: Mapping[str, str] | None = None
) -> SamplingParams:
    """Raises `ApiError` with the endpoint's name of the field."""
    try:
        return SamplingParams(**given)
    except PellucidError as error:
        raise api_error(error, endpoint.renamed if renamed is None else renamed) from None


def common_fields(
    body: Mapping[str, Any], params: SamplingParams, *, echo: bool = False, streams_usage: bool = True
) -> dict[str, Any]:
    """The arguments of `ApiRequest`. streams_usage: whether stream_options may ask for it."""
    stream = boolean(body, "stream")
    options = body.get("stream_options")
    if stream and params.prompt_logprobs is not None and not echo:
        raise refused("prompt_logprobs", "prompt_logprobs is not served with stream")
    return {
        "model": body.get("model"),
        "params": params,
        "stream": stream,
        "include_usage": options is not None and _include_usage(options, stream, streams_usage),
        "user": body.get("user"),
        "priority": _priority(body.get("priority")),
        "cache_salt": cache_salt_of(body.get("cache_salt")),
        "trace": _trace(body.get("trace")),
    }


def _trace(value: Any) -> int:
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= MAX_LEVEL:
        raise refused("trace", f"trace is {shown(value)}, but must be from 0 to {MAX_LEVEL}: {LEVEL_HELP}")
    return int(value)


def _priority(value: Any) -> int:
    if value is None:
        return 0
    if type(value) is not int or abs(value) > MAX_PRIORITY:
        raise refused(
            "priority",
            f"priority is {shown(value)}, but must be a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}",
        )
    return int(value)


def cache_salt_of(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_LABEL_CHARS:
        raise refused("cache_salt", f"cache_salt must be a string of 1 to {MAX_LABEL_CHARS} characters")
    return value


def _include_usage(options: Any, stream: bool, is_served: bool) -> bool:
    if not stream:
        raise refused("stream_options", "stream_options needs stream to be true")
    if not isinstance(options, dict):
        raise refused("stream_options", "stream_options must be an object")
    check_inner(options, "stream_options", ("include_usage",) if is_served else ())
    return boolean(options, "include_usage")


def check_unserved(body: Mapping[str, Any], endpoint: Endpoint) -> None:
    """Refuse fields that are not served at other than neutral values, and labels that are none."""
    for name, unserved in endpoint.unserved.items():
        check_neutral(body.get(name), name, unserved)
    for name, label in endpoint.labels.items():
        value, kind = body.get(name), label.kind
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
