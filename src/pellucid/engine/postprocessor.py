"""Postprocessor: what a step has computed → tokens drawn, deltas, requests that end."""

from __future__ import annotations

import time
from collections.abc import Iterable

from pellucid.engine.model_runner import ModelRunner, StepResult
from pellucid.engine.output_processor import Answer, RequestState, add_completion
from pellucid.engine.scheduler import ScheduledRequest, Scheduler
from pellucid.engine.speculation.drafts import num_right
from pellucid.engine.speculation.speculator import Speculator
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.outputs import CompletionOutput, RequestOutput
from pellucid.request import Request
from pellucid.sampling.sampler import SampledToken


class Postprocessor:
    """Owns the states of the requests that are not finished, and what is to be given out."""

    def __init__(
        self, scheduler: Scheduler, runner: ModelRunner, storage: KVCacheStorage, speculator: Speculator | None
    ) -> None:
        self.states: dict[str, RequestState] = {}
        """Unfinished requests by id."""
        self.num_steps = self.num_tokens_computed = self.num_output_tokens = 0
        self.num_draft_tokens = self.num_accepted_tokens = 0
        self._scheduler = scheduler
        self._runner = runner
        self._storage = storage
        self._speculator = speculator
        self._unsent: dict[str, RequestOutput] = {}
        """Deltas of the step that runs; those of a step that failed half-way go out with the next one's."""

    def take_outputs(self) -> list[RequestOutput]:
        """The deltas of the requests that have something new; they are given once."""
        outputs, self._unsent = list(self._unsent.values()), {}
        return outputs

    def abort(self, request_id: str) -> bool:
        """End what is not finished of a request; False when there is no such request."""
        state = self.states.get(request_id)
        if state is None:
            return False
        for answer in state.answers:
            if not answer.finished:
                self._emit(state, answer, answer.end("abort"))
        return True

    def take_output_of(self, request_id: str) -> RequestOutput:
        """What is to be given out of one request."""
        return self._unsent.pop(request_id)

    def note_admitted(self, admitted: list[Request]) -> None:
        """They start now."""
        for request in admitted:
            metrics = self.states[request.request_id].metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = time.monotonic()

    def take(self, results: list[StepResult]) -> None:
        """Give every answer what the step has for it."""
        self.num_steps += bool(results)
        for result in results:
            request, entry = result.entry.request, result.entry
            self.num_tokens_computed += entry.num_rows
            if result.is_void:
                if self._speculator is not None:
                    self._speculator.learn(request, (), is_void=True)
                continue
            state = self.states[request.request_id]
            answer = state.answers[request.sample_index]
            if result.error is None and not entry.draws:
                self._scheduler.mark_computed(entry)
            if result.prompt_rows:
                state.add_prompt_rows(request, result.prompt_rows)
            if result.error is not None:
                self._emit(state, answer, answer.end("error", result.error, result.error_field))
            elif request.prefill_only and entry.end == request.num_tokens:
                self._emit(state, answer, answer.end("length"))
        for result, tokens in self._runner.draw(results):
            self._take(result, tokens)

    def _take(self, result: StepResult, tokens: Iterable[SampledToken]) -> None:
        """Give an answer its next tokens, one after the other, until it ends or a draft is not the token drawn."""
        request, entry = result.entry.request, result.entry
        state = self.states[request.request_id]
        answer = state.answers[request.sample_index]
        drawn: list[int] = []
        deltas: list[CompletionOutput] = []
        try:
            for sampled in tokens:
                drawn.append(sampled.token_id)
                state.note_token(request, time.monotonic())
                deltas.append(answer.push(sampled))
                if deltas[-1].finish_reason is not None:
                    break
        finally:  # what was drawn is told, even if an exception ends the step here
            if deltas and result.error is None:
                self._scheduler.mark_computed(entry, len(drawn) - 1)
            if result.error is not None:
                deltas.append(answer.end("error", result.error, result.error_field))
            self.num_output_tokens += len(drawn)
            if self._speculator is not None:
                self._note_drafts(self._speculator, entry, state, drawn)
            for delta in deltas:
                self._emit(state, answer, delta)

    def _note_drafts(
        self, speculator: Speculator, entry: ScheduledRequest, state: RequestState, drawn: list[int]
    ) -> None:
        if entry.draft_token_ids:
            accepted = num_right(entry.draft_token_ids, drawn)
            self.num_draft_tokens += len(entry.draft_token_ids)
            self.num_accepted_tokens += accepted
            state.metrics.num_draft_tokens += len(entry.draft_token_ids)
            state.metrics.num_accepted_tokens += accepted
        speculator.learn(entry.request, drawn)

    def _emit(self, state: RequestState, answer: Answer, completion: CompletionOutput) -> None:
        """Put one answer's delta into its request's output; an answer that ended gives up its blocks."""
        request = answer.request
        output = self._unsent.get(request.request_id)
        if output is None:
            output = self._unsent[request.request_id] = state.output()
        add_completion(output.outputs, completion)
        if completion.finish_reason is not None:
            freed = self._scheduler.finish(request, completion.finish_reason)
            if completion.finish_reason == "error":
                self._storage.clear(freed)
            if self._speculator is not None:
                self._speculator.forget(request.key)
            state.metrics.num_preemptions += request.num_preemptions
            state.num_unfinished -= 1
            if state.num_unfinished == 0:
                output.finished = True
                del self.states[request.request_id]
        output.prompt_logprobs = output.prompt_logprobs or state.take_prompt_logprobs()
