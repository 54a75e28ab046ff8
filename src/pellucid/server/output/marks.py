"""Marks in text that comes in pieces: what may be the beginning of one is held back until it is certain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Found(NamedTuple):
    """The first mark of a text: its place, and which."""

    at: int
    mark: str


def find_first(text: str, marks: Sequence[str], start: int = 0) -> Found | None:
    """The mark that begins first; of those that begin together, the longest."""
    found = [Found(at, mark) for mark in marks if (at := text.find(mark, start)) >= 0]
    return min(found, key=lambda one: (one.at, -len(one.mark)), default=None)


def num_begun(text: str, marks: Sequence[str]) -> int:
    """Length of the longest end of the text that a mark may begin with."""
    longest = 0
    for mark in marks:
        for length in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:length]):
                longest = length
                break
    return longest


def certain(text: str, marks: Sequence[str]) -> int:
    """How much of a text without a mark can be given out: not what may begin one, nor the white space before that."""
    return len(text[: len(text) - num_begun(text, marks)].rstrip())


def may_begin_with(text: str, marks: Sequence[str]) -> bool:
    """Whether the text is the first part of a mark (the empty one is)."""
    return any(mark.startswith(text) for mark in marks)
