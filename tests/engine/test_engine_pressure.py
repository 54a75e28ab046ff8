"""LLMEngine on the mock: blocks run out, requests fail or are aborted, and nobody else notices."""

from __future__ import annotations

from typing import Any

import numpy as np
from engine_driver import FOREVER, PROMPT, drain, one, run
from mock_model import (
    EOS,
    INF_TOKEN,
    NAN_TOKEN,
    MockModel,
    make_engine,
)
from naive_generate import naive_generate, naive_prompt_logprobs

from pellucid.engine.output_processor import add_delta
from pellucid.sampling_params import SamplingParams


def test_a47_the_pool_runs_out_and_nobody_is_changed() -> None:
    engine = make_engine(num_blocks=8, max_model_len=120, max_num_seqs=8)
    params = SamplingParams(temperature=1.0, max_tokens=80, ignore_eos=True, logprobs=0)
    requests = {f"r{i}": (PROMPT[: 10 + i], params) for i in range(6)}
    outputs = run(engine, requests)
    assert engine.stats.num_preemptions > 0
    assert sum(output.metrics.num_preemptions for output in outputs.values()) == engine.stats.num_preemptions
    assert outputs["r0"].metrics.num_preemptions == 0, "the oldest keeps its place"
    for name, (prompt, _) in requests.items():
        answer = outputs[name].outputs[0]
        expected = naive_generate(prompt, params, answer.seed, 0, 120)
        assert answer.token_ids == expected.token_ids
        assert answer.finish_reason == "length"
        assert len(answer.logprobs or []) == 80


def test_requests_end_in_order_of_arrival_under_pressure() -> None:
    engine = make_engine(num_blocks=5, max_model_len=64, max_num_seqs=4)
    for i in range(6):
        engine.add_request(f"r{i}", PROMPT[:10], SamplingParams(max_tokens=50, ignore_eos=True))
    ended: list[str] = []
    while engine.has_unfinished_requests():
        ended += [output.request_id for output in engine.step() if output.finished]
    assert ended == [f"r{i}" for i in range(6)]


def test_lower_priority_gives_way() -> None:
    engine = make_engine(num_blocks=4, max_model_len=64)
    engine.add_request("background", PROMPT[:10], SamplingParams(max_tokens=40, ignore_eos=True), priority=5)
    engine.step()
    engine.add_request("urgent", PROMPT[:10], SamplingParams(max_tokens=40, ignore_eos=True))
    outputs = drain(engine)
    assert outputs["background"].metrics.num_preemptions > 0
    assert outputs["urgent"].metrics.num_preemptions == 0


def test_prompt_logprobs_survive_preemption_each_row_once() -> None:
    """The prompt is taken in so slowly that the older answers need its blocks before it is done."""
    engine = make_engine(num_blocks=9, max_model_len=64, max_num_batched_tokens=3)
    for name in ("old", "older"):
        engine.add_request(name, PROMPT[:14], SamplingParams(max_tokens=50, ignore_eos=True))
    for _ in range(12):
        engine.step()
    prompt = PROMPT + PROMPT[:20]
    engine.add_request("x", prompt, SamplingParams(prompt_logprobs=1, max_tokens=5, ignore_eos=True, n=2))
    first = next(request for request in engine.scheduler.waiting if request.request_id == "x")
    while first.num_preemptions == 0:
        assert not any(output.request_id == "x" for output in engine.step())
    assert 0 < first.num_prompt_rows_reported < len(prompt) - 1, "preempted in the middle of its prompt"
    output = drain(engine)["x"]
    rows = output.prompt_logprobs or []
    expected = naive_prompt_logprobs(prompt, 1)
    assert [row and [(i, lp.logprob, lp.rank) for i, lp in row.items()] for row in rows] == expected


