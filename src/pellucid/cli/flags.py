"""Flags made from the dataclasses: names, defaults, help and ranges stand there and nowhere else.

A command takes the generated flags by having parameters named `sampling` and `engine`; each becomes a dict of the
fields that the user gave. What was not given is not in it, so a preset or the class's own default holds.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from decimal import Decimal
from typing import Annotated, Any, Union

from pellucid.cli.arguments import Option, read_number
from pellucid.config import EngineArgs
from pellucid.errors import InvalidParameterError, shown
from pellucid.sampling_params import SamplingParams

SHORT_FLAGS = {"model": "-m", "threads": "-t", "n": "-n"}
PANELS = {SamplingParams: "Sampling", EngineArgs: "Engine"}
NO_FLAG = ("structured_outputs",)
"""Fields that one text cannot hold; `cli/structured.py` has flags for this one."""
UNSET = "none"
"""The word for None, to put an optional field back to its meaning when unset."""


def with_flags(
    *,
    sampling: bool = False,
    engine: bool = True,
    skip: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    several: tuple[str, ...] = (),
    shown_defaults: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the flags of `SamplingParams` and `EngineArgs`.

    `skip` names fields left out, `only` the ones kept where it is given; `several` are fields that take more than one
    value, which come as tuples; `shown_defaults` are defaults that the command itself puts in, for the help.
    A field that both classes have (seed) is the request's.
    """
    defaults = shown_defaults or {}
    taken: dict[str, dict[str, Field[Any]]] = {}
    seen: set[str] = {*skip, *NO_FLAG}
    for key, wanted, owner in (("sampling", sampling, SamplingParams), ("engine", engine, EngineArgs)):
        if wanted:
            taken[key] = {f.name: f for f in fields(owner) if f.name not in seen and (not only or f.name in only)}
            seen |= taken[key].keys()

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def command(**values: Any) -> Any:
            for key, known in taken.items():
                given = {name: values.pop(name) for name in known}
                values[key] = {
                    name: _all_of(value) if name in several else _plain(known[name], value)
                    for name, value in given.items()
                    if _given(value)
                }
            return function(**values)

        hints = typing.get_type_hints(function, include_extras=True)
        own = inspect.signature(function, eval_str=True).parameters.values()
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.name not in taken]
        for key, known in taken.items():
            owner = SamplingParams if key == "sampling" else EngineArgs
            types_ = typing.get_type_hints(owner)
            for name, f in known.items():
                make = _list_option if name in several else _option
                annotation = make(f, types_[name], PANELS[owner], defaults)
                hints[name] = annotation
                parameters.append(
                    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
                )
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: hints[p.name] for p in parameters}
        return command

    return decorate


def flag(name: str) -> str:
    """`top_k` → `--top-k`."""
    return "--" + name.replace("_", "-")


def _given(value: Any) -> bool:
    return value is not None and value != [] and value != ()


def _option(f: Field[Any], hint: Any, panel: str, defaults: Mapping[str, Any]) -> Any:
    """The annotation of one field."""
    kind, optional = _base(hint)
    repeated = kind is tuple or kind is Mapping
    declarations = [flag(f.name)]
    settings: dict[str, Any] = {
        "help": _help(f, kind, repeated, defaults),
        "panel": panel,
    }
    if kind is bool:
        declarations = [f"{flag(f.name)}/--no-{f.name.replace('_', '-')}"]
        return Annotated[bool | None, Option(*declarations, **settings)]
    if f.name in SHORT_FLAGS:
        declarations.append(SHORT_FLAGS[f.name])
    is_size = f.metadata.get("unit") == "bytes"
    settings["metavar"] = "SIZE" if is_size else _metavar(hint, kind)
    settings["parser"] = _parser(kind, optional, is_size)
    value = list[str] if repeated else str
    return Annotated[value | None, Option(*declarations, **settings)]


def _list_option(f: Field[Any], hint: Any, panel: str, defaults: Mapping[str, Any]) -> Any:
    """The same for a field of which several values may be given."""
    kind, optional = _base(hint)
    one = _parser(kind, optional)
    settings: dict[str, Any] = {
        "help": _help(f, kind, False, defaults, " Several with commas between them."),
        "panel": panel,
        "metavar": _metavar(hint, kind) + ",…",
        "parser": lambda text: [one(part) for part in text.split(",")],
    }
    return Annotated[list[str] | None, Option(flag(f.name), **settings)]


