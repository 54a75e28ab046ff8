"""Reasoning apart from the answer: what stands between a model's marks, opened by the chat template or by the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pellucid.errors import InvalidParameterError
from pellucid.server.output.events import Content, Event, Reasoning
from pellucid.server.output.harmony import CHANNEL, END, MESSAGE, writes_harmony
from pellucid.server.output.marks import certain


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """How a family of models marks its reasoning."""

    open: str
    close: str
    is_assumed: bool = False
    """Whether an answer begins in reasoning although neither the prompt nor the model opened it."""
    is_harmony: bool = False
    """The whole answer is in the harmony format (harmony.py)."""


REASONING_PARSERS: Mapping[str, ReasoningMarks] = {
    "qwen3": ReasoningMarks("<think>", "</think>"),
    "deepseek_r1": ReasoningMarks("<think>", "</think>", is_assumed=True),
    "mistral": ReasoningMarks("[THINK]", "[/THINK]"),
    "openai_gptoss": ReasoningMarks(f"{CHANNEL}analysis{MESSAGE}", END, is_harmony=True),
}
"""By vLLM's names."""


def reasoning_marks(parser: str, template: str | None) -> ReasoningMarks | None:
    """The marks for a parser's name; "auto" looks for them in the chat template. None: nothing is split off."""
    if parser == "auto":
        if template is not None and writes_harmony(template):
            return REASONING_PARSERS["openai_gptoss"]
        for marks in (REASONING_PARSERS["qwen3"], REASONING_PARSERS["mistral"]):
            if template is not None and (marks.open in template or marks.close in template):
                return marks
        return None
    return None if parser == "none" else REASONING_PARSERS[parser]


def check_reasoning_parser(name: str) -> None:
    """Raises `InvalidParameterError` for a name that is not in the table."""
    allowed = ("auto", "none", *REASONING_PARSERS)
    if name not in allowed:
        raise InvalidParameterError(
            "reasoning_parser", f"reasoning_parser is {name!r}, but must be one of {', '.join(allowed)}"
        )


class ReasoningParser:
    """Splits one answer. White space at the edges of the reasoning, and before the answer behind it, is left out.

    prompt: what the model reads; where it ends with the mark that opens, the answer begins inside. going_on: the part
    of an answer that the prompt ends with (`continue_final_message`), which may have opened it further back.
    """

    def __init__(self, marks: ReasoningMarks, prompt: str = "", going_on: str = "") -> None:
        self._marks = marks
        self._buffer = ""
        self._num_pushed = 0
        end = prompt.rstrip()
        is_open = end.endswith(marks.open) or going_on.rfind(marks.open) > going_on.rfind(marks.close)
        self._is_assumed = marks.is_assumed and not end.endswith(marks.close)
        self._state = "inside" if is_open else "before"
        self._at_edge = True
        """Whether only white space came since the state began."""
        self.has_reasoned = is_open
        """Whether there is reasoning, empty or not."""

    @property
    def is_open(self) -> bool:
        """Whether what comes is reasoning."""
        return self._state == "inside" or (self._state == "before" and self._is_assumed)

    @property
    def is_over(self) -> bool:
        """Whether all that comes is the answer."""
        return self._state == "after"

    @property
    def _at(self) -> int:
        """Where the buffer begins in what was generated."""
        return self._num_pushed - len(self._buffer)

    def push(self, text: str) -> list[Event]:
        self._buffer += text
        self._num_pushed += len(text)
        events: list[Event] = []
        if self._state == "before":
            self._decide()
        if self._state == "inside":
            events += self._inside()
        if self._state == "after":
            events += self._after()
        return events

    def finish(self) -> list[Event]:
        begin, rest, self._buffer = self._at, self._buffer, ""
        if self._state == "inside":
            return [Reasoning(rest, begin)] if rest.strip() else []
        return [Content(rest, begin)] if rest else []

    def _decide(self) -> None:
        """Whether the answer opens with reasoning."""
        start, mark = self._buffer.lstrip(), self._marks.open
        if start.startswith(mark):
            self._buffer, self._state, self.has_reasoned = start[len(mark) :], "inside", True
        elif not mark.startswith(start):
            if self._is_assumed:
                self._state, self.has_reasoned = "inside", True
            else:
                self._state, self._at_edge = "after", False

    def _inside(self) -> list[Event]:
        if self._at_edge:
            self._buffer = self._buffer.lstrip()
            self._at_edge = not self._buffer
        begin, at = self._at, self._buffer.find(self._marks.close)
        if at < 0:
            end = certain(self._buffer, (self._marks.close,))
            text, self._buffer = self._buffer[:end], self._buffer[end:]
        else:
            text, self._buffer = self._buffer[:at].rstrip(), self._buffer[at + len(self._marks.close) :]
            self._state, self._at_edge = "after", True
        return [Reasoning(text, begin)] if text else []

    def _after(self) -> list[Event]:
        if self._at_edge:
            self._buffer = self._buffer.lstrip()
            self._at_edge = not self._buffer
        begin, text, self._buffer = self._at, self._buffer, ""
        return [Content(text, begin)] if text else []