def test_p37_nan_logits_fail_one_request_and_its_neighbours_finish() -> None:
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    alone = one(make_engine(), PROMPT, temperature=0, max_tokens=20, ignore_eos=True)
    requests: dict[str, Any] = {
        "before": (PROMPT, params),
        "bad": ([97, NAN_TOKEN, 98], params),
        "bad prompt": ([97, NAN_TOKEN, 98], SamplingParams(prompt_logprobs=0)),
        "after": (PROMPT, params),
    }
    engine = make_engine()
    outputs = run(engine, requests)
    for name in ("bad", "bad prompt"):
        answer = outputs[name].outputs[0]
        assert (answer.finish_reason, answer.token_ids) == ("error", [])
        assert answer.error is not None
        assert f"request {name}" in answer.error
        assert outputs[name].finished
    for name in ("before", "after"):
        assert outputs[name].outputs[0].token_ids == alone.token_ids
        assert outputs[name].outputs[0].finish_reason == "length"


def test_p37_a_key_that_cannot_be_stored_fails_one_request_and_is_wiped() -> None:
    engine = make_engine(max_num_batched_tokens=5)
    outputs = run(engine, {"bad": ([*PROMPT[:17], INF_TOKEN, *PROMPT], FOREVER), "good": (PROMPT, FOREVER)})
    assert outputs["bad"].outputs[0].finish_reason == "error"
    assert "position 17" in (outputs["bad"].outputs[0].error or "")
    assert outputs["good"].outputs[0].finish_reason == "length"
    engine = make_engine()
    run(engine, {"bad": ([*PROMPT[:3], INF_TOKEN], FOREVER)})
    assert not any(np.any(array) for layer in engine.storage.layers for array in (layer.keys, layer.values))


def test_parameters_that_leave_no_token_fail_one_request() -> None:
    outputs = run(
        make_engine(),
        {"bad": (PROMPT, SamplingParams(allowed_token_ids=[EOS], min_tokens=1)), "good": (PROMPT, FOREVER)},
    )
    assert outputs["bad"].outputs[0].finish_reason == "error"
    assert outputs["good"].outputs[0].finish_reason == "length"


def test_abort_frees_the_blocks_at_once_and_gives_the_text_held_back() -> None:
    engine = make_engine()
    engine.add_request("x", PROMPT, SamplingParams(allowed_token_ids=[97], stop="aaaab", n=3))
    engine.add_request("waits", PROMPT, FOREVER)
    for _ in range(3):
        engine.step()
    used = engine.stats.kv_blocks_used
    last = engine.abort("x")
    assert last is not None
    assert last.finished
    assert [answer.finish_reason for answer in last.outputs] == ["abort"] * 3
    assert last.outputs[0].text == "aaa"
    assert engine.stats.kv_blocks_used < used
    engine.check_integrity()
    assert engine.abort("x") is None
    assert engine.abort("never heard of") is None
    assert drain(engine)["waits"].outputs[0].finish_reason == "length"


def test_abort_before_the_first_step() -> None:
    engine = make_engine()
    engine.add_request("x", PROMPT, SamplingParams(n=2))
    last = engine.abort("x")
    assert last is not None
    assert len(last.outputs) == 2
    engine.check_integrity()
    assert not engine.has_unfinished_requests()


def test_a_failing_forward_pass_can_be_repeated() -> None:
    alone = one(make_engine(), PROMPT, temperature=0, max_tokens=9, ignore_eos=True)
    engine = make_engine(max_num_batched_tokens=13)
    model = engine.model
    assert isinstance(model, MockModel)

    def fail(batch: Any) -> None:
        model.on_forward = None
        raise KeyboardInterrupt

    engine.add_request("x", PROMPT, SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
    totals = None
    for i in range(13):
        model.on_forward = fail if i % 3 == 0 else None
        try:
            for output in engine.step() if engine.has_unfinished_requests() else []:
                totals = add_delta(totals, output)
        except KeyboardInterrupt:
            continue
    rest = drain(engine).get("x")
    assert totals is not None
    whole = totals if rest is None else add_delta(totals, rest)
    assert whole.outputs[0].token_ids == alone.token_ids


def test_logits_processors_run() -> None:
    def only_g(output: list[int], logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        logits[: ord("g")] = -np.inf
        logits[ord("g") + 1 :] = -np.inf
        return logits

    engine = make_engine()
    engine.add_request("x", PROMPT, SamplingParams(max_tokens=3), logits_processors=[only_g])
    assert drain(engine)["x"].outputs[0].text == "ggg"
