"""What stands in the engine's place while a traced request lives: each does what the one behind it does, and tells.

None of them changes a bit of what is computed: the model's and the sampler's results are passed on as they are.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any, Protocol

from pellucid.config import ModelConfig
from pellucid.engine.model_runner import Model
from pellucid.engine.output_processor import Answer
from pellucid.engine.tracing.request_trace import RequestTrace, StepTimes
from pellucid.forward_batch import Float32Array, ForwardBatch, ForwardOutput
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.outputs import CompletionOutput, FinishReason
from pellucid.request import Request
from pellucid.sampling.candidates import Candidates
from pellucid.sampling.recorder import StageRecorder
from pellucid.sampling.sampler import SampledToken, Sampler
from pellucid.sampling.stages import StageObserver
from pellucid.sampling.state import SamplingState
from pellucid.sampling.waterfall import Waterfall, Waterfalls
from pellucid.trace.events import SAMPLING, WATERFALL_TOKENS
from pellucid.trace.probe import Probe


class Listener(Protocol):
    """Who is told."""

    times: StepTimes

    def sequence(self, output_token_ids: list[int]) -> tuple[RequestTrace, Request] | None:
        """The traced sequence whose output this list is."""
        ...

    def before_logits(self) -> None:
        """Those of the last call are about to be overwritten."""
        ...

    def drew(self, trace: RequestTrace, request: Request, drawn: Waterfall | None) -> None: ...

    def pushed(self, answer: TracedAnswer, completion: CompletionOutput, nanoseconds: int) -> None: ...

    def ended(self, answer: TracedAnswer, completion: CompletionOutput) -> None: ...


class BothProbes:
    """Shows every tensor to both that want it."""

    def __init__(self, first: Probe, second: Probe) -> None:
        self._probes = (first, second)

    def wants(self, name: str) -> bool:
        return any(probe.wants(name) for probe in self._probes)

    def record(self, name: str, tensor: Any) -> None:
        for probe in self._probes:
            if probe.wants(name):
                probe.record(name, tensor)


class TracedModel:
    """The model, timed, with a probe where the step has one."""

    def __init__(self, model: Model, listener: Listener) -> None:
        self.model = model
        self.probe: Probe | None = None
        """Of the step that runs."""
        self._listener = listener

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def forward(self, batch: ForwardBatch, kv: KVCacheStorage, probe: Probe | None = None) -> ForwardOutput:
        if self.probe is not None:
            probe = self.probe if probe is None else BothProbes(probe, self.probe)
        output = self.model.forward(batch, kv, probe)
        self._listener.times.computed = time.monotonic_ns()
        return output

    def compute_logits(self, hidden: Float32Array) -> Float32Array:
        self._listener.before_logits()
        began = time.monotonic_ns()
        logits = self.model.compute_logits(hidden)
        self._listener.times.logits += time.monotonic_ns() - began
        return logits


class TracedSampler(Sampler):
    """The sampler, timed; the waterfall of each token of a request that asked for it."""

    def __init__(self, sampler: Sampler, listener: Listener) -> None:
        super().__init__(sampler.vocab_size, sampler.kernels)
        self.sampler = sampler
        self._listener = listener
        self._waterfalls = Waterfalls(sampler.kernels, WATERFALL_TOKENS)

    def draw_ahead(self, rows: Sequence[tuple[Float32Array, SamplingState]]) -> list[tuple[int, float] | None]:
        began = time.monotonic_ns()
        drawn = self.sampler.draw_ahead(rows)
        times, drawn_at = self._listener.times, time.monotonic_ns()
        times.sample += drawn_at - began
        self._waterfalls.ahead(
            [
                (logits, state, found[0])
                for (logits, state), found in zip(rows, drawn, strict=True)
                if found is not None and found[0] >= 0 and self._is_told(state)
            ]
        )
        times.tracing += time.monotonic_ns() - drawn_at
        return drawn

    def _is_told(self, state: SamplingState) -> bool:
        found = self._listener.sequence(state.output_token_ids)
        return found is not None and found[0].level >= SAMPLING

    def settle(self) -> None:
        """Wait for the surveys of the rows drawn from since the last call; their logits must still be there."""
        self._waterfalls.settle()

    def forget(self) -> None:
        """A step has failed: what waits will not be told."""
        self._waterfalls.forget()

    def sample(
        self,
        logits: Float32Array,
        request: SamplingState,
        observer: StageObserver | None = None,
        drawn: tuple[int, float] | None = None,
    ) -> SampledToken:
        began = time.monotonic_ns()
        found = self._listener.sequence(request.output_token_ids)
        copies: _Copies | None = None
        if observer is None and request.logits_processors and found is not None and found[0].level >= SAMPLING:
            observer = copies = _Copies()  # a user's code runs once, traced or not
        sampled = self.sampler.sample(logits, request, observer, drawn)
        drawn_at = time.monotonic_ns()
        times = self._listener.times
        times.sample += drawn_at - began
        if found is None:
            return sampled
        trace, sequence = found
        trace.sample_ns += drawn_at - began
        trace.num_drawn += 1
        trace.token_times.setdefault(sequence.key, []).append(drawn_at)
        waterfall: Waterfall | None = None
        if trace.level >= SAMPLING:
            if copies is not None:
                waterfall = copies.waterfall(request, sampled.token_id)
            else:
                waterfall = self._waterfalls.later(logits, request, sampled.token_id)
        self._listener.drew(trace, sequence, waterfall)
        times.tracing += time.monotonic_ns() - drawn_at
        return sampled


class _Copies:
    """An observer that keeps the candidates of every stage, for when the token is known."""

    def __init__(self) -> None:
        self._stages: list[tuple[str, Any, Candidates]] = []

    def on_stage(self, name: str, parameter: Any, candidates: Candidates) -> None:
        kept = copy.copy(candidates)
        kept.logits = candidates.logits.copy()
        self._stages.append((name, parameter, kept))

    def waterfall(self, state: SamplingState, token_id: int) -> Waterfall:
        recorder = StageRecorder(token_id, WATERFALL_TOKENS)
        for name, parameter, candidates in self._stages:
            recorder.on_stage(name, parameter, candidates)
        return Waterfall(state, token_id, lambda: recorder.records)


class TracedAnswer(Answer):
    """One sequence's output that tells what it gives out and what it holds back."""

    def __init__(self, request: Request, tokenizer: Any, trace: RequestTrace, listener: Listener) -> None:
        super().__init__(request, tokenizer)
        self.trace = trace
        self.first_held = request.num_prompt_tokens
        """Position of the first token whose text is not all out."""
        self._listener = listener

    def push(self, sampled: SampledToken) -> CompletionOutput:
        began = time.monotonic_ns()
        completion = super().push(sampled)
        self._listener.pushed(self, completion, time.monotonic_ns() - began)
        return completion

    def end(self, reason: FinishReason, error: str | None = None, error_field: str | None = None) -> CompletionOutput:
        completion = super().end(reason, error, error_field)
        self._listener.ended(self, completion)
        return completion

    @property
    def held(self) -> tuple[int, str | None]:
        """Bytes that are not out yet, and why."""
        num_bytes = self._detokenizer.num_held_bytes
        text = "" if self._matcher is None or self._matcher.matched is not None else self._matcher.held_text
        if text:
            return num_bytes + len(text.encode("utf-8", "surrogatepass")), "possible stop string"
        return num_bytes, "incomplete UTF-8" if num_bytes else None
