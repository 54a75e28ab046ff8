"""Engines over the default model's weights, loaded once for each number of threads, and how tests drive them."""

from __future__ import annotations

import random
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


def run(
    engine: LLMEngine,
    requests: list[tuple[Any, SamplingParams]],
    rng: random.Random | None = None,
) -> list[RequestOutput]:
    """All requests; with `rng` they arrive at random steps."""
    totals: dict[str, RequestOutput] = {}
    to_come = list(enumerate(requests))
    while to_come or engine.has_unfinished_requests():
        while to_come and (rng is None or rng.random() < 0.5):
            i, (prompt, params) = to_come.pop(0)
            engine.add_request(str(i), prompt, params)
        for output in engine.step() if engine.has_unfinished_requests() else ():
            totals[output.request_id] = add_delta(totals.get(output.request_id), output)
    engine.check_integrity()
    return [totals[str(i)] for i in range(len(requests))]


def bits(output: RequestOutput) -> Any:
    """Everything of a request that must not depend on the schedule; floats as they are."""
    answers = [(a.text, a.token_ids, a.finish_reason, a.logprobs, a.cumulative_logprob) for a in output.outputs]
    return answers, output.prompt_logprobs
