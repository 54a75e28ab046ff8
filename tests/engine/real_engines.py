"""Engines over a real model's weights, loaded once for each number of threads, and how tests drive them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.output_processor import add_delta
from pellucid.outputs import RequestOutput
from pellucid.sampling_params import SamplingParams


class Engines:
    """Engines with different settings over weights loaded once for each number of threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loaded: dict[int, LLMEngine] = {}

    def make(self, *, threads: int = 2, **fields: Any) -> LLMEngine:
        args = EngineArgs(model=str(self._path), threads=threads, seed=0, **fields)
        if threads not in self._loaded:
            self._loaded[threads] = LLMEngine.from_args(args)
        loaded = self._loaded[threads]
        return LLMEngine(loaded.model, loaded.tokenizer, args)


class Drive:
    """Requests that arrive at random steps; now and then one is aborted, and a prompt is read ahead.

    Without `rng` all come at once and nothing happens to them.
    """

    def __init__(
        self,
        engine: LLMEngine,
        requests: Sequence[tuple[Any, SamplingParams]],
        rng: random.Random | None = None,
        *,
        aborts: float = 0.0,
        reads_ahead: float = 0.0,
        priorities: Sequence[int] = (0,),
    ) -> None:
        """`aborts` and `reads_ahead` are chances per step; what is read ahead are the requests' own prompts."""
        self.engine, self.requests = engine, list(requests)
        self.rng = rng or random.Random(0)
        self.at_once = rng is None
        self.aborts, self.priorities = aborts, priorities
        self.reads_ahead = reads_ahead if engine.args.enable_prefix_caching else 0.0
        self.totals: dict[str, RequestOutput] = {}
        self.seen: Counter[str] = Counter()

    def go(self) -> list[RequestOutput]:
        to_come = list(enumerate(self.requests))
        while to_come or self.engine.has_unfinished_requests():
            while to_come and (self.at_once or self.rng.random() < 0.5):
                i, (prompt, params) = to_come.pop(0)
                self.engine.add_request(str(i), prompt, params, priority=self.rng.choice(self.priorities))
            if self.rng.random() < self.reads_ahead:
                self._read_ahead()
            if self.engine.has_unfinished_requests():
                self._take(self.engine.step())
            if self.rng.random() < self.aborts:
                self._abort()
        self.engine.check_integrity()
        return [self.totals[str(i)] for i in range(len(self.requests))]

    def _take(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            self.totals[output.request_id] = add_delta(self.totals.get(output.request_id), output)

    def _read_ahead(self) -> None:
        prompt = self.rng.choice(self.requests)[0]
        if len(prompt) >= 16 and self.seen["read ahead"] < 4:  # a queue that grows never ends
            self.engine.add_prefill(f"ahead {self.seen['read ahead']}", prompt)
            self.seen["read ahead"] += 1

    def _abort(self) -> None:
        scheduler = self.engine.scheduler
        unfinished = [*scheduler.running, *scheduler.waiting]
        if scheduler.running and self.rng.random() < 0.8:
            unfinished = scheduler.running
        if not unfinished:
            return
        request = self.rng.choice(unfinished)
        if request.output_token_ids:
            where = "answer"
        else:
            where = "prompt" if 0 < request.num_computed_tokens < request.num_prompt_tokens else "queue"
        self.seen[f"aborted in {where}"] += not request.prefill_only
        output = self.engine.abort(request.request_id)
        assert output is not None
        self._take([output])


def run(
    engine: LLMEngine,
    requests: list[tuple[Any, SamplingParams]],
    rng: random.Random | None = None,
) -> list[RequestOutput]:
    """All requests; with `rng` they arrive at random steps."""
    return Drive(engine, requests, rng).go()


def bits(output: RequestOutput) -> Any:
    """Everything of a request that must not depend on the schedule; floats as they are."""
    answers = [(a.text, a.token_ids, a.finish_reason, a.logprobs, a.cumulative_logprob) for a in output.outputs]
    return answers, output.prompt_logprobs


def agrees(output: RequestOutput, alone: Any) -> bool:
    """Whether a request is bit for bit what it is alone, or where it was aborted, the beginning of that."""
    answers, prompt_logprobs = alone
    ours, our_prompt = bits(output)
    if all(answer.finish_reason != "abort" for answer in output.outputs):
        return bool((ours, our_prompt) == alone)
    if our_prompt and our_prompt != prompt_logprobs[: len(our_prompt)]:
        return False
    for answer, mine, whole in zip(output.outputs, ours, answers, strict=True):
        if answer.finish_reason != "abort":
            if mine != whole:
                return False
            continue
        length = len(answer.token_ids)
        if answer.token_ids != whole[1][:length] or (answer.logprobs or []) != (whole[3] or [])[:length]:
            return False
    return True
