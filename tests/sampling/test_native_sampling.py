"""The compiled sampling against its definition: the same token and the same logprobs, bit for bit, on every ISA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pellucid.errors import BackendError, NonFiniteError, PellucidError, UnsupportedModelError
from pellucid.kernels.backend import RowDraw
from pellucid.kernels.dispatch import make_sampling_kernels
from pellucid.kernels.native import NativeSampling, _native, available_isas
from pellucid.sampling.candidates import MAX_VOCAB_SIZE, weights_of
from pellucid.sampling.logprobs import raw_logprobs
from pellucid.sampling.sampler import Sampler, SamplingState
from pellucid.sampling_params import SamplingParams

KERNELS = {isa: NativeSampling(isa) for isa in available_isas()}
SIZES = (1, 2, 15, 64, 65, 1024, 1025, 5003, 33_000, 140_001)
"""Sorted as a whole, too small for a head, with a head, one block of logits and one more."""
LARGEST_DRAW = 1 - 2.0**-53


def made_logits(seed: int, size: int, scale: float, step: float, masked: float, shift: float) -> np.ndarray:
    """Normal logits [size], rounded to `step` where it is above 0, a share of them impossible."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal(size) * scale + shift
    if step > 0:
        logits = np.round(logits / step) * step
    logits[rng.random(size) < masked] = -np.inf
    return logits.astype(np.float32)


shapes = st.tuples(
    st.integers(0, 2**32),
    st.sampled_from(SIZES),
    st.sampled_from([0.01, 0.3, 1.0, 3.0, 12.0]),
    st.sampled_from([0.0, 0.0, 0.0, 0.02, 0.5, 1e6]),
    st.sampled_from([0.0, 0.0, 0.3, 0.99]),
    st.sampled_from([0.0, 0.0, 1e4, -300.0]),
)
parameters = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([1.0, 1.0, 0.1, 0.7, 1.5, 30.0, 1e300]),
        "min_p": st.one_of(st.just(0.0), st.sampled_from([1.0, 1e-9]), st.floats(1e-6, 1.0)),
        "top_k": st.one_of(st.just(0), st.integers(1, 70), st.integers(1, 150_000)),
        "top_p": st.one_of(st.just(1.0), st.sampled_from([1e-300, 1e-12, 1 - 2.0**-53]), st.floats(0.001, 0.999)),
    }
)
draws = st.one_of(st.sampled_from([0.0, LARGEST_DRAW]), st.floats(0, 1, exclude_max=True))


@settings(max_examples=150, deadline=None)
@given(shapes, parameters, st.lists(draws, min_size=1, max_size=3))
@example((0, 140_001, 0.3, 1e6, 0.0, 0.0), {"top_p": 0.7, "top_k": 90_000}, [0.0, 0.6, LARGEST_DRAW])  # all equal
@example((0, 140_001, 0.3, 0.5, 0.99, 0.0), {"min_p": 1e-9, "top_k": 140_000}, [0.4])
def test_the_same_token_as_the_definition(shape: Any, fields: dict[str, Any], us: list[float]) -> None:
    logits = made_logits(*shape)
    assume(np.isfinite(logits.max()))
    params = SamplingParams(**fields)
    with pytest.MonkeyPatch.context() as patch:
        for u in us:
            patch.setattr("pellucid.sampling.sampler.uniform", lambda *_, u=u: u)
            expected = Sampler(len(logits)).sample(logits, SamplingState(params, 1)).token_id
            assert logits[expected] > -np.inf
            for isa, kernels in KERNELS.items():
                got = Sampler(len(logits), kernels).sample(logits, SamplingState(params, 1)).token_id
                assert got == expected, isa


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(0, 2**32), st.sampled_from([0, 1, 5, 20, 500]))
def test_the_same_logprobs_as_the_definition(shape: Any, token: int, num: int) -> None:
    logits = made_logits(*shape)
    assume(np.isfinite(logits.max()))
    token %= len(logits)
    expected = raw_logprobs(logits, num, token)
    for isa, kernels in KERNELS.items():
        assert raw_logprobs(logits, num, token, kernels) == expected, isa
        largest, total, _, _ = kernels.rank(logits, token, num)
        assert largest == logits.max()
        assert total == int(weights_of(logits, logits.max(), 1.0).sum())


@pytest.mark.parametrize("size", [3, 5000, 20_000])
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 0.9, "logprobs": 2, "frequency_penalty": 0.7, "presence_penalty": -0.3, "logit_bias": {1: 9.0}},
        {"top_k": 2, "banned_token_ids": (0,), "logprobs": 0},
        {"min_p": 0.1, "allowed_token_ids": (0, 2), "top_p": 0.6},
    ],
)
def test_the_stages_that_change_logits_come_first_and_logprobs_stay_raw(size: int, fields: dict[str, Any]) -> None:
    logits = np.random.default_rng(size).standard_normal(size).astype(np.float32) * 2
    samplers = [Sampler(size), *(Sampler(size, kernels) for kernels in KERNELS.values())]
    for index in range(40):
        answers = [
            sampler.sample(logits, SamplingState(SamplingParams(**fields), 3, index, [0, 1], [1, 2, 2]))
            for sampler in samplers
        ]
        assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize("size", [4, 70, 3000])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fields", [{}, {"logprobs": 1}, {"temperature": 0.0}, {"repetition_penalty": 1.1}])
