"""From drawn ids to what the caller sees: text, logprobs, the reason an answer ended.

One `RequestState` per caller's request with one `Answer` for each of its n sequences; both give deltas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from pellucid.engine.stop import StopStringMatcher
from pellucid.errors import PellucidError, ShuttingDownError
from pellucid.outputs import (
    CompletionOutput,
    FinishReason,
    Logprob,
    Overflow,
    PrefillOutput,
    RequestMetrics,
    RequestOutput,
    TokenLogprobs,
)
from pellucid.request import Request
from pellucid.sampling.sampler import SampledToken
from pellucid.tokenizer.detokenizer import IncrementalDetokenizer


class TokenizerLike(Protocol):
    """What the engine asks of a tokenizer; `pellucid.tokenizer` has the real one."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def add_space_prefix(self) -> bool: ...

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]: ...

    def least_tokens(self, text: str, /) -> int: ...

    def token_text(self, token_id: int, /) -> str: ...

    def token_bytes(self, token_id: int, /) -> bytes: ...

    def is_special(self, token_id: int, /) -> bool: ...


class Answer:
    """One sequence's output: reads its tokens and decides when it ends."""

    def __init__(self, request: Request, tokenizer: Any) -> None:
        params = request.params
        self.request = request
        self._tokenizer: TokenizerLike = tokenizer
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=params.skip_special_tokens, strip_prefix_space=False
        )
        self._matcher: StopStringMatcher | None = None
        if params.stop:
            self._matcher = StopStringMatcher(params.stop, include_stop_str_in_output=params.include_stop_str_in_output)
        self._cumulative_logprob: float | None = None if params.logprobs is None else 0.0

    @property
    def finished(self) -> bool:
        return self.request.finish_reason is not None

    def push(self, sampled: SampledToken) -> CompletionOutput:
        """Take the next token; its delta has a finish_reason when the answer ends with it.

        The end token's text is not part of the answer; its id is. An answer that reaches min_tokens may end with
        the token after it; one whose structure is complete ends there.
        """
        request, params, token_id = self.request, self.request.params, sampled.token_id
        request.output_token_ids.append(token_id)
        may_stop = len(request.output_token_ids) > params.min_tokens
        reason: FinishReason | None = None
        stop_reason: int | str | None = None
        text = ""
        if token_id in request.end_token_ids and (may_stop or self._must_end):
            reason, may_stop = "stop", False  # an end token's own text, where it is shown, is not searched
            if params.ignore_eos or token_id not in self._tokenizer.eos_ids:
                stop_reason = token_id
        elif self._completes_structure(token_id):
            reason = "stop"
            text = self._read(token_id, may_stop)
        elif len(request.output_token_ids) >= request.max_output_tokens:
            reason = "length"
        if reason != "stop" or (stop_reason is not None and params.include_stop_str_in_output):
            text = self._read(token_id, may_stop)
        if reason is not None:
            text += self._rest(may_stop)
        if self._matcher is not None and self._matcher.matched is not None:
            reason, stop_reason = "stop", self._matcher.matched
        return self._delta(text, [token_id], self._logprobs(sampled), reason, stop_reason)

    @property
    def _must_end(self) -> bool:
        """Whether the structure left nothing but an end token, min_tokens or not."""
        return self.request.constraint is not None and self.request.constraint.must_end

    def _completes_structure(self, token_id: int) -> bool:
        """Let the constraint read a token; true when nothing can follow it."""
        constraint = self.request.constraint
        if constraint is None:
            return False
        constraint.advance(token_id)
        return constraint.is_complete

    def end(self, reason: FinishReason, error: str | None = None, error_field: str | None = None) -> CompletionOutput:
        """End the answer without a further token; text held back until now is given out."""
        completion = self._delta(
            self._rest(may_stop=True), [], None if self.request.params.logprobs is None else [], reason
        )
        completion.error, completion.error_field = error, error_field
        return completion

    def _read(self, token_id: int, may_stop: bool) -> str:
        """The text that a token adds, as far as no stop string can begin in it."""
        text = self._detokenizer.push(token_id)
        if self._matcher is None:
            return text
        text = self._matcher.push(text, may_stop=may_stop)
        if not self.request.params.skip_special_tokens or not self._tokenizer.is_special(token_id):
            return text
        if self._detokenizer.num_held_bytes:  # an unfinished character stands between text and control token
            text += self._matcher.push("\ufffd", is_shown=False, may_stop=False)
        text += self._matcher.push(self._tokenizer.token_text(token_id), is_shown=False, may_stop=may_stop)
        return text if self._matcher.matched is None else text + self._detokenizer.flush()

    def _rest(self, may_stop: bool) -> str:
        if self._matcher is None:
            return self._detokenizer.flush()
        if self._matcher.matched is not None:
            return ""
        text = self._matcher.push(self._detokenizer.flush(), may_stop=may_stop)
        return text if self._matcher.matched is not None else text + self._matcher.flush()

    def _logprobs(self, sampled: SampledToken) -> list[TokenLogprobs] | None:
        if sampled.top_logprobs is None or sampled.logprob is None:
            return None
        self._cumulative_logprob = (self._cumulative_logprob or 0.0) + sampled.logprob
        return [decoded_logprobs(sampled.top_logprobs, self._tokenizer)]

    def _delta(
        self,
        text: str,
        token_ids: list[int],
        logprobs: list[TokenLogprobs] | None,
        reason: FinishReason | None,
        stop_reason: int | str | None = None,
    ) -> CompletionOutput:
        return CompletionOutput(
            index=self.request.sample_index,
            text=text,
            token_ids=token_ids,
            seed=self.request.seed,
            cumulative_logprob=self._cumulative_logprob,
            logprobs=logprobs,
            finish_reason=reason,
            stop_reason=stop_reason,
        )


