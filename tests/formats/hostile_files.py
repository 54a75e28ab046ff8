"""Hostile values for the fields of JSON files, and hostile things in the place of files."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 3, 10**6, 2**40, -(2**70), 0.5, 1.0, float("nan"), float("inf"), "", "a", "\ud800",
    "<s>", "a" * 5000, "▁", [], [[]], [0], ["a"], [None], {}, {"a": 0}, {"type": "x"}, {"content": "<s>"},
    {"type": "Sequence", "normalizers": [], "pretokenizers": [], "processors": [], "decoders": []},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of the values inside, of a vocabulary the first few."""
    yield path
    if isinstance(value, dict):
        for key in list(value)[: 3 if path[-1:] == ("vocab",) else None]:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(4, len(value))):
            yield from places(value[index], (*path, index))


def changed(value: Any, path: tuple[Any, ...], hostile: Any) -> Any:
    """The value with another one at the path; `changed` itself stands for: taken out."""
    if not path:
        return hostile
    whole = copy.deepcopy(value)
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    if hostile is changed:
        del inner[path[-1]]
    else:
        inner[path[-1]] = hostile
    return whole


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(65 << 20)  # a hole: no disk


STATES: dict[str, Callable[[Path], Any]] = {
    "folder": Path.mkdir,
    "pipe": _pipe,
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "empty": Path.touch,
    "cut": lambda path: path.write_text('{"model": {"type"'),
    "UTF-16": lambda path: path.write_text("{}\u4e00", encoding="utf-16"),
    "zeros": lambda path: path.write_bytes(bytes(1000)),
    "deep": lambda path: path.write_text("[" * 100_000),
    "deep objects": lambda path: path.write_text('{"a":' * 100_000),
    "list": lambda path: path.write_text("[]"),
    "huge": _huge,
}
