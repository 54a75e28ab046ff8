"""Logprobs of the raw logits: values, ranks, order, and what JSON gets."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from pellucid.cli.console import finite
from pellucid.errors import NonFiniteError
from pellucid.outputs import Logprob
from pellucid.sampling.logprobs import raw_logprobs
from pellucid.sampling.sampler import Sampler, SamplingState
from pellucid.sampling_params import SamplingParams


def exact(logits: np.ndarray) -> list[float]:
    largest = float(logits.max())
    total = math.fsum(math.exp(float(v) - largest) for v in logits)
    return [float(v) - largest - math.log(total) for v in logits]


@pytest.mark.parametrize("size", [1, 7, 3000])
@pytest.mark.parametrize("scale", [0.1, 3.0, 50.0])
def test_logprobs_are_log_softmax(size: int, scale: float) -> None:
    logits = (np.random.default_rng(size).standard_normal(size) * scale).astype(np.float32)
    expected = exact(logits)
    entries = raw_logprobs(logits, min(size, 20), size // 2)
    for token_id, logprob, rank in entries:
        assert logprob == pytest.approx(expected[token_id], abs=2e-6)
        assert rank == 1 + sum((-v, i) < (-expected[token_id], token_id) for i, v in enumerate(expected))


def test_chosen_first_then_the_most_probable_without_it() -> None:
    logits = np.array([1, 3, 2, 3, 0], dtype=np.float32)
    assert [(i, r) for i, _, r in raw_logprobs(logits, 3, 4)] == [(4, 5), (1, 1), (3, 2), (2, 3)]
    assert [(i, r) for i, _, r in raw_logprobs(logits, 3, 3)] == [(3, 2), (1, 1), (2, 3)]
    assert [(i, r) for i, _, r in raw_logprobs(logits, 0, 2)] == [(2, 3)]
    assert [(i, r) for i, _, r in raw_logprobs(logits, 99, 1)] == [(1, 1), (3, 2), (2, 3), (0, 4), (4, 5)]


def test_l39_minus_infinity_becomes_a_finite_floor_in_json() -> None:
    logits = np.array([0, -np.inf, 1], dtype=np.float32)
    entries = raw_logprobs(logits, 3, 1)
    assert entries[0] == (1, -math.inf, 3)
    assert all(math.isfinite(logprob) for _, logprob, _ in entries[1:])
    answer = {token_id: Logprob(logprob, rank, "x") for token_id, logprob, rank in entries}
    written = json.loads(json.dumps(finite(answer), allow_nan=False))
    assert written["1"]["logprob"] == -9999.0
    assert written["2"]["logprob"] == entries[1][1]


def test_l40_logprobs_are_raw_and_the_same_at_any_temperature() -> None:
    logits = np.random.default_rng(1).standard_normal(400).astype(np.float32)
    expected = exact(logits)
    seen: dict[int, set[float]] = {}
    for temperature in (0.0, 0.3, 1.0, 2.0):
        for fields in ({}, {"top_k": 3}, {"banned_token_ids": (0, 1)}, {"repetition_penalty": 2.0}):
            params = SamplingParams(temperature=temperature, logprobs=2, **fields)  # type: ignore[arg-type]
            token = Sampler(400).sample(logits, SamplingState(params, 3, 0, [5, 6]))
            assert token.top_logprobs is not None
            assert token.top_logprobs[0][:2] == (token.token_id, token.logprob)
            for token_id, logprob, _ in token.top_logprobs:
                seen.setdefault(token_id, set()).add(logprob)
    assert all(len(values) == 1 for values in seen.values())
    assert all(next(iter(values)) == pytest.approx(expected[i], abs=2e-6) for i, values in seen.items())


def test_logprobs_are_computed_only_when_asked_for() -> None:
    logits = np.array([0, 1], dtype=np.float32)
    token = Sampler(2).sample(logits, SamplingState(SamplingParams(), 1))
    assert token.logprob is None
    assert token.top_logprobs is None
    token = Sampler(2).sample(logits, SamplingState(SamplingParams(logprobs=0), 1))
    assert token.top_logprobs is not None
    assert len(token.top_logprobs) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_logits_have_no_logprobs(bad: float) -> None:
    with pytest.raises(NonFiniteError):
        raw_logprobs(np.array([0, bad], dtype=np.float32), 1, 0)
    with pytest.raises(NonFiniteError):
        raw_logprobs(np.array([-np.inf, -np.inf], dtype=np.float32), 1, 0)
