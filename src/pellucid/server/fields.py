"""Every field a request may have. Those of SamplingParams are taken from it; the others stand here once.

A field of OpenAI's API that is not served passes at its neutral values, at which it asks for nothing, and is refused
otherwise; a field that nobody knows is refused.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from pellucid.sampling_params import SamplingParams
from pellucid.server.openai_fields import LABELS, Label, Unserved, echo_schemas, inner_schema, labels, unserved
from pellucid.trace.events import LEVEL_HELP, MAX_LEVEL

Schema = dict[str, Any]

DEFAULT_COMPLETION_TOKENS = 16
"""max_tokens of /v1/completions when unset: OpenAI's. Where less room is left it gives way to the context's end."""

_SAMPLING = {f.name: f for f in fields(SamplingParams)}
_STREAM_OPTIONS: Schema = {
    "type": ["object", "null"],
    "properties": {
        "include_usage": {"type": "boolean"},
        "include_obfuscation": inner_schema("stream_options.include_obfuscation"),
    },
    "additionalProperties": False,
    "description": "With stream only: include_usage ends the stream with a chunk of usage.",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The fields of one endpoint."""

    own: Mapping[str, Schema]
    """Fields that this endpoint reads itself, with their JSON schemas."""
    labels: Mapping[str, Label]
    unserved: Mapping[str, Unserved]
    required: tuple[str, ...]
    renamed: Mapping[str, str]
    """What this endpoint calls fields of SamplingParams, where that differs."""
    without: frozenset[str] = frozenset()
    """Fields of SamplingParams that it does not have."""

    @property
    def sampling(self) -> tuple[str, ...]:
        """The fields of SamplingParams that have their own name here."""
        return tuple(name for name in _SAMPLING if name not in self.own and name not in self.without)

    @property
    def known(self) -> set[str]:
        """All names that may appear in a body."""
        return {*self.own, *self.sampling, *self.labels, *self.unserved}

    def schema(self) -> Schema:
        """JSON schema of a body, for the OpenAPI document."""
        properties: dict[str, Schema] = dict(self.own)
        properties |= {name: sampling_schema(name) for name in self.sampling}
        for name, label in self.labels.items():
            kind = "string" if label.kind is str else "object"
            properties[name] = {"type": [kind, "null"], "description": f"Changes no answer: {label.why}."}
        for name, field in self.unserved.items():
            properties[name] = {"enum": [None, *field.neutral], "description": f"Not served: {field.why}."}
        return {
            "type": "object",
            "properties": dict(sorted(properties.items())),
            "required": list(self.required),
            "additionalProperties": False,
        }


_MODEL: Schema = {"type": "string", "description": "The served model's name, as /v1/models lists it."}
_STREAM: Schema = {"type": ["boolean", "null"], "default": False, "description": "Answer with server-sent events."}
COMMON: dict[str, Schema] = {
    "model": _MODEL,
    "trace": {
        "type": ["integer", "null"],
        "minimum": 0,
        "maximum": MAX_LEVEL,
        "default": 0,
        "description": f"How much of the request is traced: {LEVEL_HELP}. At most --trace-level. "
        "/v1/traces/{id} has it under the answer's id.",
    },
    "stream": _STREAM,
    "stream_options": _STREAM_OPTIONS,
    "priority": {"type": ["integer", "null"], "default": 0, "description": "Lower is served earlier (vLLM's)."},
    "cache_salt": {
        "type": ["string", "null"],
        "minLength": 1,
        "maxLength": 512,
        "description": "Only requests with the same salt share cached prefixes (vLLM's): give each tenant its own.",
    },
}
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT_OR_IDS: list[Schema] = [
    {"type": "string"},
    {"type": "array", "items": {"type": "string"}, "minItems": 1},
    _IDS,
    {"type": "array", "items": _IDS, "minItems": 1},
]

STRUCTURED_OUTPUTS: Schema = {
    "type": ["object", "null"],
    "properties": {
        "json": {"type": ["object", "string", "boolean", "null"]},
        "json_object": {"type": ["boolean", "null"]},
        "regex": {"type": ["string", "null"]},
        "choice": {"type": ["array", "null"], "items": {"type": "string"}},
        "grammar": {"type": ["string", "null"]},
        "whitespace_pattern": {"type": ["string", "null"]},
        "disable_any_whitespace": {"type": ["boolean", "null"]},
    },
    "additionalProperties": False,
    "description": "The shape of the answer (vLLM's): one of json, json_object, regex, choice, grammar.",
}
JSON_SCHEMA: Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
        "description": {"type": "string"},
        "schema": {"type": "object"},
        "strict": {"type": ["boolean", "null"]},
    },
    "required": ["name", "schema"],
    "additionalProperties": False,
}
RESPONSE_FORMAT: Schema = {
    "type": ["object", "null"],
    "properties": {
        "type": {"enum": ["text", "json_object", "json_schema"]},
        "json_schema": JSON_SCHEMA,
    },
    "required": ["type"],
    "additionalProperties": False,
    "description": "The shape of the answer; a schema is enforced, strict or not.",
}

COMPLETIONS = Endpoint(
    own={
        **COMMON,
        "response_format": RESPONSE_FORMAT,
        "structured_outputs": STRUCTURED_OUTPUTS,
        "prompt": {"anyOf": _TEXT_OR_IDS, "description": "One prompt or several; ids are taken as they are."},
        "echo": {"type": ["boolean", "null"], "default": False, "description": "Give the prompt back too."},
        "best_of": {"type": ["integer", "null"], "description": "Only the value of n."},
    },
    labels=labels("user"),
    unserved=unserved("suffix"),
    required=("prompt",),
    renamed={},
)

