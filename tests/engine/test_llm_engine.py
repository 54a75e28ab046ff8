"""LLMEngine on the mock: steps, seeds, several answers, prompt logprobs."""

from __future__ import annotations

import math
from typing import Any

import pytest
from engine_driver import FOREVER, PROMPT, drain, one, run
from mock_model import (
    CONTEXT_LENGTH,
    MockModel,
    make_engine,
)
from naive_generate import naive_generate, naive_prompt_logprobs

from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.output_processor import add_delta
from pellucid.sampling_params import SamplingParams


def test_a_step_mixes_answers_and_prompts_within_the_budget() -> None:
    engine = make_engine(max_num_batched_tokens=20)
    model = engine.model
    assert isinstance(model, MockModel)
    for name, length in (("a", 10), ("b", 15), ("c", 40)):
        engine.add_request(name, PROMPT[:1] * length, FOREVER)
    engine.step()  # all of a, 10 of b
    assert model.rows == [20]
    engine.step()  # one of a, 5 of b, 14 of c
    engine.step()  # one of a, one of b, 18 of c
    assert model.rows == [20, 20, 20]
    engine.step()  # one of a, one of b, the last 8 of c
    engine.step()
    assert model.rows[3:] == [10, 3]


def test_answers_come_before_prompts() -> None:
    engine = make_engine(max_num_batched_tokens=4)
    engine.add_request("old", PROMPT[:20], FOREVER)
    for _ in range(5):
        engine.step()
    engine.add_request("long", PROMPT[::-1], FOREVER)
    for _ in range(5):
        assert [output.request_id for output in engine.step()] == ["old"], "the stream flows while the prompt waits"


def test_logits_are_computed_for_the_rows_that_need_them_only() -> None:
    engine = make_engine(max_num_batched_tokens=10)
    one(engine, PROMPT, max_tokens=3, temperature=0, ignore_eos=True)
    model = engine.model
    assert isinstance(model, MockModel)
    assert model.rows == [10, 10, 8, 1, 1]
    assert model.logits_rows == [1, 1, 1]


def test_metrics_and_stats() -> None:
    engine = make_engine()
    output = run(engine, {"x": (PROMPT, SamplingParams(max_tokens=5, ignore_eos=True))})["x"]
    metrics = output.metrics
    assert metrics.first_scheduled_time is not None
    assert metrics.first_token_time is not None
    assert metrics.arrival_time <= metrics.first_scheduled_time <= metrics.first_token_time
    assert len(metrics.token_times) == 5
    assert metrics.last_token_time == metrics.token_times[-1]
    assert metrics.ttft is not None
    assert metrics.ttft >= 0
    stats = engine.stats
    assert stats.num_steps == 5
    assert stats.num_tokens_computed == len(PROMPT) + 4
    assert stats.num_output_tokens == 5
    assert (stats.kv_blocks_used, stats.kv_blocks_total, stats.kv_blocks_touched) == (0, 64, 2)
    assert (stats.num_running, stats.num_waiting) == (0, 0)


def test_p32_a_seed_gives_the_same_tokens_whatever_runs_beside_it() -> None:
    params = SamplingParams(seed=1234, temperature=1.0, max_tokens=40, ignore_eos=True, logprobs=2)
    alone = one(make_engine(seed=None), PROMPT, seed=1234, temperature=1.0, max_tokens=40, ignore_eos=True, logprobs=2)
    for neighbours in (1, 5, 7):
        requests: dict[str, Any] = {
            f"n{i}": (PROMPT[: 3 + i], SamplingParams(max_tokens=60)) for i in range(neighbours)
        }
        together = run(make_engine(seed=None), {**requests, "x": (PROMPT, params)})["x"].outputs[0]
        assert together.token_ids == alone.token_ids
        assert together.logprobs == alone.logprobs
        assert together.seed == 1234


def test_p33_same_prompt_in_eight_slots_gives_one_text() -> None:
    params = SamplingParams(temperature=0, max_tokens=30, logprobs=5, ignore_eos=True)
    outputs = run(make_engine(max_num_batched_tokens=37), {f"r{i}": (PROMPT, params) for i in range(8)})
    first = outputs["r0"].outputs[0]
    for output in outputs.values():
        assert output.outputs[0].text == first.text
        assert output.outputs[0].logprobs == first.logprobs


