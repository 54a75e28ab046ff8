"""The answers of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pellucid.outputs import CompletionOutput, RequestOutput
from pellucid.server.answers import Answers, Json
from pellucid.server.output.choice import ChoiceParser
from pellucid.server.output.events import CallArguments, CallStart, Content, Event, Reasoning, joined, merged
from pellucid.server.output.token_logprobs import PieceLogprobs
from pellucid.server.parsing import ChatRequest


class ChatAnswers(Answers):
    """/v1/chat/completions."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    request: ChatRequest

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._parsers: dict[int, ChoiceParser] = {}
        self._logprobs: dict[int, PieceLogprobs] = {}
        self._drawn: dict[int, list[int]] = {}
        """Ids by answer, where reasoning has to be counted."""
        self._num_reasoning_tokens = 0

    def take(self, delta: RequestOutput) -> bytes:
        """As in `Answers`; counts the tokens of reasoning besides."""
        if self.request.format is not None and self.request.format.reasoning is not None:
            for completion in delta.outputs:
                drawn = self._drawn.setdefault(completion.index, [])
                drawn += completion.token_ids
                if completion.finish_reason is not None:
                    self._num_reasoning_tokens += self.request.num_reasoning_tokens(
                        self._drawn.pop(completion.index), delta.prompt or "", self._tokenizer
                    )
        return super().take(delta)

    def usage(self) -> Json:
        """Tokens counted; those of reasoning too where answers have any."""
        usage = super().usage()
        if self.request.format is not None and self.request.format.reasoning is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self._num_reasoning_tokens}
        return usage

    def _choice(self, place: int, total: RequestOutput, completion: CompletionOutput) -> Json:
        parser = self.request.parser(total.prompt or "")
        events = merged(parser.push(completion.text) + parser.finish())
        read = joined(events)
        content: str | None = read.content or (None if read.calls or read.reasoning else "")
        message: Json = {"role": "assistant", "content": content, "refusal": None}
        if read.reasoning:
            message["reasoning_content"] = read.reasoning
        if read.calls:
            message["tool_calls"] = [
                {"id": self._new_id(), "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in read.calls
            ]
        return {
            "index": completion.index,
            "message": message,
            "logprobs": self._logprobs_of(completion, events),
            **_chat_ending(completion, parser),
            **self._prompt_logprobs(total),
        }

    def _frames(self, place: int, delta: RequestOutput, completion: CompletionOutput) -> list[bytes]:
        index, frames = completion.index, []
        if index not in self._begun:
            self._begun.add(index)
            self._parsers[index] = self.request.parser(delta.prompt or "")
            frames.append(self._frame(index, {"role": "assistant", "content": "", "refusal": None}, place))
        parser, is_end = self._parsers[index], completion.finish_reason is not None
        if self.request.params.logprobs is not None:
            self._take_logprobs(completion)
        events = parser.push(completion.text)
        if is_end:
            events = merged(events + parser.finish())
        for event in events:
            logprobs = self._logprobs_in(index, [event]) if self._logprobs else None
            if isinstance(event, Content):
                frames.append(self._text_frame(place, index, event.text, logprobs))
            else:
                frames.append(self._frame(index, self._delta(event), place, logprobs))
        if is_end:
            frames.append(self._frame(index, {}, place, **_chat_ending(completion, parser)))
        return frames

    def _text_choice(self, index: int, text: str, logprobs: Any) -> Json:
        return {"index": index, "delta": {"content": text}, "logprobs": logprobs, "finish_reason": None}

    def _frame(self, index: int, delta: Json, place: int, logprobs: Json | None = None, **ending: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None, **ending}
        return self.frame(self._chunk(choice, place))

    def _delta(self, event: Reasoning | CallStart | CallArguments) -> Json:
        if isinstance(event, Reasoning):
            return {"reasoning_content": event.text}
        if isinstance(event, CallArguments):
            return {"tool_calls": [{"index": event.index, "function": {"arguments": event.fragment}}]}
        function = {"name": event.name, "arguments": ""}
        head = {"index": event.index, "id": self._new_id(), "type": "function", "function": function}
        return {"tool_calls": [head]}

    def _new_id(self) -> str:
        assert self.request.format is not None
        assert self.request.format.tools is not None
        return self.request.format.tools.new_id()

    def _take_logprobs(self, completion: CompletionOutput) -> None:
        params = self.request.params
        if params.logprobs is None:
            return
        if completion.index not in self._logprobs:
            pieces = PieceLogprobs(self._tokenizer, params.skip_special_tokens, params.logprobs)
            self._logprobs[completion.index] = pieces
        self._logprobs[completion.index].take(completion)

    def _logprobs_of(self, completion: CompletionOutput, events: Sequence[Event]) -> Json | None:
        """Those of a whole answer."""
        self._take_logprobs(completion)
        found = self._logprobs_in(completion.index, events)
        return {"content": [], "refusal": None} if found is None and completion.index in self._logprobs else found

    def _logprobs_in(self, index: int, events: Sequence[Event]) -> Json | None:
        """Of the tokens of content, and of reasoning where there is some; None without any. Calls have none."""
        pieces = self._logprobs.get(index)
        if pieces is None:
            return None
        content: list[Json] = []
        reasoning: list[Json] = []
        for event in events:
            if isinstance(event, (Content, Reasoning)):
                (content if isinstance(event, Content) else reasoning).extend(pieces.of(event.at, event.text))
        if not (content or reasoning):
            return None
        return {"content": content, "refusal": None, **({"reasoning_content": reasoning} if reasoning else {})}


def _chat_ending(completion: CompletionOutput, parser: ChoiceParser) -> Json:
    """An answer that ended by itself after calls waits for their results."""
    reason: str | None = completion.finish_reason
    if reason == "stop" and parser.num_calls:
        reason = "tool_calls"
    return {"finish_reason": reason, "stop_reason": completion.stop_reason}
