"""Every field of a body of /v1/responses."""

from __future__ import annotations

from typing import Any

from pellucid.server.fields import (
    COMMON,
    EMPTY,
    FUNCTION,
    JSON_SCHEMA,
    LABELS,
    PARALLEL,
    REASONING_EFFORTS,
    STRUCTURED_OUTPUTS,
    TOOL_CHOICE,
    Endpoint,
    Schema,
    Unserved,
)

LOGPROBS = "message.output_text.logprobs"
"""The one thing of `include` that is served."""


_TEXT: Schema = {"type": "string"}
_OPTIONAL: Schema = {"type": ["string", "null"]}


def _item(kind: str, required: list[str], **properties: Schema) -> Schema:
    own: dict[str, Schema] = {"type": {"const": kind}, "id": _OPTIONAL, "status": _OPTIONAL, **properties}
    return {"type": "object", "properties": own, "required": ["type", *required], "additionalProperties": EMPTY}


_CONTENT: Schema = {
    "anyOf": [
        _TEXT,
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"enum": ["input_text", "output_text", "text"]}, "text": _TEXT},
                "required": ["type", "text"],
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
                    "properties": {"type": {"const": "reasoning_text"}, "text": _TEXT},
                    "required": ["type", "text"],
                },
            },
        ),
    ]
}
_STREAM_OPTIONS: Schema = {
    "type": ["object", "null"],
    "properties": {"include_obfuscation": {"enum": [False, None]}},
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
        "verbosity": {"enum": ["medium", None]},
    },
    "additionalProperties": False,
    "description": "The form of the answer.",
}
_REASONING: Schema = {
    "type": ["object", "null"],
    "properties": {
        "effort": {"enum": [*REASONING_EFFORTS, None]},
        **{name: {"enum": [None]} for name in ("summary", "generate_summary")},
        "context": {"enum": ["auto", None]},
        "mode": {"enum": ["standard", None]},
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
    unserved={
        "access_programs": Unserved(),
        "background": Unserved((False,)),
        "background_options": Unserved(),
        "context_management": Unserved(([],)),
        "conversation": Unserved(),
        "image": Unserved(),
        "max_tool_calls": Unserved(),
        "moderation": Unserved(),
        "previous_response_id": Unserved(),
        "prompt": Unserved(),
        "prompt_cache_options": Unserved(),
        "prompt_cache_retention": Unserved(("in_memory",)),
        "service_tier": Unserved(("auto", "default")),
        "store": Unserved((False,)),
        "truncation": Unserved(("disabled",)),
    },
    required=("input",),
    renamed={"max_tokens": "max_output_tokens", "logprobs": "top_logprobs", "prompt": "input", "messages": "input"},
    without=frozenset(("n", "max_tokens", "logprobs", "prompt_logprobs")),
)
