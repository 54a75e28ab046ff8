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

Schema = dict[str, Any]

DEFAULT_COMPLETION_TOKENS = 16
"""max_tokens of /v1/completions when unset: OpenAI's. Where less room is left it gives way to the context's end."""

_SAMPLING = {f.name: f for f in fields(SamplingParams)}
_STREAM_OPTIONS: Schema = {
    "type": ["object", "null"],
    "properties": {"include_usage": {"type": "boolean"}, "include_obfuscation": {"enum": [False, None]}},
    "additionalProperties": False,
    "description": "With stream only: include_usage ends the stream with a chunk of usage.",
}


@dataclass(frozen=True, slots=True)
class Unserved:
    """A field of OpenAI's API that we do not serve: the values besides null at which it asks for nothing."""

    neutral: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The fields of one endpoint."""

    own: Mapping[str, Schema]
    """Fields that this endpoint reads itself, with their JSON schemas."""
    labels: Mapping[str, type]
    """Fields that by their meaning change no answer: checked, and otherwise the client's own."""
    unserved: Mapping[str, Unserved]
    required: tuple[str, ...]
    renamed: Mapping[str, str]
    """What this endpoint calls fields of SamplingParams, where that differs."""

    @property
    def sampling(self) -> tuple[str, ...]:
        """The fields of SamplingParams that have their own name here."""
        return tuple(name for name in _SAMPLING if name not in self.own)

    @property
    def known(self) -> set[str]:
        """All names that may appear in a body."""
        return {*self.own, *self.sampling, *self.labels, *self.unserved}

    def schema(self) -> Schema:
        """JSON schema of a body, for the OpenAPI document."""
        properties: dict[str, Schema] = dict(self.own)
        properties |= {name: sampling_schema(name) for name in self.sampling}
        for name, kind in self.labels.items():
            properties[name] = {"type": ["string" if kind is str else "object", "null"]}
        for name, unserved in self.unserved.items():
            properties[name] = {"enum": [None, *unserved.neutral], "description": "Not served: neutral values only."}
        return {
            "type": "object",
            "properties": dict(sorted(properties.items())),
            "required": list(self.required),
            "additionalProperties": False,
        }


_LABELS: dict[str, type] = {"user": str, "metadata": dict, "safety_identifier": str, "prompt_cache_key": str}
_MODEL: Schema = {"type": "string", "description": "The served model's name, as /v1/models lists it."}
_STREAM: Schema = {"type": ["boolean", "null"], "default": False, "description": "Answer with server-sent events."}
_TEXT_OR_IDS: list[Schema] = [
    {"type": "string"},
    {"type": "array", "items": {"type": "string"}},
    {"type": "array", "items": {"type": "integer"}},
    {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
]

COMPLETIONS = Endpoint(
    own={
        "model": _MODEL,
        "prompt": {"anyOf": _TEXT_OR_IDS, "description": "One prompt or several; ids are taken as they are."},
        "stream": _STREAM,
        "stream_options": _STREAM_OPTIONS,
        "echo": {"type": ["boolean", "null"], "default": False, "description": "Give the prompt back too."},
        "best_of": {"type": ["integer", "null"], "description": "Only the value of n."},
    },
    labels={"user": str},
    unserved={"suffix": Unserved(("",))},
    required=("prompt",),
    renamed={},
)

_MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"enum": ["developer", "system", "user", "assistant"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}]},
        "name": {"type": ["string", "null"]},
    },
    "required": ["role", "content"],
}

CHAT = Endpoint(
    own={
        "model": _MODEL,
        "messages": {
            "type": "array",
            "items": _MESSAGE,
            "minItems": 1,
            "description": "The conversation: role and content of each message.",
        },
        "stream": _STREAM,
        "stream_options": _STREAM_OPTIONS,
        "logprobs": {"type": ["boolean", "null"], "default": False, "description": "Report logprobs."},
        "top_logprobs": {"type": ["integer", "null"], "description": "Most probable tokens per position."},
        "max_completion_tokens": {"type": ["integer", "null"], "description": "Most tokens to generate."},
        "max_tokens": {"type": ["integer", "null"], "description": "The older name of max_completion_tokens."},
        "add_generation_prompt": {"type": ["boolean", "null"], "description": "Open an answer after the messages."},
        "continue_final_message": {"type": ["boolean", "null"], "description": "Go on with the last message."},
        "chat_template_kwargs": {"type": ["object", "null"], "description": "Variables for the chat template."},
    },
    labels=_LABELS,
    unserved={
        "audio": Unserved(),
        "function_call": Unserved(("none", "auto")),
        "functions": Unserved(([],)),
        "modalities": Unserved((["text"],)),
        "moderation": Unserved(),
        "parallel_tool_calls": Unserved((True, False)),
        "prediction": Unserved(),
        "prompt_cache_options": Unserved(),
        "prompt_cache_retention": Unserved(("in_memory",)),
        "reasoning_effort": Unserved(("none",)),
        "response_format": Unserved(({"type": "text"},)),
        "service_tier": Unserved(("auto", "default")),
        "store": Unserved((False,)),
        "tool_choice": Unserved(("none", "auto")),
        "tools": Unserved(([],)),
        "verbosity": Unserved(("medium",)),
        "web_search_options": Unserved(),
    },
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
    if origin is tuple:
        [item] = _schemas(arguments[0])
        return [{"type": "array", "items": item}, *([item] if item == {"type": "string"} else [])]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return [{"type": "object", "additionalProperties": {"type": "number"}}]
    return [{"type": {int: "integer", float: "number", bool: "boolean", str: "string"}[hint]}]
