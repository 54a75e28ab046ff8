"""Control strings inside messages stay text.

A user who writes `<|im_end|>` must not end the turn. Before a template runs, every control string inside the messages
is put between two marks; after it ran, the marks are taken out again and the places they enclosed are encoded as
plain text, so the model sees exactly what was written. Marks are private-use characters that occur nowhere in the
input, so nothing needs escaping and nothing can be forged; where no control string occurs, nothing is marked and the
template sees the messages untouched. The string itself stays as it is between the marks, so a template's own logic
(`in`, `split`, `strip`) works on it as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import InvalidParameterError
from .special_tokens import SpecialTokenScanner

# Templates may change case (`role | upper`), so control strings count in any case; the four odd characters are those
# outside ASCII whose upper or lower case is an ASCII letter.
_FOLD = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)} | {0x212A: "k", 0x017F: "s", 0x0131: "i", 0x0130: "i"}
_PRIVATE_USE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE), range(0xE000, 0xF900))


class Shield:
    """Marks for one rendering, chosen so that they occur nowhere in `data` or `template`."""

    def __init__(self, control_strings: Mapping[str, int], template: str, data: Any) -> None:
        folded = {text.translate(_FOLD): token_id for text, token_id in control_strings.items()}
        self._scanner = SpecialTokenScanner(folded)
        self._heads = {text[:n] for text in folded for n in range(1, len(text))}
        self._tails = {text[n:] for text in folded for n in range(1, len(text))}
        self._longest = max(map(len, folded), default=0)
        self.begin, self.end, self.seam, self.tail = _unused_characters(4, template, data)

    def protect(self, value: Any) -> Any:
        """A copy of `value` (strings, lists and mappings, keys too) with its control strings between marks."""
        if isinstance(value, str):
            return self._protect_text(value)
        if isinstance(value, dict):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.protect(item) for item in value]
        return value

    def _protect_text(self, text: str) -> str:
        folded = text.translate(_FOLD)
        parts, at = [], 0
        for begin, end, _ in self._scanner.matches(folded):
            parts += [text[at:begin], self.begin, text[begin:end], self.end]
            at = end
        parts.append(text[at:])
        # Half a control string at an edge could meet its other half in the next message: a seam keeps them apart.
        edge = range(1, min(self._longest, len(folded)) + 1)
        if any(folded[-n:] in self._heads for n in edge):
            parts.append(self.seam)
        if any(folded[:n] in self._tails for n in edge):
            parts.insert(0, self.seam)
        return "".join(parts)

    def reveal(self, rendered: str) -> tuple[str, list[tuple[int, int]]]:
        """The text without marks, and the spans (begin, end) that must stay text.

        A template may cut a string between its marks; a control string that still touches one mark stays text too.
        """
        text: list[str] = []
        spans: list[tuple[int, int]] = []
        length, opened = 0, -1
        for part, mark in _split_at(rendered, {self.begin, self.end, self.seam, self.tail}):
            text.append(part)
            length += len(part)
            if mark == self.end and opened >= 0:
                spans.append((opened, length))
                opened = -1
            elif mark is not None:
                if opened >= 0:
                    spans.append((opened, opened))
                opened = length if mark == self.begin else -1
                if mark != self.begin:
                    spans.append((length, length))
        if opened >= 0:
            spans.append((opened, opened))
        return "".join(text), spans


def _split_at(text: str, marks: set[str]) -> Iterator[tuple[str, str | None]]:
    at = 0
    if any(mark in text for mark in marks):
        for position, character in enumerate(text):
            if character in marks:
                yield text[at:position], character
                at = position + 1
    yield text[at:], None


def _unused_characters(count: int, template: str, data: Any) -> list[str]:
    used: set[str] = set()
    for text in _strings(data):
        if not text.isascii():
            used.update(text)
    used.update(template)
    free = (chr(code) for block in _PRIVATE_USE for code in block if chr(code) not in used)
    found = [character for character, _ in zip(free, range(count), strict=False)]
    if len(found) < count:
        raise InvalidParameterError("messages", "the messages use up all private-use characters of Unicode")
    return found


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)
