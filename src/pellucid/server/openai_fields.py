"""Fields of OpenAI's API that have no effect here, each with its reason: the one list of them.

A label passes with any value. A field that is not served passes at null and at its neutral values, at which it asks for
nothing, and is refused otherwise. Reference pages and refusals take their reasons from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Label:
    """A field that by its meaning changes no answer: checked, and otherwise the client's own."""

    kind: type
    why: str


@dataclass(frozen=True, slots=True)
class Unserved:
    """A field that we do not serve: why, and the values besides null at which it asks for nothing."""

    why: str
    neutral: tuple[Any, ...] = ()


LABELS: dict[str, Label] = {
    "metadata": Label(dict, "notes of the caller's; a response object repeats them"),
    "prompt_cache_key": Label(str, "a prefix is found by its tokens, whoever sends it; cache_salt keeps callers apart"),
    "safety_identifier": Label(str, "nothing is reported to anybody"),
    "user": Label(str, "a name for the access log, and for taking turns where no API key tells callers apart"),
}

_NOT_STORED = "nothing is stored: send the whole conversation"
_ONLY_TEXT = "answers are text"
_CACHE = "the prefix cache keeps every prefix while there is room"
UNSERVED: dict[str, Unserved] = {
    "access_programs": Unserved("there are no such programs"),
    "audio": Unserved(_ONLY_TEXT),
    "background": Unserved("an answer is made while its client waits", (False,)),
    "background_options": Unserved("an answer is made while its client waits"),
    "context_management": Unserved("long prompts follow overflow", ([],)),
    "conversation": Unserved(_NOT_STORED),
    "function_call": Unserved("the older form of tool_choice", ("none", "auto")),
    "functions": Unserved("the older form of tools", ([],)),
    "image": Unserved("models read text"),
    "max_tool_calls": Unserved("it counts calls of built-in tools, and there are none"),
    "modalities": Unserved(_ONLY_TEXT, (["text"],)),
    "moderation": Unserved("there is no moderation model"),
    "prediction": Unserved("speculation finds its guesses itself"),
    "previous_response_id": Unserved(_NOT_STORED),
    "prompt": Unserved("there are no stored prompts: send input"),
    "prompt_cache_options": Unserved(_CACHE),
    "prompt_cache_retention": Unserved(_CACHE, ("in_memory",)),
    "service_tier": Unserved("there is one tier; priority orders requests", ("auto", "default")),
    "store": Unserved(_NOT_STORED, (False,)),
    "suffix": Unserved("prompts are continued, not filled in", ("",)),
    "truncation": Unserved("long prompts follow overflow", ("disabled",)),
    "verbosity": Unserved("no chat template knows it", ("medium",)),
    "web_search_options": Unserved("there are no built-in tools"),
}
"""By name; the same in every endpoint that has it."""

INNER_UNSERVED: dict[str, Unserved] = {
    "reasoning.context": Unserved("the conversation's reasoning is what input has", ("auto",)),
    "reasoning.generate_summary": Unserved("no summaries are made"),
    "reasoning.mode": Unserved("there is one mode", ("standard",)),
    "reasoning.summary": Unserved("no summaries are made"),
    "stream_options.include_obfuscation": Unserved("chunks are sent without padding", (False,)),
    "text.verbosity": Unserved("no chat template knows it", ("medium",)),
}
"""Fields of objects that are served."""

_OF_AN_ANSWER = "clients send back the answers that they got"
ECHOES: dict[str, str] = {
    "messages[].parsed": "what the client made of content",
    "messages[].tool_calls[].function.parsed_arguments": "what the client made of arguments",
    "messages[].tool_calls[].index": "the call's place in a stream",
    "input[].id": _OF_AN_ANSWER,
    "input[message].phase": "no chat template knows it",
    "input[].status": _OF_AN_ANSWER,
    "input[].content[].logprobs": _OF_AN_ANSWER,
}
"""What the messages and items of a conversation may have besides what is served."""


def unserved(*names: str) -> dict[str, Unserved]:
    """Those of one endpoint."""
    return {name: UNSERVED[name] for name in names}


def labels(*names: str) -> dict[str, Label]:
    """Those of one endpoint."""
    return {name: LABELS[name] for name in names}


def inner_schema(name: str) -> dict[str, Any]:
    """JSON schema of one of INNER_UNSERVED."""
    return {"enum": [None, *INNER_UNSERVED[name].neutral]}


def echo_schemas(place: str) -> dict[str, dict[str, Any]]:
    """JSON schemas of what may be sent back at a place."""
    return {name: {} for name in sorted(echoes(place))}


@cache
def echoes(place: str) -> frozenset[str]:
    """The names of what may be sent back at a place, such as `input[]`, whatever their values."""
    return frozenset(name for at, _, name in (echo.rpartition(".") for echo in ECHOES) if at == place)