def test_what_is_not_finite_is_refused_wherever_it_stands(size: int, bad: float, fields: dict[str, Any]) -> None:
    for place in {0, size // 2, size - 1}:
        logits = np.linspace(0, 1, size, dtype=np.float32)
        if bad == -np.inf:
            logits[:] = bad
        logits[place] = bad
        for kernels in (None, *KERNELS.values()):
            with pytest.raises(NonFiniteError, match="the model's logits are not finite"):
                Sampler(size, kernels).sample(logits, SamplingState(SamplingParams(**fields), 1))
    for kernels in KERNELS.values():
        if bad != -np.inf:
            with pytest.raises(NonFiniteError):
                raw_logprobs(logits, 1, 0, kernels)


def test_penalties_that_leave_float32_are_the_same_error() -> None:
    state = SamplingState(SamplingParams(repetition_penalty=1e-6), 1, 0, [0, 1, 2])
    messages = []
    for kernels in (None, *KERNELS.values()):
        with pytest.raises(PellucidError) as caught:
            Sampler(3, kernels).sample(np.array([1e35, 0, -1], dtype=np.float32), state)
        messages.append(str(caught.value))
    assert len(set(messages)) == 1


def test_every_value_is_checked_before_the_kernels_read_it() -> None:
    rows = _native.RowSampler("")
    good = np.zeros(5, dtype=np.float32)
    assert rows.draw(good, 1.0, -np.inf, 0, 1.0, 0.0)[0] == 0
    for bad in (
        (np.zeros(0, dtype=np.float32), 1.0, 0.0, 0, 1.0, 0.0),
        (good, 0.0, 0.0, 0, 1.0, 0.0),
        (good, float("nan"), 0.0, 0, 1.0, 0.0),
        (good, 1.0, 0.1, 0, 1.0, 0.0),
        (good, 1.0, 0.0, -1, 1.0, 0.0),
        (good, 1.0, 0.0, 0, 0.0, 0.0),
        (good, 1.0, 0.0, 0, 1.1, 0.0),
        (good, 1.0, 0.0, 0, 1.0, 1.0),
        (good, 1.0, 0.0, 0, 1.0, -0.1),
    ):
        with pytest.raises(ValueError, match=r"must be|out of its range"):
            rows.draw(*bad)
    for token in (-1, 5):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            rows.rank(good, token, 1)
    assert _native.max_vocabulary == MAX_VOCAB_SIZE
    with pytest.raises(UnsupportedModelError, match="at most 2097152"):
        Sampler(MAX_VOCAB_SIZE + 1)


def test_the_backend_and_the_instruction_set_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_sampling_kernels("reference") is None
    monkeypatch.setenv("PELLUCID_ISA", "generic")
    assert make_sampling_kernels() is not None
    monkeypatch.setenv("PELLUCID_ISA", "z80")
    with pytest.raises(BackendError, match="z80"):
        make_sampling_kernels()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(shapes, parameters, draws, st.booleans()), min_size=1, max_size=9), st.sampled_from([1, 2, 3])
)
def test_rows_side_by_side_give_what_each_gives_alone(rows: list[Any], threads: int) -> None:
    kernels = NativeSampling(available_isas()[0], threads)
    made, expected, surveyed = [], [], []
    for shape, fields, u, is_greedy in rows:
        logits = made_logits(*shape)
        filters = {"temperature": 0.5, "min_p": 0.0, "top_k": 0, "top_p": 1.0} | fields | {"u": u}
        filters["temperature"] = min(filters["temperature"], float(np.finfo(np.float32).max))
        expected.append(kernels.draw(logits, **filters))
        largest = expected[-1][1]
        if is_greedy:
            filters["temperature"] = 0.0
            expected[-1] = (int(logits.argmax()) if np.isfinite(largest) else -1, largest)
        made.append(RowDraw(logits, **filters))
        if np.isfinite(largest):
            surveyed.append((logits, len(logits) // 2, 0.7 if len(surveyed) % 2 else 1.0))
    assert kernels.draw_rows(made) == expected
    first, dropped = kernels.start_surveys(surveyed, 50), kernels.start_surveys(surveyed[:1], 50)
    del dropped
    second = kernels.start_surveys(surveyed[::-1], 50)
    assert kernels.draw_rows(made) == expected
    alone = [kernels.survey(*row, 50) for row in surveyed]
    assert (first(), second()) == (alone, alone[::-1])


def test_the_first_of_equals_and_a_row_that_is_not_finite() -> None:
    kernels, logits = KERNELS[available_isas()[0]], np.zeros((3, 300), dtype=np.float32)
    logits[0, [70, 200]] = 2.0
    logits[1, 5] = np.nan
    logits[2] = -np.inf
    found = kernels.draw_rows([RowDraw(row, 0.0, 0.0, 0, 1.0, 0.0) for row in logits])
    assert [token for token, _ in found] == [70, -1, -1]
    assert np.isnan(found[1][1])
    with pytest.raises(ValueError, match="out of its range"):
        kernels.draw_rows([RowDraw(logits[0], 1.0, 0.0, 0, 1.5, 0.0)])
