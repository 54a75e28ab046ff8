"""OpenAI's harmony format (gpt-oss): an answer is messages, each in a channel and perhaps to a recipient.

<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>
<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from pellucid.server.output.events import CallArguments, CallStart, Content, Event, Reasoning
from pellucid.server.output.marks import find_first, num_begun

START, CHANNEL, CONSTRAIN, MESSAGE, END = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"
ASSISTANT = f"{START}assistant"
_ENDS = (END, "<|return|>", "<|call|>")
_BODY_ENDS = (*_ENDS, ASSISTANT)
"""The last ends a message whose own end is missing."""
_MARKS = (*_ENDS, START, CHANNEL, CONSTRAIN, MESSAGE)
_FUNCTIONS = "functions."
_MAX_HEAD = 256
_HEAD = re.compile(
    r" ?(?:<\|(?:end|return|call)\|> ?)*(?:<\|start\|> ?)?(?:assistant)?(?: ?to=(?P<early>[^\s<]+))? ?"
    r"(?:<\|channel\|> ?(?P<channel>\w*)(?: to=(?P<late>[^\s<]+))? ?(?:<\|constrain\|> ?)?[\w./-]* ?"
    r"|<\|constrain\|> ?[\w./-]* ?)?"
)
"""A message's head, before the mark of its text; every run of white space is one space."""


def writes_harmony(template: str) -> bool:
    """Whether a chat template is of the format."""
    return CHANNEL in template and MESSAGE in template


class HarmonyParser:
    """Splits one answer. A text that has no head as it should be stays content.

    tool_names: of the functions that may be called; None: messages to functions are none. splits_reasoning: else what
    is in the channel `analysis` is content too. prompt: what the model reads; it ends in a message's head or its text.
    """

    def __init__(
        self, tool_names: Collection[str] | None = None, *, splits_reasoning: bool = True, prompt: str = ""
    ) -> None:
        self._tool_names = tool_names
        self._splits_reasoning = splits_reasoning
        self._buffer = ""
        self._end = 0
        """Where it ends in what was generated."""
        self._kind: type[Content] | type[Reasoning] | type[CallStart] | None = None
        """Of the message whose text is being read; None: a head is."""
        self._begun = ""
        """What the prompt has of the head."""
        self._is_first = True
        self._num_calls = 0
        self._is_blank = True
        """Whether the message has had nothing but white space."""
        self._told: set[type] = set()
        """Kinds of text that were given out in messages before this one."""
        self._read_prompt(prompt)

    def _read_prompt(self, prompt: str) -> None:
        at = prompt.rfind(START)
        if at < 0:
            return
        self.push(prompt[at:])
        if self._kind is None:
            self._begun = self._buffer
        elif self._kind is CallStart:
            self._kind = Content
        self._buffer, self._end, self._num_calls, self._is_first = "", 0, 0, True
        self._told.clear()

    @property
    def is_reasoning(self) -> bool:
        """Whether a text is being read that is reasoning."""
        return self._kind is Reasoning

    @property
    def is_in_text(self) -> bool:
        """Whether a message's text is being read, not its head."""
        return self._kind is not None

    @property
    def has_role(self) -> bool:
        """Whether what comes is the rest of a head whose role stands in the prompt."""
        return self._kind is None and self._begun.startswith(ASSISTANT)

    def push(self, text: str, at: int | None = None) -> list[Event]:
        """As `Parser.push`. at: where the text begins in what was generated; else right behind the last."""
        self._buffer += text
        self._end = (self._end if at is None else at) + len(text)
        events: list[Event] = []
        while self._buffer and (self._head(events) if self._kind is None else self._text(events)):
            pass
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        rest, self._buffer = self._buffer, ""
        if self._kind is not None:
            self._give(events, rest, self._end - len(rest))
            self._end_message(events)
        elif not any(mark in rest for mark in _MARKS) and (rest.strip() or (rest and self._is_first)):
            self._kind = Content
            self._give(events, rest, self._end - len(rest))
        return events

    def _head(self, events: list[Event]) -> bool:
        """Take a head; whether there may be more to take."""
        found = self._buffer.find(MESSAGE)
        head = self._begun + (self._buffer if found < 0 else self._buffer[:found])
        if found < 0 and _may_become_head(head):
            return False
        match = _matched(head) if found >= 0 else None
        self._begun, self._is_first, self._is_blank = "", False, True
        if match is None:
            self._kind = Content
            self._give(events, self._buffer[0], self._end - len(self._buffer))  # not as a mark again
            self._buffer = self._buffer[1:]
            return True
        self._buffer = self._buffer[found + len(MESSAGE) :]
        name = self._function(match["late"] or match["early"] or "")
        if name:
            self._kind = CallStart
            events.append(CallStart(self._num_calls, name))
        else:
            is_reasoning = self._splits_reasoning and match["channel"] == "analysis"
            self._kind = Reasoning if is_reasoning else Content
        return True

    def _function(self, recipient: str) -> str | None:
        if self._tool_names is None:
            return None
        if recipient.startswith(_FUNCTIONS):
            return recipient.removeprefix(_FUNCTIONS)
        return recipient if recipient in self._tool_names else None

    def _text(self, events: list[Event]) -> bool:
        """Take what can be taken of a message's text; whether there may be more to take."""
        found = find_first(self._buffer, _BODY_ENDS)
        end = len(self._buffer) - num_begun(self._buffer, _BODY_ENDS) if found is None else found.at
        self._give(events, self._buffer[:end], self._end - len(self._buffer))
        self._buffer = self._buffer[end:]
        if found is None:
            return False
        if found.mark in _ENDS:
            self._buffer = self._buffer[len(found.mark) :]
        self._end_message(events)
        return True

    def _give(self, events: list[Event], text: str, at: int) -> None:
        if not text:
            return
        if self._kind is CallStart:
            events.append(CallArguments(self._num_calls, text))
        elif self._kind is not None:
            kind = Reasoning if self._kind is Reasoning else Content
            if kind in self._told:
                events.append(kind("\n\n", -1))
                self._told.discard(kind)
            events.append(kind(text, at))
        self._is_blank = self._is_blank and not text.strip()

    def _end_message(self, events: list[Event]) -> None:
        if self._kind is CallStart:
            if self._is_blank:
                events.append(CallArguments(self._num_calls, "{}"))
            self._num_calls += 1
        elif self._kind is not None and not self._is_blank:
            self._told.add(self._kind)
        self._kind = None


def _matched(head: str) -> re.Match[str] | None:
    return _HEAD.fullmatch(re.sub(r"\s+", " ", head)) if len(head) <= _MAX_HEAD else None


def _may_become_head(text: str) -> bool:
    """Whether the text is the first part of a head and its mark."""
    if len(text) - num_begun(text, (MESSAGE,)) > _MAX_HEAD:
        return False
    ends = [""]
    for word in (*_MARKS, "assistant", "to=x"):
        ends += [word[n:] for n in range(1, len(word)) if text.endswith(word[:n])]
    plain = re.sub(r"\s+", " ", text)
    return any(_HEAD.fullmatch((plain + end).removesuffix(MESSAGE)) for end in ends)


def num_reasoning_pieces(pieces: Iterable[str], prompt: str) -> int:
    """How many pieces of an answer are in messages of reasoning, their heads and ends included."""
    parser = HarmonyParser(prompt=prompt)
    count = waiting = 0
    for piece in pieces:
        was_reasoning = parser.is_reasoning
        parser.push(piece)
        waiting += 1
        if was_reasoning or parser.is_reasoning:
            count, waiting = count + waiting, 0
        elif parser.is_in_text:
            waiting = 0
    return count
