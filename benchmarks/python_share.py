"""Python's share of a decode step of one stream; the last line is JSON.

    python benchmarks/python_share.py [--model smollm2:135m] [--steps 120] [--threads 2]

What is counted: all of a step but the forward pass and the LM head (scheduler, the step's arrays, sampling, text), and
all of the forward pass but the blocks' operations, which are noted and run in one call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.sampling_params import SamplingParams

PROMPT = "Once upon a time, in a village by the sea, there lived a baker who"
SETTINGS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0, ignore_eos=True, max_tokens=1000),
    "sampled": SamplingParams(temperature=0.8, top_p=0.95, seed=1, ignore_eos=True, max_tokens=1000),
}


class Watched:
    """A model that adds up the time of its forward passes and heads, and of the operations noted in them."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.config = model.config
        self.seconds = self.noted_seconds = 0.0
        self._note = model.backend.note
        model.backend.note = self._note_watched

    def forward(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        output = self._model.forward(*arguments)
        self.seconds += time.perf_counter() - start
        return output

    def compute_logits(self, hidden: Any) -> Any:
        start = time.perf_counter()
        logits = self._model.compute_logits(hidden)
        end = time.perf_counter()
        self.seconds += end - start
        self.noted_seconds += end - start
        return logits

    def _note_watched(self, operations: Any) -> Any:
        run = self._note(operations)

        def watched() -> None:
            start = time.perf_counter()
            run()
            self.noted_seconds += time.perf_counter() - start

        return watched


def measure(loaded: LLMEngine, params: SamplingParams, steps: int) -> dict[str, float]:
    """Median milliseconds of a step and of its parts."""
    watched = Watched(loaded.model)
    engine = LLMEngine(watched, loaded.tokenizer, loaded.args)
    engine.add_request("one", PROMPT, params)
    for _ in range(8):
        engine.step()
    whole, outside, calls = [], [], []
    for _ in range(steps):
        watched.seconds = watched.noted_seconds = 0.0
        start = time.perf_counter()
        engine.step()
        whole.append(time.perf_counter() - start)
        outside.append(whole[-1] - watched.seconds)
        calls.append(watched.seconds - watched.noted_seconds)
    step, rest, calling = (statistics.median(times) for times in (whole, outside, calls))
    return {
        "step_ms": round(step * 1e3, 3),
        "around_ms": round(rest * 1e3, 3),
        "calls_ms": round(calling * 1e3, 3),
        "share": round((rest + calling) / step, 4),
    }


def main() -> None:
    """Print one line for each setting and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    loaded = LLMEngine.from_args(EngineArgs(model=arguments.model, threads=arguments.threads, max_model_len=2048))
    result: dict[str, Any] = {"benchmark": "python_share", "model": arguments.model, "settings": {}}
    for name, params in SETTINGS.items():
        row = result["settings"][name] = measure(loaded, params, arguments.steps)
        print(
            f"{name:8} step {row['step_ms']:.2f} ms: around the model {row['around_ms']:.3f}, "
            f"calls {row['calls_ms']:.3f}, together {100 * row['share']:.1f} %"
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
