"""The quick waterfall is the definition's, and the definition is what independent arithmetic gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pellucid.kernels.dispatch import make_sampling_kernels
from pellucid.sampling.recorder import StageRecord, StageRecorder
from pellucid.sampling.sampler import Sampler
from pellucid.sampling.stages import run_stages, stages_that_move_logits
from pellucid.sampling.state import SamplingState
from pellucid.sampling.waterfall import Waterfalls
from pellucid.sampling_params import SamplingParams

KERNELS = make_sampling_kernels()


def random_case(seed: int) -> tuple[npt.NDArray[np.float32], SamplingState, int]:
    random = np.random.default_rng(seed)
    size = int(random.choice([300, 600, 5000, 49152]))
    logits = (random.standard_normal(size) * random.choice([0.5, 3.0, 6.0])).astype(np.float32)
    if random.random() < 0.3:
        logits[random.integers(0, size, size // 2)] = -np.inf
    if random.random() < 0.3:
        logits = np.round(logits)
    fields: dict[str, Any] = {"temperature": float(random.choice([0, 0.3, 0.7, 1, 1.5, 20]))}
    for name, chance, value in (
        ("top_p", 0.5, float(random.uniform(0.05, 0.99))),
        ("top_k", 0.4, int(random.integers(1, 700))),
        ("min_p", 0.4, float(random.uniform(0.001, 0.5))),
        ("repetition_penalty", 0.3, 1.3),
        ("presence_penalty", 0.2, 0.5),
        ("banned_token_ids", 0.3, tuple(logits.argsort()[-3:].tolist())),
        ("logit_bias", 0.2, {7: 4.0, 9: -3.0}),
        ("allowed_token_ids", 0.1, tuple(range(0, size, 3))),
    ):
        if random.random() < chance:
            fields[name] = value
    state = SamplingState(SamplingParams(**fields), seed, 0, [1, 2, 3], [4, 4, 5])
    token = Sampler(size, KERNELS).sample(logits, state).token_id
    return logits, state, token


def check_same(ours: list[StageRecord], theirs: list[StageRecord]) -> None:
    assert [a.name for a in ours] == [b.name for b in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert (a.alive, a.parameter) == (b.alive, b.parameter)
        assert a.entropy == pytest.approx(b.entropy, abs=5e-5)
        assert a.mass_removed == pytest.approx(b.mass_removed, abs=2e-6)
        assert (a.chosen is None) == (b.chosen is None)
        pairs = [*zip(a.top, b.top, strict=True)]
        if a.chosen is not None and b.chosen is not None:
            pairs.append((a.chosen, b.chosen))
        for one, other in pairs:
            assert (one.token_id, one.rank) == (other.token_id, other.rank)
            assert one.probability == pytest.approx(other.probability, abs=1e-6)
            assert one.logit == pytest.approx(other.logit, rel=1e-6, abs=1e-6)


def test_the_quick_way_gives_what_the_definition_gives() -> None:
    quick = 0
    for seed in range(120):
        logits, state, token = random_case(seed)
        waterfalls = Waterfalls(KERNELS)
        recorder = StageRecorder(token)
        run_stages(logits, state, recorder)
        before = logits.copy()
        check_same(waterfalls.of(logits, state, token).records, recorder.records)
        row = logits.copy()
        late = waterfalls.later(row, state, token)
        waterfalls.settle()
        row[:] = np.nan  # the next step's logits overwrite it
        check_same(late.records, recorder.records)
        assert np.array_equal(logits, before)
        assert KERNELS is not None
        quick += waterfalls.quick(logits, state, token, KERNELS) is not None
    assert quick > 80


def test_rows_surveyed_beside_other_work_are_the_definitions() -> None:
    """Some begun together when they were drawn, some one by one; their logits are gone when somebody looks."""
    waterfalls = Waterfalls(KERNELS)
    for first in range(0, 120, 8):
        cases = [random_case(seed) for seed in range(first, first + 8)]
        rows = [(logits.copy(), state, token) for logits, state, token in cases]
        free = [row for row in rows[:5] if not stages_that_move_logits(row[1])]
        waterfalls.ahead(free)
        late = [waterfalls.later(*row) for row in rows]
        waterfalls.settle()
        for row, _, _ in rows:
            row[:] = np.nan
        for (logits, state, token), waterfall in zip(cases, late, strict=True):
            recorder = StageRecorder(token)
            run_stages(logits, state, recorder)
            check_same(waterfall.records, recorder.records)


def test_what_a_failed_step_began_is_not_taken_for_the_next_ones() -> None:
    waterfalls = Waterfalls(KERNELS)
    logits, other = np.zeros((2, 5000), dtype=np.float32)
    logits[7], other[9] = 3.0, 3.0
    state = SamplingState(SamplingParams(temperature=0.5), 1, 0, [1], [])
    waterfalls.ahead([(logits, state, 7)])
    waterfalls.forget()
    late = waterfalls.later(other, state, 9)
    waterfalls.settle()
    assert (late.token_id, late.records[0].top[0].token_id) == (9, 9)


def softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def independent(logits: npt.NDArray[np.float32], state: SamplingState) -> list[tuple[str, npt.NDArray[np.float64]]]:
    """Probabilities [vocab] after each stage, in float64, written from the documents alone."""
    params = state.params
    x = logits.astype(np.float64)
    order_of = lambda p: np.lexsort((np.arange(len(p)), -logits_now))  # noqa: E731
    stages = [("raw", softmax(x))]
    for token_id, bias in params.logit_bias.items():
        x[token_id] += bias
    if params.logit_bias:
        stages.append(("logit_bias", softmax(x)))
    if params.allowed_token_ids is not None:
        kept = np.isin(np.arange(len(x)), params.allowed_token_ids)
        x[~kept] = -np.inf
        stages.append(("allowed_token_ids", softmax(x)))
    if params.banned_token_ids:
        x[list(params.banned_token_ids)] = -np.inf
        stages.append(("banned_token_ids", softmax(x)))
    if params.repetition_penalty != 1.0:
        for token_id in {*state.prompt_token_ids, *state.output_token_ids}:
            x[token_id] = (
                x[token_id] / params.repetition_penalty if x[token_id] > 0 else x[token_id] * params.repetition_penalty
            )
        stages.append(("repetition_penalty", softmax(x)))
    if params.presence_penalty:
        for token_id in set(state.output_token_ids):
            x[token_id] -= params.presence_penalty
        stages.append(("presence_penalty", softmax(x)))
    if params.greedy:
        return stages
    if params.temperature != 1.0:
        x = x / params.temperature
        stages.append(("temperature", softmax(x)))
    logits_now = x
    p = softmax(x)
    if params.min_p:
        p = np.where(p >= params.min_p * p.max(), p, 0.0)
        p /= p.sum()
        stages.append(("min_p", p))
    if params.top_k > 0:
        kept_ids = order_of(p)[: params.top_k]
        q = np.zeros_like(p)
        q[kept_ids] = p[kept_ids]
        p = q / q.sum()
        stages.append(("top_k", p))
    if params.top_p < 1.0:
        order = order_of(p)
        count = int(np.searchsorted(np.cumsum(p[order]), params.top_p)) + 1
        q = np.zeros_like(p)
        q[order[:count]] = p[order[:count]]
        p = q / q.sum()
        stages.append(("top_p", p))
    return stages


def test_probabilities_are_those_of_independent_arithmetic() -> None:
    """To 1e-6, with entropy, mass removed and logprobs; near-ties at a filter's edge may fall either way."""
    for seed in range(60):
        logits, state, token = random_case(1000 + seed)
        told = Waterfalls(KERNELS).of(logits, state, token)
        stages = independent(logits, state)
        assert [record.name for record in told.records] == [name for name, _ in stages]
        before = stages[0][1]
        for record, (_, p) in zip(told.records, stages, strict=True):
            assert abs(record.alive - np.count_nonzero(p > 0)) <= 1
            for one in [*record.top, *([record.chosen] if record.chosen else [])]:
                assert one.probability == pytest.approx(p[one.token_id], abs=1e-6)
            with np.errstate(divide="ignore", invalid="ignore"):
                entropy = -np.nansum(p * np.log(p))
            assert record.entropy == pytest.approx(entropy, abs=1e-4)
            assert record.mass_removed == pytest.approx(before[(p == 0) & (before > 0)].sum(), abs=1e-5)
            before = p
        assert told.logprob_raw == pytest.approx(math.log(stages[0][1][token]), abs=1e-5)
        assert told.logprob_final == pytest.approx(math.log(stages[-1][1][token]), abs=1e-5)