EMPTY: Schema = {"enum": [None, "", []]}
"""What fields of messages that we do not know may be: clients send back all of what they got."""
_PARTS: Schema = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
                "additionalProperties": EMPTY,
            },
        },
    ]
}
_CALL: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "arguments": {"type": "string"},
                **echo_schemas("messages[].tool_calls[].function"),
            },
            "required": ["name", "arguments"],
            "additionalProperties": EMPTY,
        },
        **echo_schemas("messages[].tool_calls[]"),
    },
    "required": ["function"],
    "additionalProperties": EMPTY,
}


def _message(roles: list[str], required: list[str], **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {
            "role": {"enum": roles},
            "content": _PARTS,
            "name": {"type": ["string", "null"]},
            **properties,
        },
        "required": ["role", *required],
        "additionalProperties": EMPTY,
    }


_MESSAGE: Schema = {
    "anyOf": [
        _message(["developer", "system", "user"], ["content"]),
        _message(
            ["assistant"],
            [],
            content={"anyOf": [*_PARTS["anyOf"], {"type": "null"}]},
            tool_calls={"type": ["array", "null"], "items": _CALL},
            reasoning_content={"type": ["string", "null"]},
            **echo_schemas("messages[]"),
        ),
        _message(["tool"], ["content", "tool_call_id"], tool_call_id={"type": "string"}),
    ]
}
FUNCTION: dict[str, Schema] = {
    "name": {"type": "string", "pattern": "^[A-Za-z0-9_.:/-]{1,128}$"},
    "description": {"type": ["string", "null"]},
    "parameters": {"type": ["object", "null"], "description": "JSON schema of the arguments."},
    "strict": {"type": ["boolean", "null"], "description": "Whether arguments have to follow the schema."},
}
_TOOLS: Schema = {
    "type": ["array", "null"],
    "maxItems": 128,
    "items": {
        "type": "object",
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "properties": FUNCTION,
                "required": ["name"],
                "additionalProperties": False,
            },
        },
        "required": ["type", "function"],
        "additionalProperties": False,
    },
    "description": "Functions that the model may call.",
}
TOOL_CHOICE: Schema = {
    "anyOf": [{"enum": ["none", "auto", "required", None]}, {"type": "object"}],
    "default": "auto",
    "description": "Whether and which functions are called: none, auto, required, a named function or allowed_tools.",
}
PARALLEL: Schema = {
    "type": ["boolean", "null"],
    "default": True,
    "description": "With false, an answer has one call at most.",
}

CHAT = Endpoint(
    own={
        **COMMON,
        "response_format": RESPONSE_FORMAT,
        "structured_outputs": STRUCTURED_OUTPUTS,
        "messages": {
            "type": "array",
            "items": _MESSAGE,
            "minItems": 1,
            "description": "The conversation: role and content of each message.",
        },
        "logprobs": {"type": ["boolean", "null"], "default": False, "description": "Report logprobs."},
        "top_logprobs": {"type": ["integer", "null"], "description": "Most probable tokens per position."},
        "max_completion_tokens": {"type": ["integer", "null"], "description": "Most tokens to generate."},
        "max_tokens": {"type": ["integer", "null"], "description": "The older name of max_completion_tokens."},
        "add_generation_prompt": {"type": ["boolean", "null"], "description": "Open an answer after the messages."},
        "continue_final_message": {"type": ["boolean", "null"], "description": "Go on with the last message."},
        "chat_template_kwargs": {"type": ["object", "null"], "description": "Variables for the chat template."},
        "tools": _TOOLS,
        "tool_choice": TOOL_CHOICE,
        "parallel_tool_calls": PARALLEL,
        "reasoning_effort": {
            "enum": [*REASONING_EFFORTS, None],
            "description": "How much to reason, for models whose chat template asks; none switches it off.",
        },
    },
    labels=LABELS,
    unserved=unserved(
        *("audio", "function_call", "functions", "modalities", "moderation", "prediction"),
        *("prompt_cache_options", "prompt_cache_retention", "service_tier", "store", "verbosity", "web_search_options"),
    ),
    required=("messages",),
    renamed={"logprobs": "top_logprobs", "prompt": "messages"},
)


def sampling_schema(name: str) -> Schema:
    """JSON schema of a field of SamplingParams, from its type, default and help."""
    field, hint = _SAMPLING[name], typing.get_type_hints(SamplingParams)[name]
    schema: Schema = {"anyOf": [*_schemas(hint), {"type": "null"}], "description": str(field.metadata["help"])}
    if field.default is not MISSING:
        schema["default"] = list(field.default) if isinstance(field.default, tuple) else field.default
    return schema


def _schemas(hint: Any) -> list[Schema]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return [schema for argument in arguments if argument is not type(None) for schema in _schemas(argument)]
    if origin is typing.Literal:
        return [{"enum": list(arguments)}]
    if origin is tuple:
        [item] = _schemas(arguments[0])
        return [{"type": "array", "items": item}, *([item] if item == {"type": "string"} else [])]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return [{"type": "object", "additionalProperties": {"type": "number"}}]
    return [{"type": {int: "integer", float: "number", bool: "boolean", str: "string"}[hint]}]