def _base(hint: Any) -> tuple[Any, bool]:
    """`int | None` → (int, True); `tuple[int, …]` → (tuple, False)."""
    optional = False
    if typing.get_origin(hint) in (Union, types.UnionType):
        arguments = [a for a in typing.get_args(hint) if a is not type(None)]
        optional, hint = True, arguments[0]
    origin = typing.get_origin(hint)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return Mapping, optional
    if origin is typing.Literal:
        return str, optional
    return origin or hint, optional


def _choices(hint: Any) -> tuple[str, ...]:
    """`Literal["a", "b"]`, alone or with None, → ("a", "b"); else ()."""
    for part in (hint, *typing.get_args(hint)):
        if typing.get_origin(part) is typing.Literal:
            return typing.get_args(part)
    return ()


def _metavar(hint: Any, kind: Any) -> str:
    if kind is Mapping:
        return "ID=NUMBER"
    choices = _choices(hint)
    if choices:
        return "|".join(choices)
    if kind is tuple:
        return "IDS" if "int" in str(hint) else "TEXT"
    return {int: "N", float: "NUMBER"}.get(kind, "TEXT")


def _help(f: Field[Any], kind: Any, repeated: bool, defaults: Mapping[str, Any], note: str = "") -> str:
    text = str(f.metadata.get("help", "")) + note
    if kind is tuple and "int" in str(f.type):
        text += " Ids with commas between them."
    elif repeated:
        text += " May be repeated."
    if f.name in defaults and f.default is None:
        text += f" `{UNSET}` is unset."
    shown = _shown(f, defaults)
    return text if shown is None else f"{text} [default: {shown}]"


def _shown(f: Field[Any], defaults: Mapping[str, Any]) -> str | None:
    value = defaults.get(f.name, None if f.default is MISSING else f.default)
    if value is None or value == ():
        return None
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _parser(kind: Any, optional: bool, is_size: bool = False) -> Callable[[str], Any]:
    """Text → value. What cannot be read stays text, and the dataclass refuses it with the field's name and range."""

    def parse(text: str) -> Any:
        if optional and text.lower() == UNSET:
            return _Unset()
        if kind in (int, float):
            return _size(text) if is_size else read_number(text)
        return text

    return parse


class _Unset:
    """Given as None, which is not the same as not given."""


_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt])(i?)b", re.ASCII | re.IGNORECASE)


def _size(text: str) -> int | float | str:
    """Bytes, also with a unit: 2GiB is 2 · 1024³, 512MB is 512 · 1000²."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return read_number(text)
    base = 1024 if match[3] else 1000
    return int(Decimal(match[1]) * base ** ("kmgt".index(match[2].lower()) + 1))


def _all_of(lists: Any) -> tuple[Any, ...]:
    """The values of a flag that may be given again, in order."""
    return tuple(None if isinstance(value, _Unset) else value for one in lists for value in one)


def _plain(f: Field[Any], value: Any) -> Any:
    """Lists of texts → the tuples and mappings of the dataclass."""
    if isinstance(value, _Unset):
        return None
    if not isinstance(value, list):
        return value
    if any(isinstance(text, _Unset) for text in value):
        if len(value) > 1:
            raise InvalidParameterError(f.name, f"{f.name} is {UNSET} and given besides: give one")
        return None
    if "Mapping" in str(f.type):
        return _pairs(f.name, [item for text in value for item in text.split(",")])
    if "int" in str(f.type):
        return tuple(_token_id(f.name, item) for text in value for item in text.split(","))
    return tuple(value)


def _token_id(name: str, text: str) -> int:
    number = read_number(text)
    if not isinstance(number, int):
        raise InvalidParameterError(name, f"{name} is {shown(text)}, but must be token ids with commas between them")
    return number


def _pairs(name: str, items: list[str]) -> dict[int, int | float]:
    pairs: dict[int, int | float] = {}
    for item in items:
        key, _, value = item.partition("=")
        token_id, number = read_number(key), read_number(value)
        if not isinstance(token_id, int) or isinstance(number, str):
            raise InvalidParameterError(name, f"{name} is {shown(item)}, but must be ID=NUMBER, for example 42=-5")
        if token_id in pairs:
            raise InvalidParameterError(name, f"{name} has the token id {shown(token_id)} twice, but must have it once")
        pairs[token_id] = number
    return pairs
