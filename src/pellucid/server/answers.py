"""Outputs → the bodies and chunks of OpenAI's API. No HTTP here."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from pellucid.engine.output_processor import add_delta
from pellucid.outputs import CompletionOutput, Overflow, RequestOutput, TokenLogprobs
from pellucid.server.api_errors import ApiError
from pellucid.server.wire import dump, dump_text, finite

Json = dict[str, Any]
_HOLE = uuid.uuid4().hex
"""Stands in a chunk for what is filled in later; nobody can have written it."""


def _overflow(overflow: Overflow | None) -> Json:
    """`overflow` of an answer, where something was done: the removed parts as the spans of their tokens."""
    if overflow is None:
        return {}
    removed = [
        {**({} if part.message is None else {"message": part.message}), "start": part.start, "end": part.end}
        for part in overflow.removed
    ]
    counts = {"original_tokens": overflow.num_original_tokens, "kept_tokens": overflow.num_kept_tokens}
    return {"overflow": {"policy": overflow.policy, **counts, "removed": removed}}


class Answers:
    """The answers to one HTTP request: n for each prompt, with the index i · n + j.

    Deltas go in with `take`, which gives the frames of a stream; `body` is the whole answer.
    """

    kind = ""
    chunk_kind = ""
    end_mark = b"data: [DONE]\n\n"
    """What a stream ends with."""

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
        self._text_frames: dict[int, list[bytes]] = {}
        """By answer: what is before, between and after the text and the logprobs of a frame."""
        self._num_prompt_tokens = [0] * len(request_ids)
        self._num_cached_tokens = [0] * len(request_ids)
        self._overflows: list[Overflow | None] = [None] * len(request_ids)
        self.num_completion_tokens = 0
        self.finish_reasons: dict[int, str] = {}
        self.seeds: list[int] = [0] * len(request_ids)

    def take(self, delta: RequestOutput) -> bytes:
        """Note a delta; gives its frames, unless whole bodies are wanted."""
        place = self._places[delta.request_id]
        self._num_prompt_tokens[place] = len(delta.prompt_token_ids)
        self._num_cached_tokens[place] = delta.num_cached_tokens or 0
        self._overflows[place] = delta.overflow
        for completion in delta.outputs:
            self.num_completion_tokens += len(completion.token_ids)
            self.seeds[place] = completion.seed
            if completion.finish_reason is not None:
                self.finish_reasons[self._index(place, completion)] = completion.finish_reason
        if self._keep:
            self._totals[place] = add_delta(self._totals[place], delta)
            return b""
        frames: list[bytes] = []
        for completion in delta.outputs:
            frames += self._frames(place, delta, completion)
        return frames[0] if len(frames) == 1 else b"".join(frames)

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

    @property
    def num_prompt_tokens(self) -> int:
        return sum(self._num_prompt_tokens)

    @property
    def num_cached_tokens(self) -> int:
        return sum(self._num_cached_tokens)

    def usage(self) -> Json:
        """Tokens counted."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_completion_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }

    def additions(self) -> Json:
        """What OpenAI's answers do not have: the seed that repeats the answer, what was done to a prompt too long (one
        for each prompt)."""
        found: Json = {"seed": self.seeds[0], **_overflow(self._overflows[0])}
        if len(self.seeds) > 1:
            found |= {"seeds": self.seeds}
            if any(self._overflows):
                found["overflows"] = [_overflow(overflow).get("overflow") for overflow in self._overflows]
        return found

    def opening(self) -> list[Json]:
        """The chunks of a stream before anything was drawn."""
        return []

    def closing(self) -> list[Json]:
        """The chunks after all answers have ended: of usage, where a stream was asked for it."""
        if not self.request.include_usage:
            return []
        return [{**self._head, "object": self.chunk_kind, "choices": [], "usage": self.usage()}]

    def failed(self, refusal: ApiError) -> list[Json]:
        """The chunks of a stream that ends with an error."""
        return [refusal.body]

    def frame(self, chunk: Json) -> bytes:
        """A chunk as a server-sent event."""
        return b"data: " + dump(chunk) + b"\n\n"

    def _index(self, place: int, completion: CompletionOutput) -> int:
        return place * int(self.request.params.n) + completion.index

    def _chunk(self, choice: Json, place: int) -> Json:
        chunk: Json = {**self._head, "object": self.chunk_kind, "choices": [choice]}
        if self.request.include_usage:
            chunk["usage"] = None
        if choice["finish_reason"] is not None:
            chunk["pellucid"] = {"seed": self.seeds[place], **_overflow(self._overflows[place])}
        return chunk

    def _text_frame(self, place: int, index: int, text: str, logprobs: Json | None) -> bytes:
        """The frame of a chunk with text and no ending; all but these two values is encoded once for an answer."""
        parts = self._text_frames.get(index)
        if parts is None:
            chunk = self._chunk(self._text_choice(index, _HOLE, _HOLE), place)
            parts = self._text_frames[index] = self.frame(chunk).split(dump(_HOLE))
        before, between, after = parts
        return b"".join((before, dump_text(text), between, b"null" if logprobs is None else dump(logprobs), after))

    def _text_choice(self, index: int, text: str, logprobs: Any) -> Json:
        """The choice of such a chunk; the text stands before the logprobs."""
        raise NotImplementedError

    def _frames(self, place: int, delta: RequestOutput, completion: CompletionOutput) -> list[bytes]:
        """What a stream says of the delta of one answer."""
        raise NotImplementedError

    def _choice(self, place: int, total: RequestOutput, completion: CompletionOutput) -> Json:
        raise NotImplementedError

    def _prompt_logprobs(self, total: RequestOutput) -> Json:
        """vLLM's field, where it was asked for."""
        if self.request.params.prompt_logprobs is None or total.prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": [None if row is None else _row(row) for row in total.prompt_logprobs]}


def _row(entries: TokenLogprobs) -> Json:
    return {
        str(token_id): {"logprob": finite(e.logprob), "rank": e.rank, "decoded_token": e.decoded_token}
        for token_id, e in entries.items()
    }
