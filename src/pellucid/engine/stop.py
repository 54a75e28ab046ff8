"""Stop strings: found across token boundaries, and nothing of one is ever emitted.

Text that could be the beginning of a stop string is held back until it is certain. The string that is complete
first wins (of those complete at the same character, the longest), so the answer does not depend on how the
text falls into tokens. Control tokens that the text leaves out are looked at as well, as wholes: a stop string may
be, or contain, the text of one, but does not match inside it.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStringMatcher:
    """Takes text piece by piece, gives back what is certain to be part of the answer."""

    __slots__ = ("_include", "_is_edge", "_is_shown", "_stops", "_text", "matched")

    def __init__(self, stops: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        self._stops = stops
        self._include = include_stop_str_in_output
        self._text = ""
        """Held back: control tokens that the answer leaves out included."""
        self._is_shown: list[bool] = []
        """[len(_text)] whether a character belongs to the answer's text."""
        self._is_edge: list[bool] = []
        """[len(_text)] whether a match may begin or end before a character: not inside a control token."""
        self.matched: str | None = None
        """The stop string that was found; nothing may be pushed after it."""

    @property
    def held_text(self) -> str:
        """Text of the answer that is held back."""
        return "".join(char for char, shown in zip(self._text, self._is_shown, strict=True) if shown)

    def push(self, text: str, *, is_shown: bool = True, may_stop: bool = True) -> str:
        """Add text, or that of one control token that is left out; gives back what can be emitted.

        `may_stop=False` (before min_tokens) looks for no stop string that ends in this piece.
        """
        num_held, num_held_shown = len(self._text), sum(self._is_shown)
        self._text += text
        self._is_shown += [is_shown] * len(text)
        self._is_edge += [is_shown or i == 0 for i in range(len(text))]
        shown_places = [place for place, shown in enumerate(self._is_shown) if shown]
        shown_text = "".join(self._text[place] for place in shown_places)
        if may_stop:
            found = self._find(num_held, num_held_shown, shown_text, shown_places)
            if found is not None:
                start, end, self.matched = found
                return self._take(end if self._include else start)
        certain = len(self._text) - self._num_held_back(self._text)
        num_shown_held = self._num_held_back(shown_text)
        if num_shown_held:
            certain = min(certain, shown_places[-num_shown_held])
        return self._take(certain)

    def flush(self) -> str:
        """What is still held back, when no more text comes."""
        return self._take(len(self._text))

    def _find(self, num_held: int, num_held_shown: int, shown: str, places: list[int]) -> tuple[int, int, str] | None:
        """(start, end, stop string) of the match that ends first, in places of the held text.

        Both the text with the left-out tokens and the text as the reader sees it are searched.
        """
        found: list[tuple[int, int, str]] = []
        for stop in self._stops:
            start = self._text.find(stop, max(0, num_held - len(stop) + 1))
            while start >= 0 and not (self._may_cut(start) and self._may_cut(start + len(stop))):
                start = self._text.find(stop, start + 1)
            if start >= 0:
                found.append((start, start + len(stop), stop))
            start = shown.find(stop, max(0, num_held_shown - len(stop) + 1))
            if start >= 0:
                found.append((places[start], places[start + len(stop) - 1] + 1, stop))
        return min(found, key=lambda match: (match[1], match[0]), default=None)

    def _may_cut(self, place: int) -> bool:
        return place == len(self._text) or self._is_edge[place]

    def _num_held_back(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _take(self, end: int) -> str:
        """Remove the first `end` characters and give back those that belong to the answer's text."""
        while not self._may_cut(end):
            end -= 1
        taken = "".join(char for char, shown in zip(self._text[:end], self._is_shown, strict=False) if shown)
        self._text, self._is_shown, self._is_edge = self._text[end:], self._is_shown[end:], self._is_edge[end:]
        return taken