def test_a_request_without_a_seed_is_given_one_that_reproduces_it() -> None:
    given = one(make_engine(seed=None), PROMPT, max_tokens=30)
    again = one(make_engine(seed=None), PROMPT, max_tokens=30, seed=given.seed)
    other = one(make_engine(seed=None), PROMPT, max_tokens=30)
    assert again.token_ids == given.token_ids
    assert 0 <= given.seed < 2**63
    assert other.seed != given.seed


def test_the_engines_seed_makes_whole_runs_reproducible() -> None:
    def seeds(engine: LLMEngine) -> list[int]:
        outputs = run(engine, {f"r{i}": (PROMPT, SamplingParams(max_tokens=2)) for i in range(3)})
        return [output.outputs[0].seed for output in outputs.values()]

    assert seeds(make_engine(seed=5)) == seeds(make_engine(seed=5)) == [5, 6, 7]
    assert seeds(make_engine(seed=None)) != seeds(make_engine(seed=None))


def test_n_answers_share_the_prompts_blocks_and_compute_it_once() -> None:
    prompt = PROMPT + PROMPT[:12]  # 40 tokens: two full blocks to share, eight tokens to compute
    engine = make_engine(max_num_batched_tokens=100)
    engine.add_request("x", prompt, SamplingParams(n=5, max_tokens=20, ignore_eos=True, temperature=1.0))
    outputs = engine.step() + engine.step()
    model = engine.model
    assert isinstance(model, MockModel)
    assert model.rows == [40, 1 + 4 * 8]
    assert engine.stats.kv_blocks_used == 2 + 5
    totals = None
    for output in outputs:
        totals = add_delta(totals, output)
    rest = drain(engine)["x"]
    assert totals is not None
    whole = add_delta(totals, rest)
    assert len({tuple(answer.token_ids) for answer in whole.outputs}) == 5
    assert len({answer.seed for answer in whole.outputs}) == 1
    for answer in whole.outputs:
        expected = naive_generate(
            prompt,
            SamplingParams(max_tokens=20, ignore_eos=True, temperature=1.0),
            answer.seed,
            answer.index,
            CONTEXT_LENGTH,
        )
        assert answer.token_ids == expected.token_ids


def test_the_prompt_is_handed_on_when_the_first_answer_is_done_at_once() -> None:
    engine = make_engine(max_num_batched_tokens=100, max_num_seqs=1)
    run(engine, {"x": (PROMPT + PROMPT, SamplingParams(n=6, max_tokens=1))})
    model = engine.model
    assert isinstance(model, MockModel)
    assert model.rows == [56] + [56 - 48] * 5


def test_answers_end_independently() -> None:
    params = SamplingParams(n=8, max_tokens=60, stop=["ab"], seed=3)
    output = run(make_engine(), {"x": (PROMPT, params)})["x"]
    assert len({len(answer.token_ids) for answer in output.outputs}) > 2
    assert [answer.index for answer in output.outputs] == list(range(8))


@pytest.mark.parametrize("budget", [3, 16, 200])
def test_l43_prompt_logprobs_are_the_same_whatever_the_chunks_and_on_repeat(budget: int) -> None:
    prompt = (PROMPT * 6)[:150]
    engine = make_engine(max_num_batched_tokens=budget)
    params = SamplingParams(prompt_logprobs=3, max_tokens=2, n=2)
    expected = naive_prompt_logprobs(prompt, 3)
    for name in ("first", "again"):
        rows = run(engine, {name: (prompt, params)})[name].prompt_logprobs
        assert rows is not None
        assert [row and [(i, lp.logprob, lp.rank) for i, lp in row.items()] for row in rows] == expected
    model = engine.model
    assert isinstance(model, MockModel)
    assert max(model.logits_rows) <= 64


def test_prompt_logprobs_of_one_token() -> None:
    assert run(make_engine(), {"x": ([97], SamplingParams(prompt_logprobs=1, max_tokens=1))})["x"].prompt_logprobs == [
        None
    ]


def test_logprobs_have_the_chosen_token_first() -> None:
    answer = one(make_engine(), PROMPT, logprobs=2, max_tokens=10, temperature=2.0, seed=1, ignore_eos=True)
    assert answer.logprobs is not None
    for token_id, row in zip(answer.token_ids, answer.logprobs, strict=True):
        assert next(iter(row)) == token_id
        assert len(row) in (2, 3)
        assert sorted(lp.rank for i, lp in row.items() if i != token_id)[:1] in ([1], [2])
    total = sum(row[i].logprob for i, row in zip(answer.token_ids, answer.logprobs, strict=True))
    assert answer.cumulative_logprob is not None
    assert math.isclose(answer.cumulative_logprob, total)
