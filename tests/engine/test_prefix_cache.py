"""The prefix cache in the engine, on the mock: what is found, by whom, and what is told about it."""

from __future__ import annotations

from typing import Any

import pytest
from engine_driver import FOREVER, PROMPT, drain, one, run
from mock_model import INF_TOKEN, NAN_TOKEN, ByteTokenizer, MockModel, make_engine
from naive_generate import naive_generate, naive_prompt_logprobs

from pellucid.config import EngineArgs
from pellucid.engine.llm import LLM
from pellucid.engine.llm_engine import LLMEngine
from pellucid.errors import InvalidParameterError
from pellucid.sampling_params import SamplingParams

LONG = [ord("a") + (7 * i * i + i // 5) % 7 for i in range(200)]
SHORT = SamplingParams(temperature=0, seed=1, max_tokens=4, ignore_eos=True, logprobs=2)


def rows_of(engine: LLMEngine) -> list[int]:
    assert isinstance(engine.model, MockModel)
    return engine.model.rows


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 160, 161])
def test_a_warm_prompt_computes_only_the_rest_and_says_so(length: int) -> None:
    engine = make_engine(max_num_batched_tokens=256)
    cold = run(engine, {"cold": (LONG[:length], SHORT)})["cold"]
    rows_of(engine).clear()
    warm = run(engine, {"warm": (LONG[:length], SHORT)})["warm"]
    found = (length - 1) // 16 * 16
    assert rows_of(engine) == [length - found, 1, 1, 1]
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, found)
    assert warm.outputs == cold.outputs
    stats = engine.stats
    assert (stats.prefix_cache_queried_tokens, stats.prefix_cache_hit_tokens) == (2 * length, found)
    assert stats.prefix_cache_hit_rate == found / (2 * length)


def test_the_answer_is_found_as_part_of_the_next_prompt() -> None:
    engine = make_engine(max_num_batched_tokens=256)
    answer = one(engine, LONG[:20], temperature=0, max_tokens=30, ignore_eos=True)
    history = LONG[:20] + answer.token_ids  # 50 tokens; the last one was never computed
    assert run(engine, {"next": (history + LONG[:9], SHORT)})["next"].num_cached_tokens == 48
    assert rows_of(engine)[-4:] == [11, 1, 1, 1]


def test_g60_another_salt_finds_nothing() -> None:
    engine = make_engine()
    found: dict[str, int | None] = {}
    for number, salt in enumerate(("", "a", "a", "b", "")):
        engine.add_request(f"r{number}", LONG[:40], SHORT, cache_salt=salt)
        found[f"{number} {salt}"] = drain(engine)[f"r{number}"].num_cached_tokens
    assert found == {"0 ": 0, "1 a": 0, "2 a": 32, "3 b": 0, "4 ": 32}


def test_a_salt_is_a_string() -> None:
    engine = make_engine()
    with pytest.raises(InvalidParameterError, match="cache_salt is 3, but must be a string"):
        engine.add_request("x", PROMPT, SHORT, cache_salt=3)  # type: ignore[arg-type]
    assert not engine.has_unfinished_requests()


def test_llm_hands_the_salt_on() -> None:
    llm = LLM.from_parts(MockModel(), ByteTokenizer(), EngineArgs(model="mock", kv_cache_memory_bytes=2**16, seed=0))
    text = "abcdefg" * 6
    assert llm.generate(text, SHORT)[0].num_cached_tokens == 0
    assert llm.generate([text, text], SHORT, cache_salt="t")[0].num_cached_tokens == 0
    assert [output.num_cached_tokens for output in llm.generate([text, text], SHORT, cache_salt="t")] == [32, 32]
    assert next(iter(llm.stream(text, SHORT, cache_salt="u"))).num_cached_tokens == 0
    assert next(iter(llm.stream(text, SHORT, cache_salt="u"))).num_cached_tokens == 32


def test_without_caching_nothing_is_found_or_kept() -> None:
    engine = make_engine(enable_prefix_caching=False)
    for number in range(2):
        output = run(engine, {"x": (LONG[:40], SamplingParams(n=1 + number, max_tokens=20, ignore_eos=True))})["x"]
        assert output.num_cached_tokens == 0
        assert engine.stats.kv_blocks_cached == 0
    assert engine.stats.prefix_cache_hit_rate is None


