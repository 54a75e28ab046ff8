"""Law 1 on the real models, at random: tokens and logprobs of schedules are the bits that each request has alone.

200 short ones; and long ones, whose contexts are merged from several splits of attention and cross Gemma's window.
A new setting that must not change an answer is a line in `SHORT`; one that does, and is only to be the same
whatever the schedule, is a line there and its name in `CHANGES_BITS`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from golden.fidelity import GOLDEN_DIR
from many_schedules import Dimensions, Requests, Schedules, random_params
from real_engines import Engines

SHORT: Dimensions = {
    "speculative_method": ("off", "auto", "ngram"),
    "threads": (1, 2),
    "max_num_batched_tokens": (2, 5, 7, 16, 33, 64, 512),
    "max_num_seqs": (1, 2, 4, 8),
    "enable_prefix_caching": (True, True, False),
    "kv_cache_blocks": (4, 5, 6, 40),
    "kv_cache_dtype": ("int16", "int16", "int16", "float16", "float32", "int8", "int4"),
}
NUM_SHORT = 24
TEXT = (
    "Water boils at 100 degrees. Gold melts at 1064 degrees. Once upon a time, in a village by the sea, there lived "
    "a baker who def fibonacci(n):\n    return n 水は百度で沸騰する。"
)
LONG: Dimensions = {
    "speculative_method": ("off", "auto", "ngram"),
    "threads": (1, 2, 2),
    "max_num_batched_tokens": (45, 100, 256, 512),
    "max_num_seqs": (1, 2, 4),
    "enable_prefix_caching": (True, True, False),
    "kv_cache_blocks": (44, 50, 100),
    "kv_cache_dtype": ("int16", "int16", "int8"),
}
LONG_PROMPTS = (250, 300, 507, 640)
"""Tokens: answers pass 256 and 512, where attention's splits end, the second of which is Gemma's window."""


def short_requests(ids: list[int]) -> Requests:
    """Prompts that begin as others do, or not; some short ones grow long, so that blocks run out."""
    rng = random.Random(1)
    requests: Requests = []
    for _ in range(NUM_SHORT):
        start = rng.choice((0, 0, 0, rng.randrange(len(ids) - 1)))
        prompt = ids[start : start + rng.choice((1, 7, 15, 16, 17, 31, 33, 40))]
        max_tokens = rng.randint(1, 8)
        if rng.random() < 0.25:
            prompt, max_tokens = prompt[:7], rng.randint(30, 40)
        requests.append((prompt, random_params(rng, ids, max_tokens)))
    return requests


def long_requests(ids: list[int]) -> Requests:
    rng = random.Random(2)
    starts = [rng.choice((0, 0, 30)) for _ in LONG_PROMPTS]
    return [
        (ids[start : start + length], replace(random_params(rng, ids, rng.randint(8, 14)), n=1))
        for start, length in zip(starts, LONG_PROMPTS, strict=True)
    ]


@pytest.fixture(scope="module")
def schedules(smollm2_path: Path) -> Schedules:
    engines = Engines(smollm2_path)
    return Schedules(engines, short_requests(engines.make().tokenizer.encode(TEXT)), 64, SHORT)


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def long_schedules(request: pytest.FixtureRequest) -> Schedules:
    engines = Engines(request.getfixturevalue(f"{request.param}_path"))
    text = (GOLDEN_DIR / "text_prose.txt").read_text(encoding="utf-8")
    return Schedules(engines, long_requests(engines.make(max_model_len=704).tokenizer.encode(text)), 704, LONG)


def test_six_schedules_do_not_change_a_bit(schedules: Schedules) -> None:
    schedules.check(range(6))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(8))
def test_two_hundred_schedules_do_not_change_a_bit(schedules: Schedules, part: int) -> None:
    if part == 0:
        schedules.seen.clear()
        schedules.num_checked = 0
    schedules.check(range(25 * part, 25 * (part + 1)))
    seen = schedules.seen
    assert min(seen[name] for name in ("found", "accepted", "refused", "whole")) > 0, seen
    if schedules.num_checked == 200:
        wanted = ("preemptions", "evicted", "aborted in prompt", "aborted in answer", "read ahead", "structured")
        assert min(seen[name] for name in wanted) > 0, seen
        assert seen["tokens"] > 5000, seen


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_int8_and_aborts_do_not_change_a_bit(schedules: Schedules) -> None:
    schedules.seen.clear()
    schedules.check(range(200, 226), kv_cache_dtype="int8", aborts=0.1, priorities=(0, 1))
    seen = schedules.seen
    assert seen["aborted in prompt"] > 0, seen
    assert seen["aborted in answer"] > 3, seen
    assert seen["whole"] > 3, seen


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(3))
def test_long_schedules_do_not_change_a_bit(long_schedules: Schedules, part: int) -> None:
    """The second of each two with int8 and aborts."""
    long_schedules.seen.clear()
    long_schedules.check([2 * part], most=3, aborts=0.0)
    long_schedules.check([2 * part + 1], most=3, kv_cache_dtype="int8", aborts=0.03)
    assert long_schedules.seen["whole"] > 1, long_schedules.seen
