"""Every field of a body of /v1/responses."""

from __future__ import annotations

from typing import Any

from pellucid.server.fields import (
    COMMON,
    EMPTY,
    FUNCTION,
    JSON_SCHEMA,
    PARALLEL,
    REASONING_EFFORTS,
    STRUCTURED_OUTPUTS,
    TOOL_CHOICE,
    Endpoint,
    Schema,
)
from pellucid.server.openai_fields import LABELS, echo_schemas, inner_schema, unserved

LOGPROBS = "message.output_text.logprobs"
"""The one thing of `include` that is served."""


_TEXT: Schema = {"type": "string"}
_OPTIONAL: Schema = {"type": ["string", "null"]}


def _item(kind: str, required: list[str], **properties: Schema) -> Schema:
    own: dict[str, Schema] = {"type": {"const": kind}, "id": _OPTIONAL, "status": _OPTIONAL, **properties}
    return {"type": "object", "properties": own, "required": ["type", *required], "additionalProperties": EMPTY}


_ECHOED: dict[str, Schema] = echo_schemas("input[].content[]")
_CONTENT: Schema = {
    "anyOf": [
        _TEXT,
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"enum": ["input_text", "output_text", "text"]}, "text": _TEXT, **_ECHOED},
                "required": ["type", "text"],
                "additionalProperties": EMPTY,
            },
        },
    ]
}
_ITEM: Schema = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                **dict.fromkeys(("id", "status", "phase"), _OPTIONAL),
                "type": {"const": "message"},
                "role": {"enum": ["developer", "system", "user", "assistant"]},
                "content": _CONTENT,
            },
            "required": ["role", "content"],
            "additionalProperties": EMPTY,
        },
        _item("function_call", ["call_id", "name", "arguments"], call_id=_TEXT, name=_TEXT, arguments=_TEXT),
        _item("function_call_output", ["call_id", "output"], call_id=_TEXT, output=_CONTENT),
        _item(
            "reasoning",
            ["summary"],
            summary={"type": "array", "maxItems": 0},
            content={
                "type": ["array", "null"],
                "items": {
                    "type": "object",
                    "properties": {"type": {"const": "reasoning_text"}, "text": _TEXT, **_ECHOED},
                    "required": ["type", "text"],
                    "additionalProperties": EMPTY,
                },
            },
        ),
    ]
}
_STREAM_OPTIONS: Schema = {
    "type": ["object", "null"],
    "properties": {"include_obfuscation": inner_schema("stream_options.include_obfuscation")},
    "additionalProperties": False,
    "description": "Nothing in it is served.",
}
_TEXT_OPTIONS: Schema = {
    "type": ["object", "null"],
    "properties": {
        "format": {
            "type": ["object", "null"],
            "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}, **JSON_SCHEMA["properties"]},
            "required": ["type"],
            "additionalProperties": False,
            "description": "text, json_object or json_schema.",
        },
        "verbosity": inner_schema("text.verbosity"),
    },
    "additionalProperties": False,
    "description": "The form of the answer.",
}
_REASONING: Schema = {
    "type": ["object", "null"],
    "properties": {
        "effort": {"enum": [*REASONING_EFFORTS, None]},
        **{n: inner_schema(f"reasoning.{n}") for n in ("summary", "generate_summary", "context", "mode")},
    },
    "additionalProperties": False,
    "description": "effort: how much to reason, for models whose chat template asks. No summaries are made.",
}
_INTEGER: dict[str, Any] = {"type": ["integer", "null"]}

RESPONSES = Endpoint(
    own={
        **COMMON,
        "input": {
            "anyOf": [_TEXT, {"type": "array", "items": _ITEM, "minItems": 1}],
            "description": "A text, or the conversation as items: messages, calls, their results, reasoning.",
        },
        "instructions": {"type": ["string", "null"], "description": "A system message before the input."},
        "max_output_tokens": {**_INTEGER, "description": "Most tokens to generate, reasoning included."},
        "top_logprobs": {**_INTEGER, "description": "Most probable tokens per position; needs include."},
        "include": {
            "type": ["array", "null"],
            "items": {"enum": [LOGPROBS]},
            "description": "What the answer has besides: the logprobs of its text.",
        },
        "stream_options": _STREAM_OPTIONS,
        "tools": {
            "type": ["array", "null"],
            "maxItems": 128,
            "items": {
                "type": "object",
                "properties": {"type": {"const": "function"}, **FUNCTION},
                "required": ["type", "name"],
                "additionalProperties": False,
            },
            "description": "Functions that the model may call.",
        },
        "tool_choice": TOOL_CHOICE,
        "parallel_tool_calls": PARALLEL,
        "text": _TEXT_OPTIONS,
        "structured_outputs": STRUCTURED_OUTPUTS,
        "reasoning": _REASONING,
        "chat_template_kwargs": {"type": ["object", "null"], "description": "Variables for the chat template."},
    },
    labels=LABELS,
    unserved=unserved(
        *("access_programs", "background", "background_options", "context_management", "conversation", "image"),
        *("max_tool_calls", "moderation", "previous_response_id", "prompt", "prompt_cache_options"),
        *("prompt_cache_retention", "service_tier", "store", "truncation"),
    ),
    required=("input",),
    renamed={"max_tokens": "max_output_tokens", "logprobs": "top_logprobs", "prompt": "input", "messages": "input"},
    without=frozenset(("n", "max_tokens", "logprobs", "prompt_logprobs")),
)
