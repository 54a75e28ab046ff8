"""A body of /v1/responses → what is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pellucid.server.chat_format import ChatFormat
from pellucid.server.checks import check_inner, check_names, refused, shown
from pellucid.server.messages import check_messages
from pellucid.server.parsing import (
    ChatRequest,
    chat_prompt,
    check_unserved,
    common_fields,
    effort_options,
    sampling_params,
    template_options,
)
from pellucid.server.response_format import from_schema, parse_structured_outputs
from pellucid.server.responses.fields import LOGPROBS, RESPONSES
from pellucid.server.responses.items import messages_of
from pellucid.server.tools import parse_tools
from pellucid.structured_outputs import NAME, StructuredOutputsParams


@dataclass(frozen=True, slots=True)
class ResponsesRequest(ChatRequest):
    """What /v1/chat/completions takes too, and what the response object repeats."""

    echoed: dict[str, Any] = field(default_factory=dict)
    includes_logprobs: bool = False


def parse_response(body: dict[str, Any], format: ChatFormat) -> ResponsesRequest:
    """Raises `ApiError`."""
    check_names(body, RESPONSES.known, RESPONSES.required)
    check_unserved(body, RESPONSES)
    given = {name: body[name] for name in RESPONSES.sampling if body.get(name) is not None}
    if body.get("max_output_tokens") is not None:
        given["max_tokens"] = body["max_output_tokens"]
    includes_logprobs = _includes_logprobs(body)
    if includes_logprobs:
        given["logprobs"] = 0 if body.get("top_logprobs") is None else body["top_logprobs"]
    tool_use = parse_tools(body, flat=True)
    if format.reads_control_tokens(tool_use):
        given["skip_special_tokens"] = False
    given[NAME] = _structured_outputs(body)
    params = sampling_params(given, RESPONSES)
    listed = messages_of(body["input"], body.get("instructions"))
    messages, options = chat_prompt(
        check_messages(listed, maps_developer=format.maps_developer), template_options(body), tool_use, format
    )
    options |= effort_options(_effort(body.get("reasoning")), "reasoning.effort", format)
    return ResponsesRequest(
        **common_fields(body, params, streams_usage=False),
        messages=messages,
        template_options=options,
        format=format,
        tool_use=tool_use,
        echoed=_echoed(body, params),
        includes_logprobs=includes_logprobs,
    )


def shape_name(body: dict[str, Any]) -> dict[str, str]:
    """What this body calls `structured_outputs`, for refusals that come later."""
    return {} if body.get(NAME) is not None else {NAME: "text.format"}


def _includes_logprobs(body: dict[str, Any]) -> bool:
    include = body.get("include")
    if include is not None and not (isinstance(include, list) and all(item == LOGPROBS for item in include)):
        raise refused("include", f"include is {shown(include)}, but may only have {LOGPROBS}")
    if body.get("top_logprobs") is not None and not include:
        raise refused("top_logprobs", f"top_logprobs needs include to have {LOGPROBS}")
    return bool(include)


def _structured_outputs(body: dict[str, Any]) -> StructuredOutputsParams | None:
    """From text.format or structured_outputs; None where any text will do."""
    text = body.get("text")
    if text is not None and not isinstance(text, dict):
        raise refused("text", "text must be an object")
    check_inner(text or {}, "text", ("format",))
    form = (text or {}).get("format")
    if form is None:
        return parse_structured_outputs({NAME: body.get(NAME)})
    if body.get(NAME) is not None:
        raise refused(NAME, f"{NAME} and text.format exclude each other: give one of them")
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "json_schema":
        return from_schema({name: value for name, value in form.items() if name != "type"}, "text.format")
    if kind not in ("text", "json_object") or len(form) > 1:
        raise refused("text.format", f"text.format is {shown(form)}, but must be text, json_object or a json_schema")
    return None if kind == "text" else StructuredOutputsParams(json_object=True)


def _effort(reasoning: Any) -> Any:
    if reasoning is None:
        return None
    if not isinstance(reasoning, dict):
        raise refused("reasoning", "reasoning must be an object")
    check_inner(reasoning, "reasoning", ("effort",))
    return reasoning.get("effort")


def _echoed(body: dict[str, Any], params: Any) -> dict[str, Any]:
    """What the response object repeats of the request."""
    reasoning, text = body.get("reasoning") or {}, body.get("text") or {}
    return {
        "background": False,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.get("prompt_cache_key"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "safety_identifier": body.get("safety_identifier"),
        "service_tier": "default",
        "store": False,
        "temperature": params.temperature,
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": "medium"},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_logprobs": body.get("top_logprobs") or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "user": body.get("user"),
    }
