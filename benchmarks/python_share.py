"""Python's share of a decode step of one stream; the last line is JSON.

    python benchmarks/python_share.py [--model smollm2:135m] [--steps 120] [--threads 2]

What is counted: all of a step but the forward pass and the LM head (scheduler, the step's arrays, sampling, text), and
what the forward pass takes for no row at all, which is the calls without the work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.forward_batch import ForwardBatch
from pellucid.sampling_params import SamplingParams

PROMPT = "Once upon a time, in a village by the sea, there lived a baker who"
SETTINGS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0, ignore_eos=True, max_tokens=1000),
    "sampled": SamplingParams(temperature=0.8, top_p=0.95, seed=1, ignore_eos=True, max_tokens=1000),
}


class Watched:
    """A model that adds up the time of its forward passes and heads."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.config = model.config
        self.seconds = 0.0

    def forward(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        output = self._model.forward(*arguments)
        self.seconds += time.perf_counter() - start
        return output

    def compute_logits(self, hidden: Any) -> Any:
        start = time.perf_counter()
        logits = self._model.compute_logits(hidden)
        self.seconds += time.perf_counter() - start
        return logits


def empty_forward(engine: LLMEngine, model: Any) -> float:
    """Median seconds of a forward pass without rows."""
    none32, one32 = np.zeros(0, dtype=np.int32), np.zeros(1, dtype=np.int32)
    batch = ForwardBatch(none32, none32, np.zeros(0, dtype=np.int64), one32, none32, np.zeros((0, 1), dtype=np.int32))
    times = []
    for _ in range(100):
        start = time.perf_counter()
        model.forward(batch, engine.storage)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(loaded: LLMEngine, params: SamplingParams, steps: int) -> dict[str, float]:
    """Median milliseconds of a step and of its parts."""
    watched = Watched(loaded.model)
    engine = LLMEngine(watched, loaded.tokenizer, loaded.args)
    engine.add_request("one", PROMPT, params)
    for _ in range(8):
        engine.step()
    whole, outside = [], []
    for _ in range(steps):
        watched.seconds = 0.0
        start = time.perf_counter()
        engine.step()
        whole.append(time.perf_counter() - start)
        outside.append(whole[-1] - watched.seconds)
    calls = empty_forward(engine, loaded.model)
    step, rest = statistics.median(whole), statistics.median(outside)
    return {
        "step_ms": round(step * 1e3, 3),
        "around_ms": round(rest * 1e3, 3),
        "calls_ms": round(calls * 1e3, 3),
        "share": round((rest + calls) / step, 4),
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
