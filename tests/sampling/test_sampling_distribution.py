"""Draws against exact probabilities, and the fast filters against the slow, obvious ones."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from naive_sampling import chi_square_z, naive_distribution, naive_logits, naive_pick

from pellucid.sampling.candidates import ONE, Candidates, exponential
from pellucid.sampling.sampler import Sampler, SamplingState
from pellucid.sampling.stages import run_stages
from pellucid.sampling_params import SamplingParams

NUM_DRAWS = 20_000
Z_LIMIT = 5.0
"""A right sampler exceeds this with a chance of 3e-7 per setting for a seed taken blindly; the seeds are fixed."""

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.6},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": -0.6},
    "bias": {"logit_bias": {3: 2.5, 4: -1.5, 59: 3.0}},
    "banned": {"banned_token_ids": (0, 1, 17), "min_tokens": 9},
    "allowed": {"allowed_token_ids": (5, 6, 7, 20, 30, 40)},
    "all filters": {"temperature": 0.8, "min_p": 0.02, "top_k": 20, "top_p": 0.9},
    "all": {
        "temperature": 1.2,
        "min_p": 0.03,
        "top_k": 12,
        "top_p": 0.85,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.2,
        "logit_bias": {11: 1.0},
        "banned_token_ids": (2,),
    },
}
PROMPT = [1, 2, 2, 9]
OUTPUT = [9, 9, 30, 4]
END_IDS = frozenset({8, 12})


def test_chi_square_score_knows_its_quantiles() -> None:
    # Chi-square with 9 and 99 degrees of freedom has the 0.999 quantiles 27.88 and 148.23, the normal 3.09.
    for freedom, quantile in ((9, 27.88), (99, 148.23)):
        cells = freedom + 1
        probabilities = [1 / cells] * cells
        shift = (quantile * 100 / 2) ** 0.5
        observed = [100.0] * cells
        observed[0] += shift
        observed[1] -= shift
        assert chi_square_z(observed, probabilities) == pytest.approx(3.09, abs=0.03)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "seed"), list(zip(SETTINGS, [0, 2**63 - 1] * 6, strict=True)))
def test_draws_follow_the_exact_distribution(name: str, seed: int) -> None:
    params = SamplingParams(**SETTINGS[name])
    logits = (np.random.default_rng(3).standard_normal(60) * 1.5).astype(np.float32)
    logits[21] = logits[20]
    state = SamplingState(params, seed, 0, PROMPT, list(OUTPUT), END_IDS)
    sampler = Sampler(60)
    drawn: Counter[int] = Counter()
    # Half of the draws differ in the sample index, half in the position.
    for index in range(NUM_DRAWS // 2):
        state.sample_index = index
        drawn[sampler.sample(logits, state).token_id] += 1
    state.sample_index = 0
    base = len(PROMPT) + len(OUTPUT)
    with mock.patch.object(SamplingState, "position", new_callable=mock.PropertyMock) as position:
        for offset in range(1, NUM_DRAWS // 2 + 1):
            position.return_value = base + offset
            drawn[sampler.sample(logits, state).token_id] += 1
    adjusted = naive_logits(logits, params, PROMPT, OUTPUT, tuple(END_IDS))
    ids, probabilities, distance = naive_distribution(adjusted, params)
    assert distance > 1e-4
    assert set(drawn) <= set(ids)
    assert chi_square_z([drawn[i] for i in ids], probabilities) < Z_LIMIT


def test_draws_from_a_large_vocabulary_follow_the_exact_distribution() -> None:
    # 20,000 flat logits: most draws fall outside the head, into the histogram.
    logits = (np.random.default_rng(5).standard_normal(20_000) * 0.4).astype(np.float32)
    order = np.lexsort((np.arange(20_000), -logits.astype(np.float64)))
    weights = np.exp(logits.astype(np.float64))[order]
    exact = weights / weights.sum()
    state = SamplingState(SamplingParams(), 11)
    sampler = Sampler(20_000)
    place_of = np.empty(20_000, dtype=np.int64)
    place_of[order] = np.arange(20_000)
    places = []
    for index in range(4000):
        state.sample_index = index
        places.append(int(place_of[sampler.sample(logits, state).token_id]))
    # 50 cells of 400 neighbours in candidate order.
    observed = np.bincount(np.array(places) // 400, minlength=50).tolist()
    assert chi_square_z(observed, exact.reshape(50, 400).sum(axis=1).tolist()) < Z_LIMIT


logit_values = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 2.0, -1.0, 0.5, -3.0]),
    st.floats(-8, 8, width=32),
    st.sampled_from([-1e4, -200.0, -104.0, -90.0, 11.0, float("-inf"), -3e38]),
)


@st.composite
def sampling_cases(draw: st.DrawFn) -> tuple[np.ndarray, SamplingParams]:
    logits = np.array(draw(st.lists(logit_values, min_size=1, max_size=70)), dtype=np.float32)
    assume(np.isfinite(logits.max()))
    params = SamplingParams(
        temperature=draw(st.sampled_from([1.0, 0.1, 0.7, 1.5, 30.0])),
        top_k=draw(st.one_of(st.just(0), st.integers(1, 80))),
        top_p=draw(st.one_of(st.just(1.0), st.floats(0.001, 0.999))),
        min_p=draw(st.one_of(st.just(0.0), st.just(1.0), st.floats(1e-6, 1.0))),
    )
    return logits, params


@settings(max_examples=400, deadline=None)
@given(sampling_cases(), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=5))
@example((np.zeros(64, dtype=np.float32), SamplingParams(top_p=0.7)), [0.0, 0.999])
@example((np.full(40, -3e38, dtype=np.float32), SamplingParams(temperature=30.0)), [0.5])
def test_filters_equal_the_naive_ones(case: tuple[np.ndarray, SamplingParams], draws: list[float]) -> None:
    logits, params = case
    ids, probabilities, distance = naive_distribution([float(v) for v in logits], params)
    assume(distance > 2e-5)
    exact = dict(zip(ids, probabilities, strict=True))
    candidates = run_stages(logits, SamplingState(params, 1))
    got = distribution_of(candidates)
    # Weights are whole numbers: one is 2**-42 of the largest, and a token with less than half of it has none.
    assert {i for i in got if got[i] > 1e-12} == {i for i in exact if exact[i] > 1e-12}
    for token_id, p in exact.items():
        assert got.get(token_id, 0.0) == pytest.approx(p, rel=3e-5, abs=2.0**-43)
    for u in draws:
        chosen, boundary = naive_pick(ids, probabilities, u)
        if boundary > 1e-5:
            assert candidates.pick(u) == chosen


def distribution_of(candidates: Candidates) -> dict[int, float]:
    ids = range(len(candidates.logits)) if candidates.ids is None else candidates.ids.tolist()
    probabilities = candidates.weights().astype(np.float64) / candidates.total()
    alive = candidates.logits > -np.inf
    return {i: float(p) for i, p, kept in zip(ids, probabilities, alive, strict=True) if kept}


@pytest.mark.parametrize("seed", range(6))
def test_filters_on_a_large_vocabulary_equal_a_full_sort(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scale = (0.3, 1.0, 3.0)[seed % 3]
    logits = (rng.standard_normal(30_000) * scale).astype(np.float32)
    if seed >= 3:
        logits = np.round(logits * 4) / np.float32(4)  # many ties
    order = np.lexsort((np.arange(len(logits)), -logits.astype(np.float64)))
    weights = np.exp(logits.astype(np.float64)[order])
    for k in (1, 5, 300, 2000, 29_999):
        candidates = Candidates(logits)
        candidates.keep_top_k(k)
        assert candidates.ids is not None
        assert candidates.ids.tolist() == order[:k].tolist()
    for top_p in (0.01, 0.5, 0.93, 0.9999):
        cumulative = np.cumsum(weights) / weights.sum()
        expected = order[: int(np.searchsorted(cumulative, top_p)) + 1]
        candidates = Candidates(logits)
        candidates.keep_top_p(top_p)
        kept = set(distribution_of(candidates))
        # At most the one token whose cumulative probability is top_p to float32 precision may differ.
        near = set(order[np.abs(cumulative - top_p) < 1e-6].tolist()) | set(expected[-1:].tolist())
        assert kept ^ set(expected.tolist()) <= near
        if not near - set(expected[-1:].tolist()):
            assert kept == set(expected.tolist())


def test_top_p_edges() -> None:
    # Weights 1, 1/2, 1/4, 1/4: probabilities 0.5, 0.25, 0.125, 0.125 up to the rounding of log in float32.
    logits = np.log2(np.array([4, 8, 2, 2], dtype=np.float32)) * np.float32(np.log(2))

    def kept(top_p: float) -> set[int]:
        return set(distribution_of(run_stages(logits, SamplingState(SamplingParams(top_p=top_p), 0))))

    assert kept(1e-12) == {1}
    assert kept(0.4) == {1}
    assert kept(0.6) == {0, 1}
    assert kept(0.8) == {0, 1, 2}  # of the tie, the lower id
    assert kept(0.9) == {0, 1, 2, 3}


@pytest.mark.parametrize("vocab", [8, 4096])
def test_top_p_reached_exactly_needs_no_further_token(vocab: int) -> None:
    # Equal logits have weights of exactly 1, so the sums are exact.
    logits = np.full(vocab, 1.25, dtype=np.float32)
    for numerator in (1, 3, 4, 7):
        candidates = run_stages(logits, SamplingState(SamplingParams(top_p=numerator / 8), 0))
        assert sorted(distribution_of(candidates)) == list(range(numerator * vocab // 8))


@pytest.mark.parametrize("vocab", [8, 4096])
def test_a_draw_on_a_boundary_takes_the_next_token(vocab: int) -> None:
    candidates = Candidates(np.zeros(vocab, dtype=np.float32))
    for token_id in (0, 1, vocab // 2, vocab - 1):
        assert candidates.pick(token_id / vocab) == token_id
        assert candidates.pick(np.nextafter((token_id + 1) / vocab, 0)) == token_id
    assert candidates.pick(1 - 2**-53) == vocab - 1


def test_the_largest_draw_never_takes_an_impossible_token() -> None:
    for vocab in (50, 5000):
        logits = np.full(vocab, -np.inf, dtype=np.float32)
        logits[: vocab // 3] = np.random.default_rng(0).standard_normal(vocab // 3) * 3
        logits[vocab // 2] = -300.0  # possible, but its weight is zero in float32
        candidates = Candidates(logits)
        assert candidates.pick(1 - 2**-53) == int(np.argmin(logits[: vocab // 3]))


def test_exponentials_are_accurate_and_end_where_weights_do() -> None:
    x = np.concatenate([np.linspace(-30.8, 0, 200_001), [-0.0, -1e-30, -3e38, -np.inf]]).astype(np.float32)
    got = exponential(x).astype(np.float64)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(got[:-2] / exact[:-2] - 1).max() < 2e-7
    assert (np.rint(got[-2:] * ONE) == 0).all()
    assert got[x == 0.0].tolist() == [1.0] * 2


def test_top_k_above_the_vocabulary_and_min_p_one() -> None:
    logits = np.array([1, 3, 2, 3], dtype=np.float32)
    everything = run_stages(logits, SamplingState(SamplingParams(top_k=1000), 0))
    assert set(distribution_of(everything)) == {0, 1, 2, 3}
    largest = run_stages(logits, SamplingState(SamplingParams(min_p=1.0), 0))
    assert distribution_of(largest) == {1: 0.5, 3: 0.5}


# Made once with transformers 5.24.0's LogitsProcessor classes (torch 2.13.0, CPU) on these logits with ids [1, 3, 3],
# softmax in float64: RepetitionPenaltyLogitsProcessor(1.3), TemperatureLogitsWarper(0.7), TopKLogitsWarper(3),
# TopPLogitsWarper(0.8), MinPLogitsWarper(0.1). For the last row: penalty 1.3, temperature 0.9, min-p 0.05, top-k 5
# and top-p 0.85, in this order.
TRANSFORMERS_LOGITS = [2.0, -2.0, 0.5, 3.25, -1.0, 0.5, 1.75, -0.25]
TRANSFORMERS_PENALISED = [2.0, -2.5999999046325684, 0.5, 2.5, -1.0, 0.5, 1.75, -0.25]
TRANSFORMERS_ROWS: list[tuple[dict[str, Any], list[float]]] = [
    (
        {"temperature": 0.7},
        [0.125700867, 0.000414625, 0.01474712, 0.749659543, 0.00173012, 0.01474712, 0.087949438, 0.005051167],
    ),
    ({"top_k": 3}, [0.189784156, 0.0, 0.0, 0.662411794, 0.0, 0.0, 0.14780405, 0.0]),
    ({"top_p": 0.8}, [0.189784156, 0.0, 0.0, 0.662411794, 0.0, 0.0, 0.14780405, 0.0]),
    ({"min_p": 0.1}, [0.189784156, 0.0, 0.0, 0.662411794, 0.0, 0.0, 0.14780405, 0.0]),
    (
        {"repetition_penalty": 1.3, "temperature": 0.9, "min_p": 0.05, "top_k": 5, "top_p": 0.85},
        [0.285683745, 0.0, 0.0, 0.497920783, 0.0, 0.0, 0.216395472, 0.0],
    ),
]


@pytest.mark.parametrize(("fields", "expected"), TRANSFORMERS_ROWS)
def test_probabilities_equal_those_of_transformers(fields: dict[str, Any], expected: list[float]) -> None:
    logits = np.array(TRANSFORMERS_LOGITS, dtype=np.float32)
    got = distribution_of(run_stages(logits, SamplingState(SamplingParams(**fields), 0, 0, [1, 3, 3])))
    assert [got.get(i, 0.0) for i in range(8)] == pytest.approx(expected, abs=3e-7)


def test_repetition_penalty_equals_that_of_transformers() -> None:
    logits = np.array(TRANSFORMERS_LOGITS, dtype=np.float32)
    state = SamplingState(SamplingParams(repetition_penalty=1.3), 0, 0, [1, 3, 3])
    assert run_stages(logits, state).logits.tolist() == TRANSFORMERS_PENALISED
