"""The answers of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pellucid.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from pellucid.server.answers import Answers, Json
from pellucid.server.output.choice import ChoiceParser
from pellucid.server.output.events import CallArguments, Content, Event, Reasoning, joined, merged
from pellucid.server.parsing import ChatRequest
from pellucid.server.wire import finite


class ChatAnswers(Answers):
    """/v1/chat/completions."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    request: ChatRequest

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._parsers: dict[int, ChoiceParser] = {}
        self._drawn: dict[int, list[int]] = {}
        """Ids by answer, where reasoning has to be counted."""
        self._num_reasoning_tokens = 0

    def take(self, delta: RequestOutput) -> list[Json]:
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
        message: Json = {"role": "assistant", "content": completion.text, "refusal": None}
        parser = ChoiceParser()
        if self.request.reads_answers:
            parser = self.request.parser(total.prompt or "")
            read = joined(parser.push(completion.text) + parser.finish())
            message["content"] = read.content or (None if read.calls or read.reasoning else "")
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
            "logprobs": self._logprobs(completion),
            **_chat_ending(completion, parser),
            **self._prompt_logprobs(total),
        }

    def _chunks(self, place: int, delta: RequestOutput, completion: CompletionOutput) -> Iterator[Json]:
        index = completion.index
        if index not in self._begun:
            self._begun.add(index)
            self._parsers[index] = self.request.parser(delta.prompt or "")
            opening = {"role": "assistant", "content": "", "refusal": None}
            yield self._chunk({"index": index, "delta": opening, "logprobs": None, "finish_reason": None}, place)
        parser, is_end = self._parsers[index], completion.finish_reason is not None
        events = parser.push(completion.text) + (parser.finish() if is_end else [])
        deltas = [self._delta(event) for event in merged(events)]
        logprobs = self._logprobs(completion)
        if logprobs and not deltas:
            deltas = [{"content": ""}]
        for piece in deltas:
            yield self._chunk({"index": index, "delta": piece, "logprobs": logprobs, "finish_reason": None}, place)
            logprobs = None
        if is_end:
            ending = _chat_ending(completion, parser)
            yield self._chunk({"index": index, "delta": {}, "logprobs": None, **ending}, place)

    def _delta(self, event: Event) -> Json:
        if isinstance(event, Content):
            return {"content": event.text}
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

    def _logprobs(self, completion: CompletionOutput) -> Json | None:
        if not completion.logprobs:
            return None
        return {
            "content": token_logprobs(completion, self.request.params.logprobs or 0, self._tokenizer),
            "refusal": None,
        }


def _chat_ending(completion: CompletionOutput, parser: ChoiceParser) -> Json:
    """An answer that ended by itself after calls waits for their results."""
    reason: str | None = completion.finish_reason
    if reason == "stop" and parser.num_calls:
        reason = "tool_calls"
    return {"finish_reason": reason, "stop_reason": completion.stop_reason}


def token_logprobs(completion: CompletionOutput, num_top: int, tokenizer: Any) -> list[Json]:
    """A list of the drawn tokens with their logprobs and the `num_top` most probable ones at their places."""

    def entry(token_id: int, entries: TokenLogprobs) -> Json:
        return {
            "token": entries[token_id].decoded_token,
            "logprob": finite(entries[token_id].logprob),
            "bytes": list(tokenizer.token_bytes(token_id)),
        }

    listed: list[Json] = []
    for token_id, entries in zip(completion.token_ids, completion.logprobs or (), strict=True):
        ranked = sorted((one.rank, other) for other, one in entries.items() if one.rank <= num_top)
        listed.append({**entry(token_id, entries), "top_logprobs": [entry(other, entries) for _, other in ranked]})
    return listed
