"""Outputs → the bodies and chunks of OpenAI's API. No HTTP here."""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pellucid.engine.output_processor import add_delta
from pellucid.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from pellucid.server.output.choice import ChoiceParser
from pellucid.server.output.events import CallArguments, Content, Event, Reasoning, joined, merged
from pellucid.server.parsing import ChatRequest, CompletionRequest
from pellucid.server.wire import finite

Json = dict[str, Any]


class Answers:
    """The answers to one HTTP request: n for each prompt, with the index i · n + j.

    Deltas go in with `take`, which gives the chunks of a stream; `body` is the whole answer.
    """

    kind = ""
    chunk_kind = ""

    def __init__(
        self, name: str, model: str, request: Any, request_ids: Sequence[str], tokenizer: Any, *, keep: bool
    ) -> None:
        self.name = name
        self.request = request
        self._tokenizer = tokenizer
        self._places = {request_id: place for place, request_id in enumerate(request_ids)}
        self._head: Json = {"id": name, "object": "", "created": int(time.time()), "model": model}
        self._totals: list[RequestOutput | None] = [None] * len(request_ids)
        self._keep = keep
        """Whether deltas are joined for `body`."""
        self._begun: set[int] = set()
        self._num_prompt_tokens = [0] * len(request_ids)
        self._num_cached_tokens = [0] * len(request_ids)
        self.num_completion_tokens = 0
        self.finish_reasons: dict[int, str] = {}
        self.seeds: list[int] = [0] * len(request_ids)

    def take(self, delta: RequestOutput) -> list[Json]:
        """Note a delta; gives its chunks, unless whole bodies are wanted."""
        place = self._places[delta.request_id]
        self._num_prompt_tokens[place] = len(delta.prompt_token_ids)
        self._num_cached_tokens[place] = delta.num_cached_tokens or 0
        for completion in delta.outputs:
            self.num_completion_tokens += len(completion.token_ids)
            self.seeds[place] = completion.seed
            if completion.finish_reason is not None:
                self.finish_reasons[self._index(place, completion)] = completion.finish_reason
        if self._keep:
            self._totals[place] = add_delta(self._totals[place], delta)
            return []
        return [chunk for completion in delta.outputs for chunk in self._chunks(place, delta, completion)]

    def body(self) -> Json:
        """The whole answer."""
        choices = [
            self._choice(place, total, completion)
            for place, total in enumerate(self._totals)
            if total is not None
            for completion in total.outputs
        ]
        return {
            **self._head,
            "object": self.kind,
            "choices": choices,
            "usage": self.usage(),
            "pellucid": self.additions(),
        }

    def usage(self) -> Json:
        """Tokens counted."""
        num_prompt, num_completion = sum(self._num_prompt_tokens), self.num_completion_tokens
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
            "prompt_tokens_details": {"cached_tokens": sum(self._num_cached_tokens)},
        }

    def additions(self) -> Json:
        """What OpenAI's answers do not have: the seed that repeats the answer (one for each prompt)."""
        return {"seed": self.seeds[0], **({"seeds": self.seeds} if len(self.seeds) > 1 else {})}

    def usage_chunk(self) -> Json:
        """The last chunk of a stream that was asked for usage."""
        return {**self._head, "object": self.chunk_kind, "choices": [], "usage": self.usage()}

    def _index(self, place: int, completion: CompletionOutput) -> int:
        return place * int(self.request.params.n) + completion.index

    def _chunk(self, choice: Json, place: int) -> Json:
        chunk: Json = {**self._head, "object": self.chunk_kind, "choices": [choice]}
        if self.request.include_usage:
            chunk["usage"] = None
        if choice["finish_reason"] is not None:
            chunk["pellucid"] = {"seed": self.seeds[place]}
        return chunk

    def _chunks(self, place: int, delta: RequestOutput, completion: CompletionOutput) -> Iterator[Json]:
        raise NotImplementedError

    def _choice(self, place: int, total: RequestOutput, completion: CompletionOutput) -> Json:
        raise NotImplementedError

    def _prompt_logprobs(self, total: RequestOutput) -> Json:
        """vLLM's field, where it was asked for."""
        if self.request.params.prompt_logprobs is None or total.prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": [None if row is None else _row(row) for row in total.prompt_logprobs]}


