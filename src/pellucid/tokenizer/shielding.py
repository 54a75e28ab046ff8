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

from pellucid.errors import InvalidParameterError
from pellucid.tokenizer.special_tokens import SpecialTokenScanner

# Templates may change case (`role | upper`), so control strings count in any case; the four odd characters are those
# outside ASCII whose upper or lower case is an ASCII letter.
_FOLD: dict[int, int | str] = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_FOLD |= {0x212A: "k", 0x017F: "s", 0x0131: "i", 0x0130: "i"}
_PRIVATE_USE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE), range(0xE000, 0xF900))

Span = tuple[int, int]


class ControlStrings:
    """The control strings of a tokenizer, prepared for searching; made once per tokenizer."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        folded = {text.translate(_FOLD): token_id for text, token_id in special_tokens.items()}
        self.scanner = SpecialTokenScanner(folded)
        self._heads = {text[:n] for text in folded for n in range(1, len(text))}
        self._tails = {text[n:] for text in folded for n in range(1, len(text))}
        self._longest = max(map(len, folded), default=0)

    def may_begin_at_end_of(self, folded: str) -> bool:
        """Whether the text ends with the first part of a control string."""
        return any(folded[-n:] in self._heads for n in range(1, min(self._longest, len(folded)) + 1))

    def may_end_at_start_of(self, folded: str) -> bool:
        """Whether the text begins with the last part of a control string."""
        return any(folded[:n] in self._tails for n in range(1, min(self._longest, len(folded)) + 1))


class Shield:
    """Marks for one rendering, chosen so that they occur nowhere in `data` or `template`.

    tail is one more such character, for the caller's own use.
    """

    def __init__(self, control_strings: ControlStrings, template: str, data: Any) -> None:
        self._control_strings = control_strings
        self._marked: set[str] = set()
        self._begin, self._end, self._seam, self.tail = _unused_characters(4, template, data)

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
        for begin, end, _ in self._control_strings.scanner.matches(folded):
            self._marked.add(folded[begin:end])
            begin, end = _with_inner_space(text, at, begin, end)
            parts += [text[at:begin], self._begin, text[begin:end], self._end]
            at = end
        parts.append(text[at:])
        # Half a control string at an edge could meet its other half in the next message: a seam keeps them apart.
        if self._control_strings.may_begin_at_end_of(folded):
            parts.append(self._seam)
        if self._control_strings.may_end_at_start_of(folded):
            parts.insert(0, self._seam)
        return "".join(parts)

    def reveal(self, rendered: str) -> tuple[str, list[Span]]:
        """The text without marks, and the spans (begin, end), ascending, that must stay text.

        An empty span (n, n) forbids a control token across position n. Templates may cut a string between its marks;
        a control string next to the mark that is left stays text.
        """
        parts, marks, length = [], [], 0
        for part, mark in _split_at(rendered, {self._begin, self._end, self._seam}):
            parts.append(part)
            length += len(part)
            if mark is not None:
                marks.append((length, mark))
        text = "".join(parts)
        return text, _merged(self._spans(text, marks)) if marks else []

    def _spans(self, text: str, marks: list[tuple[int, str]]) -> Iterator[Span]:
        index = 0
        while index < len(marks):
            begin, mark = marks[index]
            index += 1
            if mark == self._begin and index < len(marks) and marks[index][1] == self._end:
                end = marks[index][0]
                if text[begin:end].strip().translate(_FOLD) in self._marked:
                    yield begin, end
                    index += 1
                    continue
            yield self._span_at_lone_mark(text, begin, mark)

    def _span_at_lone_mark(self, text: str, at: int, mark: str) -> Span:
        if mark == self._end:
            last = at
            while last > 0 and text[last - 1].isspace():
                last -= 1
            sizes = (n for n in self._sizes() if text[max(last - n, 0) : last].translate(_FOLD) in self._marked)
            return last - next(sizes, last - at), at
        if mark == self._begin:
            first = at
            while first < len(text) and text[first].isspace():
                first += 1
            sizes = (n for n in self._sizes() if text[first : first + n].translate(_FOLD) in self._marked)
            return at, first + next(sizes, at - first)
        return at, at

    def _sizes(self) -> list[int]:
        return sorted({len(text) for text in self._marked}, reverse=True)


def _with_inner_space(text: str, at: int, begin: int, end: int) -> Span:
    """Take white space around a control string between the marks too, so that a template that splits there and trims
    what is left finds the space at the edge; not at the edges of the text, where the whole is trimmed."""
    first, last = begin, end
    while first > at and text[first - 1].isspace():
        first -= 1
    while last < len(text) and text[last].isspace():
        last += 1
    return (begin if first == 0 else first), (end if last == len(text) else last)


def _merged(spans: Iterator[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _split_at(text: str, marks: set[str]) -> Iterator[tuple[str, str | None]]:
    at = 0
    if any(mark in text for mark in marks):
        for position, character in enumerate(text):
            if character in marks:
                yield text[at:position], character
                at = position + 1
    yield text[at:], None


def _unused_characters(count: int, template: str, data: Any) -> list[str]:
    used = set(template)
    for text in _strings(data):
        if not text.isascii():
            used.update(text)
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
