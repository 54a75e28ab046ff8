"""What tracing costs: milliseconds of a step at each level, step by step in turns; the last line is JSON.

    python benchmarks/tracing.py [--model smollm2:135m] [--steps 100] [--streams 1] [--threads 2] [--levels 0,0,1,2]

Engines over the same weights, one for each level, make their steps one after the other in an order that is drawn anew
for each round; what is compared is steps of the same round. Level 0 comes twice: the second shows the noise.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import Any

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.sampling_params import SamplingParams

PROMPT = "Once upon a time, in a village by the sea, there lived a baker who"
PARAMS: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "ignore_eos": True, "max_tokens": 1000}


def started(loaded: LLMEngine, level: int, streams: int, steps: int) -> LLMEngine:
    """An engine that decodes `streams` answers at a level."""
    engine = LLMEngine(loaded.model, loaded.tokenizer, loaded.args)
    for i in range(streams):
        engine.add_request(str(i), f"{i} {PROMPT}", SamplingParams(seed=i, **PARAMS), trace_level=level)
    for _ in range(6):
        engine.step()
    return engine


def measure(engines: list[LLMEngine], steps: int) -> list[list[float]]:
    """Seconds of every engine's steps, round by round."""
    choices = random.Random(1)
    rounds = []
    for _ in range(steps):
        order = list(range(len(engines)))
        choices.shuffle(order)
        seconds = [0.0] * len(engines)
        for place in order:
            start = time.perf_counter()
            engines[place].step()
            seconds[place] = time.perf_counter() - start
        rounds.append(seconds)
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--levels", default="0,0,1,2")
    options = parser.parse_args()
    levels = [int(level) for level in options.levels.split(",")]
    args = EngineArgs(
        model=options.model,
        threads=options.threads,
        max_model_len=1024,
        kv_cache_memory_bytes=256 * 1024**2,
        speculative_method="off",
    )
    loaded = LLMEngine.from_args(args)
    engines = [started(loaded, level, options.streams, options.steps) for level in levels]
    rounds = measure(engines, options.steps)
    rows = []
    for place, level in enumerate(levels):
        step = statistics.median(one[place] for one in rounds)
        ratio = statistics.median(one[place] / one[0] for one in rounds)
        rows.append({"level": level, "step_ms": round(1000 * step, 3), "cost_percent": round(100 * (ratio - 1), 2)})
        print(f"level {level}: {rows[-1]['step_ms']:8.3f} ms a step, {rows[-1]['cost_percent']:+6.2f} %")
    print(json.dumps({"model": options.model, "streams": options.streams, "levels": rows}))


if __name__ == "__main__":
    main()
