"""Tool calls in the text of an answer, with the content around them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from pellucid.server.output.call_readers import SPACE, CallReader, NotACallError
from pellucid.server.output.events import CallArguments, CallStart, Content, Event
from pellucid.server.output.marks import certain, find_first, may_begin_with, num_begun

_BETWEEN = f"{SPACE}[],;"
"""What may stand between calls: lists are read as their elements."""


@dataclass(frozen=True, slots=True)
class CallMarks:
    """Where calls stand."""

    opens: tuple[str, ...]
    """Each begins a section of calls."""
    close: str | None = None
    """Ends it; without one, what is no call does."""
    call_close: str | None = None
    """Stands behind each call."""
    may_lack: bool = False
    """An answer that begins with `{` begins with a section too; calls in it must be of known tools."""

    @property
    def closes(self) -> tuple[str, ...]:
        """Those that end a call, alone or with its section."""
        return tuple(mark for mark in (self.close, self.call_close) if mark is not None)


class ToolCallParser:
    """Splits one answer. What looks like a call and is none stays content; white space around calls is left out.

    reader: makes the reader for a call that begins with the given character; None: no call begins so.
    """

    def __init__(
        self, marks: CallMarks, reader: Callable[[str], CallReader | None], tool_names: Collection[str]
    ) -> None:
        self._marks = marks
        self._make_reader = reader
        self._tool_names = tool_names
        self._buffer = ""
        """Not decided yet."""
        self._end = 0
        """Where it ends in what was generated."""
        self._opening = ""
        """While in a section: what it began with, white space before it included."""
        self._undecided = ""
        """While in a section: what came of it so far, until a call in it is certain."""
        self._in_section = False
        self._has_call = False
        """Whether this section has had a call."""
        self._reader: CallReader | None = None
        self._num_given = 0
        """Characters of the reader's arguments that were given out; −1: the call has not been announced."""
        self._num_calls = 0
        self._is_start = True
        """Nothing but white space has come."""
        self._after_call = False
        """White space is left out until something else comes."""

    def push(self, text: str, at: int | None = None) -> list[Event]:
        """As `Parser.push`. at: where the text begins in what was generated; else right behind the last."""
        self._buffer += text
        self._end = (self._end if at is None else at) + len(text)
        events: list[Event] = []
        while self._buffer and (self._section(events) if self._in_section else self._text(events)):
            pass
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        while self._in_section or self._buffer:
            if not self._in_section:
                rest, self._buffer = self._buffer, ""
                if not self._after_call or rest.strip():
                    self._give(events, rest)
            elif self._reader is not None and self._num_given >= 0:
                self._end_cut_off(events, self._reader)
            elif self._reader is None and self._has_call:
                self._in_section, self._buffer = False, ""  # the beginning of a mark at most
            else:
                self._give_up(events)
                events += self.push("")
        return events

    def _end_cut_off(self, events: list[Event], reader: CallReader) -> None:
        """A call stays as far as it came."""
        for char in self._buffer:
            reader.feed(char)
        self._report(events, reader)
        self._in_section, self._buffer = False, ""

    # Outside sections

    def _text(self, events: list[Event]) -> bool:
        """Take what can be taken; whether there may be more to take."""
        if self._is_start and self._marks.may_lack:
            start = self._buffer.lstrip()
            if not start:
                return False
            if start[0] == "{":
                space = len(self._buffer) - len(start)
                self._begin_section(self._buffer[:space])
                self._buffer = start
                return True
        found = find_first(self._buffer, self._marks.opens)
        if found is None:
            end = certain(self._buffer, self._marks.opens)
            text, self._buffer = self._buffer[:end], self._buffer[end:]
            self._give(events, text)
            return False
        before = self._buffer[: found.at]
        text = before.rstrip()
        self._give(events, text, self._end - len(self._buffer) + len(text))
        self._begin_section(before[len(before.rstrip()) :] + found.mark)
        self._buffer = self._buffer[found.at + len(found.mark) :]
        return True

    def _give(self, events: list[Event], text: str, end: int | None = None) -> None:
        """The text ends before the place `end`; the buffer's, where that is not given."""
        end = self._end - len(self._buffer) if end is None else end
        if self._after_call:
            text = text.lstrip()
        if text:
            self._after_call = self._is_start = False
            events.append(Content(text, end - len(text)))

    def _begin_section(self, opening: str) -> None:
        self._in_section, self._has_call = True, False
        self._opening, self._undecided = opening, ""
        self._is_start = False

    # Inside one

    def _section(self, events: list[Event]) -> bool:
        """Take what can be taken; whether there may be more to take."""
        if self._reader is not None:
            return self._read(events, self._reader)
        marks = (*self._marks.opens, *self._marks.closes)
        for mark in marks:
            if self._buffer.startswith(mark):
                self._skip(len(mark))
                if mark == self._marks.close:
                    self._leave(events)
                return True
        if may_begin_with(self._buffer, marks):
            return False
        char = self._buffer[0]
        if (reader := self._make_reader(char)) is not None:
            self._reader, self._num_given = reader, -1
        elif char in _BETWEEN:
            self._skip(1)
        else:
            self._leave(events)
        return True

    def _skip(self, count: int) -> None:
        self._undecided += self._buffer[:count]
        self._buffer = self._buffer[count:]

    def _leave(self, events: list[Event]) -> None:
        """The section ends before what is in the buffer."""
        if self._has_call:
            self._in_section, self._after_call = False, True
        else:
            self._give_up(events)

    def _give_up(self, events: list[Event]) -> None:
        """What was being read is no call: it is content, and all but its beginning is looked at again."""
        raw = self._reader.raw if self._reader is not None else ""
        self._reader, self._in_section = None, False
        if self._has_call:
            self._after_call = True
            self._buffer = raw + self._buffer
            opening = ""
        else:
            self._buffer = self._undecided + raw + self._buffer
            opening = self._opening
        if not opening.strip():  # no mark: then not as a call again
            opening += self._buffer[:1]
            self._buffer = self._buffer[1:]
        self._give(events, opening)

    def _read(self, events: list[Event], reader: CallReader) -> bool:
        taken, buffer = 0, self._buffer
        try:
            while taken < len(buffer) and not (reader.is_complete or reader.is_broken) and reader.feed(buffer[taken]):
                taken += 1
                self._check_name(reader)
        except NotACallError:
            self._buffer = buffer[taken:]
            self._give_up(events)
            return True
        self._buffer = buffer[taken:]
        if reader.is_broken:
            self._read_broken(reader)
        if reader.has_begun:
            self._report(events, reader)
        if reader.is_complete:
            self._reader = None
        return reader.is_complete

    def _check_name(self, reader: CallReader) -> None:
        if self._marks.may_lack and reader.has_begun and self._num_given < 0 and reader.name not in self._tool_names:
            raise NotACallError

    def _read_broken(self, reader: CallReader) -> None:
        """Arguments that are no JSON go on to the closing mark."""
        closes = self._marks.closes
        found = find_first(self._buffer, closes)
        end = found.at if found else len(self._buffer) - num_begun(self._buffer, closes)
        for char in self._buffer[:end]:
            reader.feed(char)
        self._buffer = self._buffer[end:]
        reader.is_complete = found is not None

    def _report(self, events: list[Event], reader: CallReader) -> None:
        if self._num_given < 0:
            assert reader.name is not None
            events.append(CallStart(self._num_calls, reader.name))
            self._num_calls += 1
            self._has_call, self._num_given = True, 0
        events.append(CallArguments(self._num_calls - 1, reader.arguments[self._num_given :]))
        self._num_given = len(reader.arguments)