class RequestState:
    """A caller's request while it lives: its answers, its prompt's logprobs, its times."""

    def __init__(
        self,
        prompt: str | None,
        answers: list[Answer],
        arrival_time: float,
        tokenizer: TokenizerLike,
        overflow: Overflow | None = None,
    ) -> None:
        self.overflow = overflow
        first = answers[0].request
        self.prompt = prompt
        self.answers = answers
        self.metrics = RequestMetrics(arrival_time)
        self.num_unfinished = len(answers)
        self._request_id = first.request_id
        self._prompt_token_ids = first.prompt_token_ids
        self._tokenizer = tokenizer
        self._prompt_logprobs: list[TokenLogprobs | None] | None = (
            None if first.params.prompt_logprobs is None else [None]
        )

    def add_prompt_rows(self, request: Request, rows: Sequence[Sequence[tuple[int, float, int]]]) -> None:
        """Take the logprobs of the next prompt positions."""
        if self._prompt_logprobs is not None:
            self._prompt_logprobs += [decoded_logprobs(row, self._tokenizer) for row in rows]
            request.num_prompt_rows_reported += len(rows)

    def note_token(self, request: Request, now: float) -> None:
        """Keep the time of a token."""
        if self.metrics.first_token_time is None:
            self.metrics.first_token_time = now
        self.metrics.last_token_time = now
        if request.sample_index == 0:
            self.metrics.token_times.append(now)

    def output(self) -> RequestOutput:
        """A delta without answers yet."""
        return RequestOutput(
            request_id=self._request_id,
            prompt=self.prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=[],
            finished=False,
            metrics=self.metrics,
            num_cached_tokens=self.answers[0].request.num_cached_tokens,
            is_prefill=self.answers[0].request.prefill_only,
            overflow=self.overflow,
        )

    def take_prompt_logprobs(self) -> list[TokenLogprobs | None] | None:
        """The prompt's logprobs, once: when all are there, or what is there when the request has ended."""
        found = self._prompt_logprobs
        if found is None or (len(found) < len(self._prompt_token_ids) and self.num_unfinished > 0):
            return None
        self._prompt_logprobs = None
        return found


def prefill_output(num_prompt_tokens: int, output: RequestOutput) -> PrefillOutput:
    """What the last output of a prefill says. Raises `PellucidError` where it failed or was ended."""
    [completion] = output.outputs
    if completion.finish_reason == "error":
        raise PellucidError(completion.error or "the prefill failed")
    if completion.finish_reason == "abort":
        raise ShuttingDownError()
    return PrefillOutput(num_prompt_tokens, output.num_cached_tokens or 0, len(output.prompt_token_ids))


def decoded_logprobs(entries: Sequence[tuple[int, float, int]], tokenizer: TokenizerLike) -> TokenLogprobs:
    """(id, logprob, rank) triples by id, in their order, with the tokens' texts."""
    return {token_id: Logprob(logprob, rank, tokenizer.token_text(token_id)) for token_id, logprob, rank in entries}


def add_delta(total: RequestOutput | None, delta: RequestOutput) -> RequestOutput:
    """Join a delta to what came before it; the first delta starts a new total."""
    if total is None:
        total = RequestOutput(
            delta.request_id,
            delta.prompt,
            list(delta.prompt_token_ids),
            [],
            False,
            delta.metrics,
        )
    total.num_cached_tokens, total.is_prefill, total.overflow = (
        delta.num_cached_tokens,
        delta.is_prefill,
        delta.overflow,
    )
    if delta.prompt_logprobs is not None:
        total.prompt_logprobs = delta.prompt_logprobs
    total.finished = delta.finished
    for new in delta.outputs:
        add_completion(total.outputs, new)
    total.outputs.sort(key=lambda completion: completion.index)
    return total


def add_completion(outputs: list[CompletionOutput], new: CompletionOutput) -> None:
    """Join what is new of one answer to what `outputs` has of it; the first is taken as a copy."""
    known = next((completion for completion in outputs if completion.index == new.index), None)
    if known is None:
        logprobs = None if new.logprobs is None else list(new.logprobs)
        outputs.append(replace(new, token_ids=list(new.token_ids), logprobs=logprobs))
        return
    known.text += new.text
    known.token_ids += new.token_ids
    known.cumulative_logprob = new.cumulative_logprob
    if known.logprobs is not None and new.logprobs is not None:
        known.logprobs += new.logprobs
    known.finish_reason, known.stop_reason = new.finish_reason, new.stop_reason
    known.error, known.error_field = new.error, new.error_field
