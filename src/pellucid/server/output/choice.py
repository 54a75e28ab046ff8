"""One answer's text → reasoning, content and calls."""

from __future__ import annotations

from pellucid.server.output.events import CallArguments, CallStart, Content, Event, Parser, merged
from pellucid.server.output.harmony import HarmonyParser
from pellucid.server.output.tool_calls import ToolCallParser


class ChoiceParser:
    """Reasoning is split off first; only what comes after it is searched for calls. A `HarmonyParser` does both.

    Without parsers everything is content. parallel: whether more than the first call is given.
    """

    def __init__(
        self,
        reasoning: Parser | None = None,
        tools: ToolCallParser | HarmonyParser | None = None,
        *,
        parallel: bool = True,
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._parallel = parallel
        self.num_calls = 0
        """Calls that were given."""
        self._num_pushed = 0

    def push(self, text: str) -> list[Event]:
        """The events that a piece of text completes."""
        at = self._num_pushed
        self._num_pushed += len(text)
        if self._reasoning is None:
            if self._tools is None:
                return [Content(text, at)] if text else []
            return self._given(self._answer([Content(text, at)]))
        return self._given(self._answer(self._reasoning.push(text)))

    def finish(self) -> list[Event]:
        """What was held back."""
        events = [] if self._reasoning is None else self._answer(self._reasoning.finish())
        return self._given(events + ([] if self._tools is None else self._tools.finish()))

    def _answer(self, events: list[Event]) -> list[Event]:
        if self._tools is None:
            return events
        result: list[Event] = []
        for event in events:
            result += self._tools.push(event.text, event.at) if isinstance(event, Content) else [event]
        return result

    def _given(self, events: list[Event]) -> list[Event]:
        kept: list[Event] = []
        for event in merged(events):
            if isinstance(event, (CallStart, CallArguments)):
                if event.index > 0 and not self._parallel:
                    continue
                self.num_calls = event.index + 1
            kept.append(event)
        return kept
