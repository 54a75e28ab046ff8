"""How the engine tests drive an engine."""

from __future__ import annotations

from typing import Any

from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.output_processor import add_delta
from pellucid.outputs import CompletionOutput, RequestOutput
from pellucid.sampling_params import SamplingParams

PROMPT = [ord(c) for c in "abcdefgabcdefgabcdefgabcdefg"]
FOREVER = SamplingParams(ignore_eos=True, temperature=0)


def run(engine: LLMEngine, requests: dict[str, tuple[Any, SamplingParams]]) -> dict[str, RequestOutput]:
    """Add all, step until idle, join the deltas."""
    for name, (prompt, params) in requests.items():
        engine.add_request(name, prompt, params)
    return drain(engine)


def drain(engine: LLMEngine) -> dict[str, RequestOutput]:
    totals: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            totals[output.request_id] = add_delta(totals.get(output.request_id), output)
    engine.check_integrity()
    return totals


def one(engine: LLMEngine, prompt: Any, **params: Any) -> CompletionOutput:
    return run(engine, {"one": (prompt, SamplingParams(**params))})["one"].outputs[0]
