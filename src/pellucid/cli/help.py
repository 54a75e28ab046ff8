"""The help of a verb: usage, what it does, arguments, and its flags under the headings of their panels."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pellucid.cli.arguments import HELP_FLAGS, Argument, Option, Parameter, label, parameters_of

_MOST_LEFT = 30
"""Columns of the left side; what is longer has its text on the next line."""


def verb_help(program: str, summary: str, function: Callable[..., Any]) -> str:
    """The text of `pellucid VERB --help`, as wide as the terminal is, up to 100 columns."""
    width = max(40, min(100, shutil.get_terminal_size().columns)) - 2
    parameters = parameters_of(function)
    arguments = [p for p in parameters if isinstance(p.info, Argument)]
    usage = " ".join([f"Usage: {program} [OPTIONS]", *map(_usage, arguments)])
    parts = [usage, *(_filled(text, width) for text in (summary, *_paragraphs(function)))]
    for title, rows in _groups(parameters).items():
        parts.append("\n".join([f"{title}:", *_definitions(rows, width)]))
    return "\n\n".join(parts)


def _paragraphs(function: Callable[..., Any]) -> list[str]:
    return [p for p in inspect.cleandoc(function.__doc__ or "").split("\n\n") if p]


def _filled(text: str, width: int) -> str:
    return textwrap.fill(" ".join(text.split()), width, initial_indent="  ", subsequent_indent="  ")


def _usage(parameter: Parameter) -> str:
    name = label(parameter)
    if parameter.default is inspect.Parameter.empty or name.startswith("["):
        return name
    return f"[{name}]" + ("…" if parameter.is_list else "")


def _groups(parameters: Iterable[Parameter]) -> dict[str, list[tuple[str, str]]]:
    """Heading to rows of (what is written, what it means)."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in parameters:
        info = parameter.info
        if isinstance(info, Argument):
            groups.setdefault("Arguments", []).append((label(parameter), _meaning(parameter)))
        else:
            groups.setdefault(info.panel or "Options", []).append((_flag(parameter), _meaning(parameter)))
    own = groups.pop("Arguments", None)
    options = [*groups.pop("Options", []), (", ".join(HELP_FLAGS), "Show this message and exit.")]
    return ({"Arguments": own} if own else {}) | {"Options": options} | groups


def _flag(parameter: Parameter) -> str:
    info = parameter.info
    assert not isinstance(info, Argument)
    names = ", ".join(sorted(info.names, key=len))
    if parameter.is_switch:
        return " / ".join([names, *info.off_names])
    return f"{names} {label(parameter)}"


def _meaning(parameter: Parameter) -> str:
    info, default, notes = parameter.info, parameter.default, []
    if default not in (None, "", inspect.Parameter.empty):
        if not parameter.is_switch:
            notes.append(f"default: {default}")
        elif isinstance(info, Option) and info.off_names:
            notes.append(f"default: {'yes' if default else 'no'}")
    if isinstance(info, Option) and info.min is not None:
        notes.append(f"at least {info.min}")
    return f"{info.help} [{'; '.join(notes)}]".strip() if notes else info.help


def _definitions(rows: list[tuple[str, str]], width: int) -> Iterator[str]:
    """Two columns."""
    column = min(max(len(left) for left, _ in rows), _MOST_LEFT) + 4
    for left, right in rows:
        lines = textwrap.wrap(right, max(10, width - column)) or [""]
        if len(left) > column - 4:
            yield f"  {left}"
        else:
            yield (f"  {left}".ljust(column) + lines.pop(0)).rstrip()
        for line in lines:
            yield " " * column + line
