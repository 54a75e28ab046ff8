"""What a piece of generated text turns out to be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer itself."""

    text: str
    at: int = 0
    """Where it begins in what was generated, in characters; −1: it was not, it only parts two messages."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model wrote before its answer."""

    text: str
    at: int = 0
    """As of `Content`."""


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins; index counts those of one answer from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as the model wrote them (JSON, unless the model made a mistake)."""

    index: int
    fragment: str


Event = Content | Reasoning | CallStart | CallArguments


class Parser(Protocol):
    """Takes text piece by piece; `finish` gives out what was held back."""

    def push(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


@dataclass(slots=True)
class ToolCall:
    """A whole call."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class Message:
    """A whole answer."""

    content: str
    reasoning: str
    calls: list[ToolCall]


def joined(events: Iterable[Event]) -> Message:
    """The message that events add up to."""
    message = Message("", "", [])
    for event in events:
        if isinstance(event, Content):
            message.content += event.text
        elif isinstance(event, Reasoning):
            message.reasoning += event.text
        elif isinstance(event, CallStart):
            message.calls.append(ToolCall(event.name))
        else:
            message.calls[event.index].arguments += event.fragment
    return message


def merged(events: Sequence[Event]) -> list[Event]:
    """The same with neighbours of one kind joined, where nothing was left out between them, and without empty ones."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, (Content, Reasoning)):
            if not event.text:
                continue
            if isinstance(last, (Content, Reasoning)) and type(last) is type(event) and _end(last) == event.at:
                result[-1] = type(event)(last.text + event.text, last.at)
                continue
        elif isinstance(event, CallArguments):
            if not event.fragment:
                continue
            if isinstance(last, CallArguments) and last.index == event.index:
                result[-1] = CallArguments(event.index, last.fragment + event.fragment)
                continue
        result.append(event)
    return result


def _end(event: Content | Reasoning) -> int:
    return event.at + len(event.text)
