"""Finding special tokens in text: leftmost first, longest first, in time linear in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class SpecialTokenScanner:
    """Finds the texts of a fixed set of tokens.

    Matching is leftmost-longest, as the added tokens of the `tokenizers` library are matched. A vocabulary may have
    thousands of them (Gemma: 6,414), so a regular expression only finds the places where the first two characters
    fit; there a table says which lengths are worth a dictionary look-up.
    """

    def __init__(self, token_ids: Mapping[str, int]) -> None:
        self.token_ids = {text: token_id for text, token_id in token_ids.items() if text}
        lengths: dict[str, set[int]] = {}
        for text in self.token_ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {head: sorted(sizes, reverse=True) for head, sizes in lengths.items()}
        # Two-character heads before one-character ones, so that "<" alone does not hide "<b>".
        heads = sorted(self._lengths, key=lambda head: (-len(head), head))
        self._head = re.compile("|".join(map(re.escape, heads))) if heads else None
        self._single = {head for head in heads if len(head) == 1}

    def matches(self, text: str, start: int = 0) -> Iterator[tuple[int, int, int]]:
        """(begin, end, token id) of each match, from left to right, without overlaps."""
        while (match := self.match_at_or_after(text, start)) is not None:
            yield match
            start = match[1]

    def match_at_or_after(self, text: str, start: int) -> tuple[int, int, int] | None:
        """The first match that begins at `start` or later, or None."""
        if self._head is None:
            return None
        while (found := self._head.search(text, start)) is not None:
            match = self._match_with(text, found.start(), found.group())
            if match is not None:
                return match
            start = found.start() + 1
        return None

    def match_at(self, text: str, begin: int) -> tuple[int, int, int] | None:
        """The match that begins at `begin`, or None; does not look further."""
        found = None if self._head is None else self._head.match(text, begin)
        return None if found is None else self._match_with(text, begin, found.group())

    def _match_with(self, text: str, begin: int, head: str) -> tuple[int, int, int] | None:
        for length in self._lengths[head]:
            token_id = self.token_ids.get(text[begin : begin + length])
            if token_id is not None:
                return begin, begin + length, token_id
        return (begin, begin + 1, self.token_ids[head[0]]) if head[0] in self._single else None