@pytest.mark.parametrize("enabled", [False, True])
def test_n_answers_compute_their_prompt_once(enabled: bool) -> None:
    engine = make_engine(enable_prefix_caching=enabled, max_num_batched_tokens=100)
    output = run(engine, {"x": (LONG[:40], SamplingParams(n=5, max_tokens=2, ignore_eos=True))})["x"]
    assert rows_of(engine) == [40, 1 + 4 * 8, 4]
    assert output.num_cached_tokens == 0


@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_the_switch_is_a_bool(value: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"enable_prefix_caching is .* must be True or False"):
        EngineArgs(enable_prefix_caching=value)


def test_l43_prompt_logprobs_do_not_read_the_cache_but_others_read_what_they_computed() -> None:
    engine, prompt = make_engine(max_num_batched_tokens=256), LONG[:50]
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=3, n=2)
    expected = naive_prompt_logprobs(prompt, 3)
    for name in ("cold", "warm"):
        output = run(engine, {name: (prompt, params)})[name]
        assert output.num_cached_tokens == 0
        rows = output.prompt_logprobs or []
        assert [row and [(i, lp.logprob, lp.rank) for i, lp in row.items()] for row in rows] == expected
    assert engine.stats.prefix_cache_queried_tokens == 0
    assert run(engine, {"plain": (prompt, SHORT)})["plain"].num_cached_tokens == 48


def test_an_aborted_request_leaves_what_it_computed() -> None:
    engine = make_engine(max_num_batched_tokens=40)
    engine.add_request("x", LONG[:100], FOREVER)
    engine.step()
    last = engine.abort("x")
    assert last is not None
    assert last.num_cached_tokens == 0
    engine.check_integrity()
    assert run(engine, {"y": (LONG[:100], SHORT)})["y"].num_cached_tokens == 32
    engine.add_request("never ran", LONG[:100], FOREVER)
    last = engine.abort("never ran")
    assert last is not None
    assert last.num_cached_tokens is None


@pytest.mark.parametrize("bad", [INF_TOKEN, NAN_TOKEN])
def test_what_a_failed_request_computed_is_not_kept(bad: int) -> None:
    engine = make_engine(max_num_batched_tokens=32)
    run(engine, {"good": (LONG[:20], SHORT)})
    cached = engine.stats.kv_blocks_cached
    prompt = [*LONG[:60], bad, *LONG[:60]]
    assert run(engine, {"bad": (prompt, SHORT)})["bad"].outputs[0].finish_reason == "error"
    assert engine.stats.kv_blocks_cached == cached
    again = run(engine, {"again": (prompt, SHORT)})["again"]
    assert again.outputs[0].finish_reason == "error"
    assert again.num_cached_tokens == 16, "what the good one left"


def test_requests_at_once_share_what_the_first_has_computed_by_then() -> None:
    engine = make_engine(max_num_batched_tokens=64)
    outputs = run(engine, {f"r{i}": ([*LONG[:150], 97 + i], SHORT) for i in range(4)})
    assert [outputs[f"r{i}"].num_cached_tokens for i in range(4)] == [0, 128, 128, 144]
    for i in range(4):
        expected = naive_generate([*LONG[:150], 97 + i], SHORT, 0, 0, 256)
        assert outputs[f"r{i}"].outputs[0].token_ids == expected.token_ids


def test_the_same_prompt_eight_times_in_one_step_is_kept_once() -> None:
    engine = make_engine(max_num_batched_tokens=512)
    outputs = run(engine, {f"r{i}": (LONG[:40], SHORT) for i in range(8)})
    assert rows_of(engine)[0] == 320
    assert engine.stats.kv_blocks_cached == 2
    for output in outputs.values():
        assert output.outputs[0].logprobs == outputs["r0"].outputs[0].logprobs


def test_a_prefix_in_use_survives_a_pool_that_is_too_small() -> None:
    engine = make_engine(num_blocks=8, max_model_len=120, max_num_seqs=4, max_num_batched_tokens=50)
    params = SamplingParams(temperature=1.0, max_tokens=70, ignore_eos=True, logprobs=1)
    requests = {f"r{i}": ([*LONG[:40], 97 + i], params) for i in range(5)}
    outputs = run(engine, requests)
    assert engine.stats.num_preemptions > 0
    assert engine.stats.prefix_cache_evicted_blocks > 0
    for name, (prompt, _) in requests.items():
        answer = outputs[name].outputs[0]
        assert answer.token_ids == naive_generate(prompt, params, answer.seed, 0, 120).token_ids
