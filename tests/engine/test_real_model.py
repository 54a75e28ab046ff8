"""Law 1 on the real model: whatever is scheduled, with any number of threads, the same bits as alone."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from real_engines import Engines, bits, run

from pellucid.config import DEFAULT_KV_CACHE_DTYPE, EngineArgs
from pellucid.engine.llm import LLM
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.output_processor import add_delta
from pellucid.outputs import RequestOutput
from pellucid.sampling_params import SamplingParams

TEXTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived a baker who",
    "def fibonacci(n):\n    ",
    "Water boils at 100 degrees. Ice melts at 0 degrees. Gold melts at 1064 degrees. " * 3,
    "水は百度で沸騰する。",
    "A",
)
PARAMS = (
    SamplingParams(temperature=0, max_tokens=14, logprobs=2, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=11, max_tokens=10, logprobs=0, top_p=0.9, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=5, max_tokens=12, logprobs=1, n=3, repetition_penalty=1.2),
    SamplingParams(temperature=0, max_tokens=6, logprobs=1, prompt_logprobs=1),
)
REQUESTS = [(text, PARAMS[i % len(PARAMS)]) for i, text in enumerate(TEXTS)]

LONG_REQUESTS = [
    (text, replace(params, max_tokens=36, ignore_eos=True, n=1))
    for text, params in zip(TEXTS[:3], PARAMS, strict=False)
]


@pytest.fixture(scope="module")
def engines(smollm2_path: Path) -> Engines:
    return Engines(smollm2_path)


@pytest.fixture(scope="module")
def alone(engines: Engines) -> list[Any]:
    """Every request by itself, its prompt in one piece, nothing guessed."""
    return [bits(run(engines.make(speculative_method="off"), [request])[0]) for request in REQUESTS]


def test_the_default_model_knows_the_capital_of_france(smollm2_path: Path) -> None:
    with LLM(model=str(smollm2_path)) as llm:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        params = SamplingParams(temperature=0, max_tokens=64)
        answer = llm.chat(question, params)[0].outputs[0]
        assert answer.text == "The capital of France is Paris."
        assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
        deltas = [output.outputs[0] for output in llm.stream(question, params)]
        assert "".join(delta.text for delta in deltas) == answer.text
        assert [token_id for delta in deltas for token_id in delta.token_ids] == answer.token_ids


SCHEDULES: list[dict[str, Any]] = [
    {"max_num_batched_tokens": 7, "threads": 1},
    {"max_num_batched_tokens": 1, "max_num_seqs": 3, "threads": 2},
    {"max_num_batched_tokens": 33, "max_num_seqs": 4, "threads": 1},
    {"max_num_batched_tokens": 512, "threads": 2},
    {"max_num_batched_tokens": 30, "threads": 2, "speculative_method": "ngram", "num_speculative_tokens": 11},
]


@pytest.mark.parametrize("number", range(len(SCHEDULES)))
def test_schedules_do_not_change_a_bit(engines: Engines, alone: list[Any], number: int) -> None:
    rng = random.Random(number)
    order = rng.sample(range(len(REQUESTS)), len(REQUESTS))
    outputs = run(engines.make(**SCHEDULES[number]), [REQUESTS[i] for i in order], rng)
    for i, output in zip(order, outputs, strict=True):
        assert bits(output) == alone[i]


@pytest.fixture(scope="module")
def long_alone(engines: Engines) -> list[Any]:
    return [bits(run(engines.make(speculative_method="off"), [request])[0]) for request in LONG_REQUESTS]


@pytest.mark.parametrize("threads", [1, 2])
def test_preemption_does_not_change_a_bit(engines: Engines, long_alone: list[Any], threads: int) -> None:
    block_bytes = engines.make().config.kv_bytes_per_token(DEFAULT_KV_CACHE_DTYPE) * 16
    engine = engines.make(
        threads=threads, max_model_len=80, max_num_batched_tokens=40, kv_cache_memory_bytes=block_bytes * 6
    )
    outputs = run(engine, LONG_REQUESTS)
    assert engine.stats.num_preemptions > 0
    assert [bits(output) for output in outputs] == long_alone


def test_g67_looked_up_drafts_do_not_change_a_bit(engines: Engines) -> None:
    """A text that repeats, so that drafts are right and wrong: at all temperatures, with penalties and logprobs."""
    texts = (TEXTS[3], "one two three one two three one two", TEXTS[2] + TEXTS[2])
    requests = [
        (text, replace(params, max_tokens=40, min_tokens=30, logprobs=2))
        for text in texts
        for params in (PARAMS[0], PARAMS[1], PARAMS[2])
    ]
    plain = engines.make(speculative_method="off")
    expected = [bits(run(plain, [request])[0]) for request in requests]
    for method in ("auto", "ngram"):
        engine = engines.make(speculative_method=method)
        assert [bits(run(engine, [request])[0]) for request in requests] == expected
        assert engine.stats.num_steps < plain.stats.num_steps
        assert 0 < engine.stats.spec_accepted_tokens < engine.stats.spec_draft_tokens
        together = engines.make(speculative_method=method, max_num_batched_tokens=64)
        assert [bits(output) for output in run(together, requests)] == expected


HISTORY = (TEXTS[3] + TEXTS[1]) * 2
LENGTHS = (33, 15, 16, 17, 31, 32, 48)
PREFIX_PARAMS = SamplingParams(temperature=0.9, seed=3, max_tokens=11, logprobs=3, ignore_eos=True)


def answer(engine: LLMEngine, prompt: list[int], params: SamplingParams = PREFIX_PARAMS) -> RequestOutput:
    """One request of token ids, to its end."""
    engine.add_request("x", prompt, params)
    total: RequestOutput | None = None
    while engine.has_unfinished_requests():
        for output in engine.step():
            total = add_delta(total, output)
    engine.check_integrity()
    assert total is not None
    return total


def test_g62_cold_and_warm_do_not_differ_in_a_bit(engines: Engines) -> None:
    """Prefixes of awkward lengths, and an answer that is part of the next prompt; on one thread and on two."""
    ids = engines.make().tokenizer.encode(HISTORY)
    warm = engines.make(threads=1, max_num_batched_tokens=23)
    num_found = 0
    for length in LENGTHS:
        for rest in ([], ids[50:57]):
            prompt = ids[:length] + rest
            cold = answer(engines.make(enable_prefix_caching=False), prompt)
            found = answer(warm, prompt)
            assert bits(found) == bits(cold)
            assert cold.num_cached_tokens == 0
            num_found += found.num_cached_tokens or 0
            turn = prompt + cold.outputs[0].token_ids + ids[60:65]
            found = answer(warm, turn)
            assert bits(found) == bits(answer(engines.make(enable_prefix_caching=False), turn))
            assert found.num_cached_tokens == (len(turn) - 6) // 16 * 16, "all but the last id drawn was computed"
    assert num_found > 100
    assert warm.stats.prefix_cache_evicted_blocks == 0


def test_l43_prompt_logprobs_are_the_same_with_a_warm_cache(engines: Engines) -> None:
    engine = engines.make()
    prompt = engine.tokenizer.encode(HISTORY)[:40]
    params = SamplingParams(temperature=0, seed=1, max_tokens=3, logprobs=1, prompt_logprobs=2)
    first, again = answer(engine, prompt, params), answer(engine, prompt, params)
    assert first.num_cached_tokens == again.num_cached_tokens == 0
    assert bits(first) == bits(again)
    assert bits(answer(engines.make(enable_prefix_caching=False), prompt, params)) == bits(first)


def test_a_warm_prefix_of_a_thousand_tokens_is_not_computed_again(engines: Engines) -> None:
    engine = engines.make()
    ids = engine.tokenizer.encode("Water boils at 100 degrees. Gold melts at 1064 degrees. " * 60)[:1000]
    params = SamplingParams(temperature=0, max_tokens=1)
    answer(engine, [*ids, 5, 6, 7], params)
    before = engine.stats.num_tokens_computed
    warm = answer(engine, [*ids, 8, 9], params)
    assert warm.num_cached_tokens == 992
    assert engine.stats.num_tokens_computed - before == 10


def test_float32_cache_is_as_independent_of_the_schedule(engines: Engines) -> None:
    whole = run(engines.make(kv_cache_dtype="float32"), REQUESTS[:3])
    chunked = run(engines.make(kv_cache_dtype="float32", max_num_batched_tokens=9, threads=1), REQUESTS[:3])
    assert [bits(output) for output in whole] == [bits(output) for output in chunked]


def test_gemma_answers_in_chunks_as_alone(gemma3_path: Path) -> None:
    loaded = LLMEngine.from_args(EngineArgs(model=str(gemma3_path), seed=0, max_model_len=512))
    requests = REQUESTS[:2]
    expected = [bits(run(loaded, [request])[0]) for request in requests]
    args = EngineArgs(model=str(gemma3_path), seed=0, max_model_len=512, max_num_batched_tokens=5)
    outputs = run(LLMEngine(loaded.model, loaded.tokenizer, args), requests)
    assert [bits(output) for output in outputs] == expected
