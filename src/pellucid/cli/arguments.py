"""Reads the arguments of a verb by the signature of its function: what each may be stands in the annotation.

    def pull(name: Annotated[str, Argument(help="An alias.")], quiet: Annotated[bool, Option("--quiet", "-q")] = False)

Flags may stand anywhere: `--top-k 5`, `--top-k=5`, `--top_k 5`, `-t 2`, `-t2`, `-qn 2`; after `--` all is text. What
follows a flag that takes a value is its value, whatever it looks like. See docs/decisions/022.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Union

from pellucid.errors import PellucidError, shown

HELP_FLAGS = ("-h", "--help")


class UsageError(PellucidError):
    """A verb, flag or argument that is not known, or cannot go with another."""

    code = "usage"


class Argument:
    """What stands without a flag before it: its place says what it is. One that is a list takes all that are left."""

    def __init__(self, *, help: str, metavar: str | None = None) -> None:
        self.help, self.metavar = help, metavar


class Option:
    """A flag: `Option("--quiet", "-q")`; a switch that can be put out too: `Option("--bos/--no-bos")`.

    `panel` is the heading it stands under in the help, `min` the least number it takes. `parser` makes a value of the
    text in place of the annotation's type.
    """

    def __init__(
        self,
        *names: str,
        help: str = "",
        metavar: str | None = None,
        panel: str | None = None,
        min: int | None = None,
        parser: Callable[[str], Any] | None = None,
    ) -> None:
        self.names = [name for name in names if "/" not in name]
        self.off_names: list[str] = []
        for name in names:
            on, slash, off = name.partition("/")
            if slash:
                self.names.append(on)
                self.off_names.append(off)
        self.help, self.metavar, self.panel, self.min, self.parser = help, metavar, panel, min, parser


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a verb: what its annotation says."""

    name: str
    info: Argument | Option
    type: Any
    """bool, str, int, float or Path: of one value."""
    is_list: bool
    default: Any
    """`inspect.Parameter.empty` where it must be given."""

    @property
    def is_switch(self) -> bool:
        """A flag without a value."""
        return self.type is bool

    def value(self, text: str, flag: str) -> Any:
        """The text as the type has it. Raises `UsageError`."""
        if isinstance(self.info, Option) and self.info.parser is not None:
            return self.info.parser(text)
        value = self.type(text) if self.type not in (int, float) else _number(text, self.type, flag)
        least = self.info.min if isinstance(self.info, Option) else None
        if least is not None and value < least:
            raise UsageError(f"{flag} is {value}, but must be at least {least}")
        return value


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters of a verb, in order."""
    return [_parameter(p) for p in inspect.signature(function, eval_str=True).parameters.values()]


def flag_names(function: Callable[..., Any]) -> Iterator[str]:
    """All flags a verb knows."""
    yield from HELP_FLAGS
    for parameter in parameters_of(function):
        if isinstance(parameter.info, Option):
            yield from (*parameter.info.names, *parameter.info.off_names)


def read_arguments(parameters: Sequence[Parameter], arguments: Sequence[str]) -> dict[str, Any] | None:
    """Name to value of every parameter; None where the help is asked for. Raises `UsageError`."""
    reading = _Reading(parameters)
    texts = reading.take(list(arguments))
    return None if reading.wants_help else reading.values(texts)


def nearest(name: str, known: Iterable[str]) -> str:
    """`, did you mean …?`, or nothing."""
    import difflib

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5) if len(name) > 2 else []
    return f", did you mean {close[0]}?" if close else ""


class _Reading:
    """What was given so far."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = parameters
        self.flags: dict[str, tuple[Parameter, bool]] = {}
        """Flag to its parameter, and what a switch becomes by it."""
        for parameter in parameters:
            if isinstance(parameter.info, Option):
                self.flags |= dict.fromkeys(parameter.info.names, (parameter, True))
                self.flags |= dict.fromkeys(parameter.info.off_names, (parameter, False))
        self.given: dict[str, Any] = {}
        self.wants_help = False

    def take(self, rest: list[str]) -> list[str]:
        """Take all flags and their values; gives back the texts between them."""
        texts: list[str] = []
        rest.reverse()
        while rest:
            one = rest.pop()
            if one == "--":
                return [*texts, *reversed(rest)]
            if one.startswith("--"):
                name, equals, value = one.partition("=")
                self.take_flag(name.replace("_", "-"), value if equals else None, rest)
            elif one.startswith("-") and len(one) > 1:
                self.take_short(one, rest)
            else:
                texts.append(one)
        return texts

    def take_short(self, one: str, rest: list[str]) -> None:
        """`-q`, `-t 2`, `-t2`, or several of them behind one sign."""
        for at, letter in enumerate(one[1:], 2):
            flag = "-" + letter
            if flag not in HELP_FLAGS and flag not in self.flags:
                raise self.unknown(one)
            if flag in self.flags and not self.flags[flag][0].is_switch:
                self.take_flag(flag, one[at:] or None, rest)
                return
            self.take_flag(flag, None, rest)

    def take_flag(self, flag: str, value: str | None, rest: list[str]) -> None:
        if flag not in HELP_FLAGS and flag not in self.flags:
            raise self.unknown(flag)
        if flag in HELP_FLAGS or self.flags[flag][0].is_switch:
            if value is not None:
                raise UsageError(f"option '{flag}' does not take a value")
            if flag in HELP_FLAGS:
                self.wants_help = True
            else:
                self.given[self.flags[flag][0].name] = self.flags[flag][1]
            return
        parameter = self.flags[flag][0]
        if value is None and not rest:
            raise UsageError(f"option '{flag}' requires an argument")
        made = parameter.value(rest.pop() if value is None else value, flag)
        if parameter.is_list:
            self.given.setdefault(parameter.name, []).append(made)
        else:
            self.given[parameter.name] = made

    def unknown(self, flag: str) -> UsageError:
        if " " in flag:
            return UsageError(f"unknown flag {shown(flag)}; a text that begins with - must come after --")
        return UsageError(f"unknown flag {flag}{nearest(flag, [*HELP_FLAGS, *self.flags])}")

    def values(self, texts: list[str]) -> dict[str, Any]:
        """Every parameter's value, once nothing but the arguments' texts is left."""
        for parameter in self.parameters:
            if isinstance(parameter.info, Argument) and texts:
                taken = texts if parameter.is_list else texts[:1]
                made = [parameter.value(text, parameter.name) for text in taken]
                self.given[parameter.name] = made if parameter.is_list else made[0]
                texts = texts[len(taken) :]
        if texts:
            plural = "s" if len(texts) > 1 else ""
            raise UsageError(f"got unexpected extra argument{plural} ({' '.join(texts)})")
        for parameter in self.parameters:
            if parameter.name not in self.given and parameter.default is inspect.Parameter.empty:
                raise UsageError(f"missing {label(parameter)}")
        return {p.name: self.given.get(p.name, p.default) for p in self.parameters}


