"""Microseconds per sampled token at two vocabulary sizes; the last line is JSON.

    python benchmarks/sampling.py [--repeats 200] [--backend reference]

`peaked` logits have a few likely tokens, as most positions of a language model; `flat` ones have none, the worst case.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from pellucid.config import BACKENDS
from pellucid.kernels.backend import SamplingKernels
from pellucid.kernels.dispatch import make_sampling_kernels
from pellucid.sampling.draw import uniform
from pellucid.sampling.sampler import Sampler, SamplingState
from pellucid.sampling_params import SamplingParams

VOCAB_SIZES = (49_152, 262_144)
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy, logprobs 5": {"temperature": 0.0, "logprobs": 5},
    "greedy, repetition penalty": {"temperature": 0.0, "repetition_penalty": 1.1},
    "plain": {},
    "temperature 0.7": {"temperature": 0.7},
    "top-p 0.95": {"top_p": 0.95},
    "min-p 0.05": {"min_p": 0.05},
    "factual": {"temperature": 0.3, "top_p": 0.9, "top_k": 40},
    "creative": {"min_p": 0.05, "top_p": 0.95},
    "all penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1},
    "penalties, top-k, top-p, logprobs": {
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
        "top_k": 50,
        "top_p": 0.95,
        "logprobs": 5,
    },
}


def made_logits(vocab_size: int, kind: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Random float32 logits [vocab_size]."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal(vocab_size) * (2.0 if kind == "peaked" else 0.5)
    if kind == "peaked":
        logits[rng.integers(0, vocab_size, 30)] += np.linspace(4.0, 14.0, 30)
    return logits.astype(np.float32)


def measure(vocab_size: int, kind: str, fields: dict[str, Any], repeats: int, kernels: SamplingKernels | None) -> float:
    """Median microseconds of one token, each with another draw."""
    sampler = Sampler(vocab_size, kernels)
    logits = made_logits(vocab_size, kind)
    state = SamplingState(SamplingParams(**fields), 7, 0, list(range(1000)), list(range(500, 700)))
    times = []
    for index in range(repeats):
        state.sample_index = index
        start = time.perf_counter()
        sampler.sample(logits, state)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def main() -> None:
    """Print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200, help="tokens per setting")
    parser.add_argument("--backend", choices=BACKENDS, default="native")
    arguments = parser.parse_args()
    repeats, kernels = arguments.repeats, make_sampling_kernels(arguments.backend)
    start = time.perf_counter()
    for index in range(10_000):
        uniform(7, 0, index)
    draw_us = (time.perf_counter() - start) / 10_000 * 1e6
    result: dict[str, Any] = {
        "benchmark": "sampling",
        "backend": arguments.backend,
        "unit": "us",
        "draw": round(draw_us, 2),
        "settings": {},
    }
    print(f"{'draw alone':34} {draw_us:10.1f} us")
    for name, fields in SETTINGS.items():
        row = {}
        for vocab_size in VOCAB_SIZES:
            for kind in ("peaked", "flat"):
                row[f"{vocab_size} {kind}"] = round(measure(vocab_size, kind, fields, repeats, kernels), 1)
        result["settings"][name] = row
        print(f"{name:34}", "  ".join(f"{key}: {value:7.1f}" for key, value in row.items()))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