def test_a_token_that_a_stage_makes_impossible_has_no_standing_after_it() -> None:
    logits = np.linspace(0, 5, 400, dtype=np.float32)
    state = SamplingState(SamplingParams(top_k=3), 1)
    records = Waterfalls(KERNELS).of(logits, state, 5).records
    assert [record.chosen is None for record in records] == [False, True]
    assert records[0].chosen is not None
    assert records[0].chosen.rank == 395


def test_greedy_choices_draw_nothing() -> None:
    logits = np.linspace(0, 5, 400, dtype=np.float32)
    told = Waterfalls(KERNELS).of(logits, SamplingState(SamplingParams(temperature=0), 7), 399)
    assert told.u is None
    assert [record.name for record in told.records] == ["raw"]
    assert told.top2_gap == pytest.approx(5 / 399, rel=1e-4)


def test_surveys_are_the_same_bits_on_every_instruction_set() -> None:
    from pellucid.kernels.native import NativeSampling, available_isas

    random = np.random.default_rng(5)
    for size in (1, 17, 1000, 1025, 70_001):
        logits = (random.standard_normal(size) * 8).astype(np.float32)
        logits[random.integers(0, size, size // 3)] = -np.inf
        logits[0] = 9.0
        for temperature in (1.0, 0.6):
            found = {NativeSampling(isa).survey(logits, size // 2, temperature, 64) for isa in available_isas()}
            assert len(found) == 1
