"""Law 1 on the real model, at random: tokens and logprobs of 200 schedules are the bits that each request has alone.

A new setting that must not change an answer is a line in `DIMENSIONS`; one that does, and is only to be the same
whatever the schedule, is a line there and its name in `CHANGES_BITS`: requests alone are then run with it, too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from real_engines import Engines, bits, run

from pellucid.config import DEFAULT_KV_CACHE_DTYPE
from pellucid.engine.llm_engine import LLMEngine
from pellucid.sampling_params import SamplingParams

MAX_MODEL_LEN = 64
DIMENSIONS: dict[str, tuple[Any, ...]] = {
    "speculative_method": ("off", "auto", "ngram"),
    "threads": (1, 2),
    "max_num_batched_tokens": (2, 5, 7, 16, 33, 64, 512),
    "max_num_seqs": (1, 2, 4, 8),
    "enable_prefix_caching": (True, True, False),
    "kv_cache_blocks": (4, 5, 6, 40),
    "kv_cache_dtype": ("int16", "int16", "int16", "float16", "float32", "int8", "int4"),
}
"""Settings of the engine and what they may be; `kv_cache_blocks` stands for kv_cache_memory_bytes."""
CHANGES_BITS = ("kv_cache_dtype",)
NUM_REQUESTS = 24
TEXT = (
    "Water boils at 100 degrees. Gold melts at 1064 degrees. Once upon a time, in a village by the sea, there lived "
    "a baker who def fibonacci(n):\n    return n 水は百度で沸騰する。"
)


def random_request(rng: random.Random, ids: list[int]) -> tuple[list[int], SamplingParams]:
    """A prompt that begins as others do, or not, and parameters of every kind."""
    start = rng.choice((0, 0, 0, rng.randrange(len(ids) - 1)))
    prompt = ids[start : start + rng.choice((1, 7, 15, 16, 17, 31, 33, 40))]
    max_tokens = rng.randint(1, 8)
    if rng.random() < 0.25:  # short prompts that grow long, so that blocks run out
        prompt, max_tokens = prompt[:7], rng.randint(30, 40)
    fields: dict[str, Any] = {
        "max_tokens": max_tokens,
        "min_tokens": rng.choice((0, 0, max_tokens)),
        "temperature": rng.choice((0.0, 0.0, 0.7, 1.0, 1.5)),
        "top_k": rng.choice((0, 0, 1, 40, 3000)),
        "top_p": rng.choice((1.0, 1.0, 0.5, 0.95)),
        "min_p": rng.choice((0.0, 0.0, 0.05)),
        "repetition_penalty": rng.choice((1.0, 1.0, 1.3)),
        "frequency_penalty": rng.choice((0.0, 0.0, 0.5)),
        "presence_penalty": rng.choice((0.0, 0.0, -0.5)),
        "logit_bias": rng.choice(({}, {}, {ids[3]: 4.0})),
        "n": rng.choice((1, 1, 1, 2, 3)),
        "seed": rng.randrange(2**40),
        "logprobs": rng.choice((None, 0, 3)),
        "prompt_logprobs": rng.choice((None, None, None, 1)),
        "ignore_eos": rng.random() < 0.8,
    }
    return prompt, SamplingParams(**fields)


class Schedules:
    """Runs schedules against what each of a fixed set of requests answers alone."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        ids = engines.make().tokenizer.encode(TEXT)
        rng = random.Random(1)
        self.requests = [random_request(rng, ids) for _ in range(NUM_REQUESTS)]
        self.growing = [i for i, (_, params) in enumerate(self.requests) if (params.max_tokens or 0) >= 30]
        self.seen: Counter[str] = Counter()
        self._alone: dict[tuple[Any, ...], Any] = {}

    def engine(self, settings: dict[str, Any]) -> LLMEngine:
        fields = dict(settings)
        if blocks := fields.pop("kv_cache_blocks", None):
            dtype = fields.get("kv_cache_dtype", DEFAULT_KV_CACHE_DTYPE)
            config = self.engines.make().config
            fields["kv_cache_memory_bytes"] = config.kv_bytes_per_token(dtype) * 16 * blocks
        return self.engines.make(max_model_len=MAX_MODEL_LEN, **fields)

    def alone(self, number: int, settings: dict[str, Any]) -> Any:
        """The request by itself, its prompt in one piece, nothing in the cache."""
        fields = {name: settings[name] for name in CHANGES_BITS}
        key = (number, *fields.values())
        if key not in self._alone:
            engine = self.engine({**fields, "enable_prefix_caching": False, "speculative_method": "off"})
            self._alone[key] = bits(run(engine, [self.requests[number]])[0])
        return self._alone[key]

    def check(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            rng = random.Random(number)
            settings = {name: rng.choice(values) for name, values in DIMENSIONS.items()}
            chosen = rng.choices(range(NUM_REQUESTS), k=rng.randint(2, 5))
            if rng.random() < 0.2:  # blocks run out
                settings.update(kv_cache_blocks=rng.choice((4, 5)), max_num_seqs=8)
                chosen = rng.choices(self.growing, k=3)
            engine = self.engine(settings)
            outputs = run(engine, [self.requests[i] for i in chosen], rng)
            for i, output in zip(chosen, outputs, strict=True):
                assert bits(output) == self.alone(i, settings), f"schedule {number}, request {i}, {settings}"
            stats = engine.stats
            self.seen += Counter(
                preemptions=stats.num_preemptions,
                found=stats.prefix_cache_hit_tokens,
                evicted=stats.prefix_cache_evicted_blocks,
                accepted=stats.spec_accepted_tokens,
                refused=stats.spec_draft_tokens - stats.spec_accepted_tokens,
                tokens=stats.num_output_tokens,
            )


@pytest.fixture(scope="module")
def schedules(smollm2_path: Path) -> Schedules:
    return Schedules(Engines(smollm2_path))


def test_six_schedules_do_not_change_a_bit(schedules: Schedules) -> None:
    schedules.check(range(6))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_two_hundred_schedules_do_not_change_a_bit(schedules: Schedules, part: int) -> None:
    schedules.seen.clear()
    schedules.check(range(25 * part, 25 * (part + 1)))
    seen = schedules.seen
    assert min(seen[name] for name in ("preemptions", "found", "evicted", "accepted", "refused")) > 0
    assert seen["tokens"] > 1000