class ChatAnswers(Answers):
    """/v1/chat/completions."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    request: ChatRequest

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._parsers: dict[int, ChoiceParser] = {}

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
        rows = zip(completion.token_ids, completion.logprobs, strict=True)
        return {"content": [self._token(token_id, entries) for token_id, entries in rows], "refusal": None}

    def _token(self, token_id: int, entries: TokenLogprobs) -> Json:
        num_top = self.request.params.logprobs or 0
        ranked = sorted((entry.rank, other) for other, entry in entries.items() if entry.rank <= num_top)
        return {
            **self._entry(token_id, entries),
            "top_logprobs": [self._entry(other, entries) for _, other in ranked],
        }

    def _entry(self, token_id: int, entries: TokenLogprobs) -> Json:
        return {
            "token": entries[token_id].decoded_token,
            "logprob": finite(entries[token_id].logprob),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }


def _chat_ending(completion: CompletionOutput, parser: ChoiceParser) -> Json:
    """An answer that ended by itself after calls waits for their results."""
    reason: str | None = completion.finish_reason
    if reason == "stop" and parser.num_calls:
        reason = "tool_calls"
    return {"finish_reason": reason, "stop_reason": completion.stop_reason}


class CompletionAnswers(Answers):
    """/v1/completions."""

    kind = "text_completion"
    chunk_kind = "text_completion"
    request: CompletionRequest

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._offsets: dict[int, TextOffsets] = {}
        self._prompt_rows: dict[int, Sequence[TokenLogprobs | None]] = {}

    def _choice(self, place: int, total: RequestOutput, completion: CompletionOutput) -> Json:
        return {
            "index": self._index(place, completion),
            "text": self._prompt_text(total) + completion.text,
            "logprobs": self._logprobs(place, completion, total.prompt_token_ids, total.prompt_logprobs),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
            **({} if self.request.echo else self._prompt_logprobs(total)),
        }

    def _chunks(self, place: int, delta: RequestOutput, completion: CompletionOutput) -> Iterator[Json]:
        index, text = self._index(place, completion), completion.text
        if delta.prompt_logprobs is not None:
            self._prompt_rows[place] = delta.prompt_logprobs
        is_first = index not in self._begun
        self._begun.add(index)
        prompt_rows = self._prompt_rows.get(place) if is_first else None
        if is_first:
            text = self._prompt_text(delta) + text
        logprobs = self._logprobs(place, completion, delta.prompt_token_ids, prompt_rows)
        if not (text or logprobs or completion.finish_reason):
            return
        ending = {"finish_reason": completion.finish_reason, "stop_reason": completion.stop_reason}
        yield self._chunk({"index": index, "text": text, "logprobs": logprobs, **ending}, place)

    def _prompt_text(self, output: RequestOutput) -> str:
        if not self.request.echo:
            return ""
        if output.prompt is not None:
            return output.prompt
        skip = self.request.params.skip_special_tokens
        return str(self._tokenizer.decode(output.prompt_token_ids, skip_special_tokens=skip))

    def _logprobs(
        self,
        place: int,
        completion: CompletionOutput,
        prompt_ids: Sequence[int],
        prompt_rows: Sequence[TokenLogprobs | None] | None,
    ) -> Json | None:
        num_top = self.request.params.logprobs
        if num_top is None or completion.logprobs is None:
            return None
        rows: list[tuple[int, TokenLogprobs | None]] = []
        if self.request.echo and prompt_rows is not None:
            rows += zip(prompt_ids, prompt_rows, strict=True)
        rows += zip(completion.token_ids, completion.logprobs, strict=True)
        if not rows:
            return None
        index = self._index(place, completion)
        if index not in self._offsets:
            self._offsets[index] = TextOffsets(self._tokenizer, self.request.params.skip_special_tokens)
        offsets = self._offsets[index]
        return {
            "text_offset": [offsets.next(token_id) for token_id, _ in rows],
            "tokens": [self._tokenizer.token_text(token_id) for token_id, _ in rows],
            "token_logprobs": [None if e is None else finite(e[token_id].logprob) for token_id, e in rows],
            "top_logprobs": [None if e is None else _by_text(e) for _, e in rows] if num_top else None,
        }


class TextOffsets:
    """Where each token begins in the text, in characters; a token inside a character begins where that does."""

    def __init__(self, tokenizer: Any, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._at = 0

    def next(self, token_id: int) -> int:
        """The next token's place."""
        place = self._at
        if not (self._skips and self._tokenizer.is_special(token_id)):
            self._at += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        return place


def _by_text(entries: TokenLogprobs) -> dict[str, float]:
    """Tokens that look alike (parts of characters) share a name: the chosen one, or the most probable, keeps it."""
    found: dict[str, float] = {}
    for entry in entries.values():
        found.setdefault(entry.decoded_token, finite(entry.logprob))
    return found


def _row(entries: TokenLogprobs) -> Json:
    return {
        str(token_id): {"logprob": finite(e.logprob), "rank": e.rank, "decoded_token": e.decoded_token}
        for token_id, e in entries.items()
    }
