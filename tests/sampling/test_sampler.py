"""The sampler's contract: cases reported against other engines, penalties, masks, errors, observers."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from pellucid.errors import InvalidParameterError, NonFiniteError, PellucidError
from pellucid.sampling.candidates import Candidates
from pellucid.sampling.draw import uniform
from pellucid.sampling.recorder import StageRecorder
from pellucid.sampling.sampler import Sampler, SamplingState, check_params_against_vocab
from pellucid.sampling.stages import STAGES, run_stages
from pellucid.sampling_params import MIN_TEMPERATURE, SamplingParams


def f32(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def state(prompt: list[int] | None = None, output: list[int] | None = None, **fields: Any) -> SamplingState:
    return SamplingState(SamplingParams(**fields), 1, 0, prompt or [], output if output is not None else [])


def processed(logits: np.ndarray, request: SamplingState) -> list[float]:
    return [float(v) for v in run_stages(logits, request).logits]


def test_p29_top_k_zero_and_minus_one_keep_all_and_others_are_refused() -> None:
    logits = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    for off in (0, -1):
        assert run_stages(logits, state(top_k=off)).ids is None
    for bad in (0.5, -2, True, "3", None):
        with pytest.raises(InvalidParameterError, match=r"^top_k is .*, but must be .* at least 1, or 0 or") as caught:
            SamplingParams(top_k=bad)  # type: ignore[arg-type]
        assert caught.value.field == "top_k"


def test_p30_tiny_temperature_is_greedy_and_finite() -> None:
    logits = f32(1.0, 5.0, 5.0, -3.0, 4.9999995)
    for temperature in (0.0, 1e-7, 1e-5, MIN_TEMPERATURE):
        for index in range(50):
            request = state(temperature=temperature)
            request.sample_index = index
            assert Sampler(5).sample(logits, request).token_id == 1  # of the tie, the lowest id
    extreme = f32(3e38, -3e38, 0.0, 2.9e38)
    for temperature in (1e-5, 1.1e-5, 1.0, 1e300):
        candidates = run_stages(extreme, state(temperature=temperature))
        assert np.isfinite(candidates.weights()).all()
    assert Sampler(4).sample(extreme, state(temperature=1.1e-5)).token_id == 0


def test_p32_choice_is_a_pure_function_whoever_else_is_sampled() -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((30, 500)).astype(np.float32) * 2

    def run(neighbours: int) -> list[int]:
        sampler = Sampler(500)
        seeded = SamplingState(SamplingParams(repetition_penalty=1.1, top_p=0.9), 123, 0, [1, 2, 3])
        others = [SamplingState(SamplingParams(), random.getrandbits(63), 0, [9]) for _ in range(neighbours)]
        for row in rows:
            for other in others:
                other.output_token_ids.append(sampler.sample(row, other).token_id)
            seeded.output_token_ids.append(sampler.sample(row, seeded).token_id)
        return seeded.output_token_ids

    assert run(0) == run(3) == run(1)
    assert len(set(run(0))) > 10


def test_position_counts_prompt_and_output_and_makes_the_draw() -> None:
    logits = np.zeros(1000, dtype=np.float32)  # equal logits: the token is the integer part of 1000 u
    for prompt, output in (([], []), ([1, 2, 3], []), ([1, 2], [3, 4, 5])):
        request = SamplingState(SamplingParams(), 42, 7, prompt, output)
        assert request.position == len(prompt) + len(output)
        expected = int(uniform(42, 7, len(prompt) + len(output)) * 1000)
        assert Sampler(1000).sample(logits, request).token_id == expected


def test_p32_preempted_request_goes_on_with_the_same_tokens() -> None:
    rows = np.random.default_rng(4).standard_normal((20, 300)).astype(np.float32)
    params = SamplingParams(frequency_penalty=1.5, presence_penalty=0.5, repetition_penalty=1.3)
    whole = SamplingState(params, 9, 2, [5, 6])
    sampler = Sampler(300)
    for row in rows:
        whole.output_token_ids.append(sampler.sample(row, whole).token_id)
    # Taken up in the middle with nothing but the ids.
    resumed = SamplingState(params, 9, 2, [5, 6], whole.output_token_ids[:11])
    for row in rows[11:]:
        resumed.output_token_ids.append(sampler.sample(row, resumed).token_id)
    assert resumed.output_token_ids == whole.output_token_ids


def test_p34_repetition_penalty_lowers_negative_logits_too() -> None:
    assert processed(f32(2, -2, 5), state([0, 1], repetition_penalty=2.0)) == [1.0, -4.0, 5.0]
    assert processed(f32(2, -2, 5), state([0, 1], repetition_penalty=0.5)) == [4.0, -1.0, 5.0]


def test_p35_repetition_covers_prompt_and_output_the_others_output_alone() -> None:
    logits = f32(1, 1, 1, 1)
    prompt, output = [0, 1, 0], [1, 2, 2]
    assert processed(logits, state(prompt, output, repetition_penalty=2.0)) == [0.5, 0.5, 0.5, 1.0]
    assert processed(logits, state(prompt, output, presence_penalty=0.5)) == [1.0, 0.5, 0.5, 1.0]
    assert processed(logits, state(prompt, output, frequency_penalty=0.25)) == [1.0, 0.75, 0.5, 1.0]
    together = state(prompt, output, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    assert processed(logits, together) == [0.5, -0.25, -0.5, 1.0]
    assert logits.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {}, {"top_k": 2, "top_p": 0.5}, {"allowed_token_ids": (0,)}])
def test_p37_non_finite_logits_fail_this_request_only(bad: float, fields: dict[str, Any]) -> None:
    sampler = Sampler(4)
    healthy = SamplingState(SamplingParams(), 3)
    before = sampler.sample(f32(1, 2, 3, 4), healthy)
    with pytest.raises(NonFiniteError, match="not finite"):
        sampler.sample(f32(1, 2, bad, 0), state(**fields))
    assert sampler.sample(f32(1, 2, 3, 4), healthy) == before


def test_all_minus_infinity_from_the_model_is_non_finite() -> None:
    with pytest.raises(NonFiniteError):
        Sampler(2).sample(f32(-np.inf, -np.inf), state())


def test_penalty_beyond_float32_is_an_error_not_a_nan() -> None:
    for penalty in (1e300, 1e-300):
        with pytest.raises(PellucidError):
            Sampler(3).sample(f32(1, 0, -1), state([0, 1, 2], repetition_penalty=penalty))


def test_masks_bias_and_min_tokens() -> None:
    inf = float("inf")
    logits = f32(1, 2, 3, 4)
    assert processed(logits, state(logit_bias={1: 5.0, 3: -100.0})) == [1, 7, 3, -96]
    assert processed(logits, state(allowed_token_ids=(1, 2))) == [-inf, 2, 3, -inf]
    assert processed(logits, state(banned_token_ids=(3,), logit_bias={3: 100.0})) == [1, 2, 3, -inf]
    request = SamplingState(SamplingParams(min_tokens=2, temperature=0.0), 1, 0, [0], [], frozenset({3, 77}))
    sampler = Sampler(4)
    chosen = []
    for _ in range(3):
        chosen.append(sampler.sample(logits, request).token_id)
        request.output_token_ids.append(chosen[-1])
    assert chosen == [2, 2, 3]  # 77, beyond the vocabulary, does no harm


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"banned_token_ids": (0, 1, 2)}, "banned_token_ids"),
        ({"allowed_token_ids": (2,), "min_tokens": 1}, "allowed_token_ids"),
        ({"banned_token_ids": (0, 1), "min_tokens": 1, "temperature": 0.0}, "banned_token_ids"),
    ],
)
def test_nothing_left_to_draw_is_an_error_that_names_the_field(fields: dict[str, Any], named: str) -> None:
    request = state(**fields)
    request.end_token_ids = frozenset({2})
    with pytest.raises(InvalidParameterError, match="no token can be drawn") as caught:
        Sampler(3).sample(f32(1, 2, 3), request)
    assert caught.value.field == named


def test_logits_processors_get_the_output_and_a_copy_and_run_before_the_penalties() -> None:
    logits = f32(1, 2, 3)
    seen: list[list[int]] = []

    def double(output_token_ids: list[int], given: np.ndarray) -> np.ndarray:
        seen.append(output_token_ids)
        output_token_ids.append(99)
        given *= 2
        return given

    def forbid_two(output_token_ids: list[int], given: np.ndarray) -> np.ndarray:
        return np.where(np.arange(3) == 2, -np.inf, given.astype(np.float64))

    request = state([], [1], presence_penalty=1.0)
    request.logits_processors = (double, forbid_two)
    assert processed(logits, request) == [2.0, 3.0, -np.inf]
    assert logits.tolist() == [1, 2, 3]
    assert request.output_token_ids == [1]
    assert seen == [[1, 99]]


def test_logits_processor_that_keeps_its_array_is_not_written_into() -> None:
    kept = f32(1, 2, 3)
    request = state([0], [], repetition_penalty=2.0)
    request.logits_processors = (lambda ids, logits: kept,)
    assert processed(f32(0, 0, 0), request) == [0.5, 2.0, 3.0]
    assert kept.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("processor", "error", "message"),
    [
        (lambda ids, x: x[:2], InvalidParameterError, r"shape \(2,\), but must give \(3,\)"),
        (lambda ids, x: None, InvalidParameterError, "logits processor"),
        (lambda ids, x: 1 // 0, InvalidParameterError, "failed with ZeroDivisionError"),
        (lambda ids, x: x + 1j, InvalidParameterError, "failed with TypeError"),
        (lambda ids, x: ["1", "2", "3"], InvalidParameterError, "failed with TypeError"),
        (lambda ids, x: x.resize(2, refcheck=False) or x, InvalidParameterError, r"shape \(2,\), but must give \(3,\)"),
        (lambda ids, x: x.astype(np.float64) * 1e300, NonFiniteError, "gave a logit of inf"),
        (lambda ids, x: int("a\n\x1b" * 1000), InvalidParameterError, "failed with ValueError: .{10,350}$"),
        (lambda ids, x: x * np.float32("nan"), NonFiniteError, "gave a logit of nan"),
        (lambda ids, x: x - np.float32("inf"), InvalidParameterError, "no token can be drawn: logits_processors"),
    ],
)
def test_bad_logits_processors_fail_their_request(processor: Any, error: type[Exception], message: str) -> None:
    request = state()
    request.logits_processors = (processor,)
    with pytest.raises(error, match=message):
        Sampler(3).sample(f32(1, 2, 3), request)


def test_a_logits_processor_may_give_its_argument_read_only_or_other_numbers() -> None:
    def read_only(ids: list[int], logits: np.ndarray) -> np.ndarray:
        logits.setflags(write=False)
        return logits

    for processor in (read_only, lambda ids, x: x.tolist(), lambda ids, x: x.astype(np.int64)):
        request = state([0], [], repetition_penalty=2.0)
        request.logits_processors = (processor,)
        assert processed(f32(1, 2, 3), request) == [0.5, 2.0, 3.0]


def test_counts_are_kept_up_and_equal_a_recount() -> None:
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 400, 50).tolist()
    request = state(prompt)
    for token_id in rng.integers(0, 400, 600).tolist():
        request.output_token_ids.append(token_id)
        if token_id % 3 == 0:
            request.token_counts()
    counts = request.token_counts()
    output = request.output_token_ids
    assert counts is request.token_counts()
    got = dict(zip(counts.ids.tolist(), counts.output_counts.tolist(), strict=True))
    assert got == {i: output.count(i) for i in set(prompt) | set(output)}
    del output[100:]  # rolled back: counted anew
    recount = request.token_counts()
    assert recount.num_counted == 100
    assert recount.output_counts.sum() == 100
    output[50] = 399
    request.forget_counts()
    assert request.token_counts().output_counts[request.token_counts().ids == 399] == output.count(399)


def test_check_params_against_vocab_names_the_field() -> None:
    check_params_against_vocab(SamplingParams(logit_bias={9: 1}, stop_token_ids=(9,), banned_token_ids=[0]), 10)
    for fields in (
        {"logit_bias": {10: 1.0}},
        {"banned_token_ids": (3, 10)},
        {"allowed_token_ids": (10,)},
        {"stop_token_ids": (11,)},
    ):
        name = next(iter(fields))
        with pytest.raises(InvalidParameterError, match=f"{name} has the token id 1[01], .* size, 10") as caught:
            check_params_against_vocab(SamplingParams(**fields), 10)  # type: ignore[arg-type]
        assert caught.value.field == name
    check_params_against_vocab(SamplingParams(banned_token_ids=range(9)), 10)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="banned_token_ids has all 10 ids of the vocabulary"):
        check_params_against_vocab(SamplingParams(banned_token_ids=[*range(10), 0]), 10)  # type: ignore[arg-type]


def test_sampler_refuses_logits_of_another_shape_or_type() -> None:
    for logits in (np.zeros(3, dtype=np.float64), np.zeros(4, dtype=np.float32), np.zeros((1, 3), dtype=np.float32)):
        with pytest.raises(ValueError, match="logits are"):
            Sampler(3).sample(logits, state())  # type: ignore[arg-type]


def test_read_only_logits_are_enough() -> None:
    logits = np.random.default_rng(0).standard_normal(2000).astype(np.float32)
    logits.flags.writeable = False
    before = logits.copy()
    for fields in ({}, {"repetition_penalty": 1.2}, {"top_k": 3, "top_p": 0.5, "min_p": 0.1, "temperature": 0.5}):
        Sampler(2000).sample(logits, state([1], [2], **fields))
    assert (logits == before).all()


def test_stages_are_in_the_documented_order() -> None:
    assert [stage.name for stage in STAGES] == [
        "logit_bias",
        "allowed_token_ids",
        "banned_token_ids",
        "min_tokens",
        "logits_processors",
        "structured_outputs",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "temperature",
        "min_p",
        "top_k",
        "top_p",
    ]


class Names:
    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def on_stage(self, name: str, parameter: Any, candidates: Candidates) -> None:
        self.seen.append((name, parameter))


def test_neutral_stages_do_not_run_and_greedy_skips_those_that_keep_the_first() -> None:
    for request, expected in (
        (state(), [("raw", None)]),
        (state(temperature=0.5, top_k=-1, top_p=0.9), [("raw", None), ("temperature", 0.5), ("top_p", 0.9)]),
        (state(temperature=0.0, top_k=5, presence_penalty=1.0), [("raw", None), ("presence_penalty", 1.0)]),
    ):
        names = Names()
        run_stages(f32(1, 2, 3), request, names)
        assert names.seen == expected


def test_recorder_shows_each_stage_and_changes_nothing() -> None:
    logits = np.random.default_rng(8).standard_normal(3000).astype(np.float32) * 2
    banned = (int(logits.argmax()),)
    request = state(temperature=0.8, min_p=0.001, top_k=30, top_p=0.9, banned_token_ids=banned)
    sampler = Sampler(3000)
    token = sampler.sample(logits, request)
    recorder = StageRecorder(token.token_id)
    assert sampler.sample(logits, request, recorder) == token
    records = recorder.records
    assert [r.name for r in records] == ["raw", "banned_token_ids", "temperature", "min_p", "top_k", "top_p"]
    assert [r.parameter for r in records[2:]] == [0.8, 0.001, 30, 0.9]
    assert records[0].alive == 3000
    assert records[1].alive == 2999
    assert records[4].alive == 30
    x = logits.astype(np.float64)
    p = np.exp(x) / np.exp(x).sum()
    assert records[0].entropy == pytest.approx(-(p * np.log(p)).sum(), rel=1e-6)
    assert records[1].mass_removed == pytest.approx(p.max(), rel=1e-6)
    assert records[2].mass_removed == 0.0
    assert records[5].mass_removed <= 0.1
    assert all(r.chosen is not None and r.chosen.rank >= 1 for r in records)
    final = records[-1]
    assert sum(t.probability for t in final.top) <= 1 + 1e-9
    assert final.top[0].rank == 1
    assert final.top[0].logit == pytest.approx(np.sort(x)[-2] / 0.8)
    lost = StageRecorder(int(logits.argmax()))
    run_stages(logits, request, lost)
    assert lost.records[0].chosen is not None
    assert lost.records[0].chosen.rank == 1
    assert [r.chosen for r in lost.records[1:]] == [None] * 5
    json.dumps([r.entropy for r in records], allow_nan=False)
