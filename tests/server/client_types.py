"""The openai client's own request types, walked: the fields they have, and a value for each."""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Iterator
from typing import Any, NotRequired, Required

from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params
from typing_extensions import is_typeddict

REQUESTS: dict[str, tuple[Any, ...]] = {
    "/v1/chat/completions": (
        chat_params.CompletionCreateParamsNonStreaming,
        chat_params.CompletionCreateParamsStreaming,
    ),
    "/v1/completions": (
        completion_create_params.CompletionCreateParamsNonStreaming,
        completion_create_params.CompletionCreateParamsStreaming,
    ),
    "/v1/responses": (
        response_create_params.ResponseCreateParamsNonStreaming,
        response_create_params.ResponseCreateParamsStreaming,
    ),
    "/v1/embeddings": (embedding_create_params.EmbeddingCreateParams,),
}
MAX_DEPTH = 5

Made = tuple[Any, frozenset[str]]
"""A value, and the places of the fields in it: `messages[].content[].text`."""


def fields_of(path: str) -> dict[str, Any]:
    """The fields of an endpoint's bodies and their types."""
    found: dict[str, Any] = {}
    for kind in REQUESTS[path]:
        found |= typing.get_type_hints(kind)
    return found


def values(hint: Any, place: str, depth: int = 0) -> Iterator[Made]:
    """Values of a type: each literal, each member of a union, each optional field of an object by itself."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Required, NotRequired, typing.Annotated):
        yield from values(arguments[0], place, depth)
    elif origin in (typing.Union, types.UnionType):
        for argument in arguments:
            if argument is not types.NoneType:  # as good as left out
                yield from values(argument, place, depth)
    elif origin is typing.Literal:
        yield from ((value, frozenset((place,))) for value in arguments)
    elif is_typeddict(hint):
        yield from _objects(hint, place, depth)
    elif origin in (dict, collections.abc.Mapping):
        yield {"x": next(values(arguments[1], place, depth + 1))[0]}, frozenset((place,))
    elif origin in (list, collections.abc.Iterable, collections.abc.Sequence):
        yield from (([value], places | {place}) for value, places in values(arguments[0], f"{place}[]", depth))
    else:
        plain = {str: ("x",), int: (1,), float: (0.5,), bool: (True, False), object: ({},)}
        yield from ((value, frozenset((place,))) for value in plain[hint])


def _objects(kind: Any, place: str, depth: int) -> Iterator[Made]:
    hints = typing.get_type_hints(kind, include_extras=True)
    first = {name: next(values(hints[name], f"{place}.{name}", depth + 1)) for name in kind.__required_keys__}
    if "type" in hints and "type" not in first:  # else nobody knows what it is
        first["type"] = next(values(hints["type"], f"{place}.type", depth + 1))
    yield _object(first, place)
    if depth < MAX_DEPTH:
        for name, hint in hints.items():
            for made in values(hint, f"{place}.{name}", depth + 1):
                yield _object({**first, name: made}, place)


def _object(fields: dict[str, Made], place: str) -> Made:
    places = frozenset((place,)).union(*(places for _, places in fields.values()))
    return {name: value for name, (value, _) in fields.items()}, places