def label(parameter: Parameter) -> str:
    """How the help and messages name an argument, or the value of a flag."""
    if parameter.info.metavar is not None:
        return parameter.info.metavar
    if isinstance(parameter.info, Argument):
        return parameter.name.upper()
    return {"int": "N", "float": "NUMBER", "Path": "FILE"}.get(parameter.type.__name__, "TEXT")


def _parameter(parameter: inspect.Parameter) -> Parameter:
    kind, info = typing.get_args(parameter.annotation)
    if typing.get_origin(kind) in (Union, UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not NoneType)
    is_list = typing.get_origin(kind) is list
    if is_list:
        (kind,) = typing.get_args(kind)
    return Parameter(parameter.name, info, kind, is_list, parameter.default)


def read_number(text: str) -> int | float | str:
    """The number in a text, or the text where it is none.

    Plain digits only: Python would read other scripts' digits, spaces and 1_000 as numbers too.
    """
    if not text.isascii() or "_" in text or text != text.strip():
        return text
    for read in (int,) if text.lstrip("+-").isdigit() else (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def _number(text: str, kind: type[int] | type[float], flag: str) -> int | float:
    number = read_number(text)
    if isinstance(number, str) or (kind is int and not isinstance(number, int)):
        raise UsageError(f"{flag} must be a {'whole ' if kind is int else ''}number")
    return kind(number)
