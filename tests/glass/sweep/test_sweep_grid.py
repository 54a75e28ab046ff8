"""Lists of values → settings: all of them, none twice, and none lost that could differ."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.errors import InvalidParameterError
from pellucid.glass.sweep.grid import GRID_FIELDS, MAX_COMBINATIONS, make_grid
from pellucid.sampling_params import PRESETS, SamplingParams


def test_every_combination_in_the_order_given() -> None:
    grid = make_grid([], {"temperature": (0.7, 1.0), "top_p": (0.9, 1), "seed": (5,)}, {"max_tokens": 9})
    found = [(s.params.temperature, s.params.top_p) for s in grid.settings]
    assert found == [(0.7, 0.9), (0.7, 1), (1.0, 0.9), (1.0, 1)]
    assert {(s.params.seed, s.params.max_tokens) for s in grid.settings} == {(5, 9)}
    assert grid.varied == ("temperature", "top_p")
    assert [grid.label(s) for s in grid.settings[:2]] == ["temperature 0.7 · top_p 0.9", "temperature 0.7 · top_p 1"]


def test_a_greedy_setting_stands_once() -> None:
    values = {"temperature": (0, 1.0), "top_p": (0.5, 1), "top_k": (0, -1), "min_p": (0.0, 0.1), "seed": (1, 2, 3)}
    grid = make_grid([], values)
    assert grid.num_combinations == 48
    assert [s.params.greedy for s in grid.settings].count(True) == 1
    assert len(grid.settings) == 1 + 2 * 2 * 3  # top_k 0 and -1 are the same
    assert grid.label(grid.settings[0]) == "temperature 0"
    assert grid.varied == ("temperature", "top_p", "min_p", "seed")


def test_penalties_move_a_greedy_choice() -> None:
    assert len(make_grid([], {"temperature": (0,), "repetition_penalty": (1.0, 1.3), "seed": (1, 2)}).settings) == 2


def test_requests_without_a_seed_are_not_the_same() -> None:
    assert len(make_grid([], {"temperature": (1.0,), "seed": (None, None)}).settings) == 2


def test_presets_with_flags_over_them() -> None:
    grid = make_grid(list(PRESETS), {"seed": (0,)})
    assert [s.preset for s in grid.settings] == list(PRESETS)
    assert grid.settings[1].params == SamplingParams.from_preset("creative", seed=0)
    assert grid.varied == ("preset", "temperature", "top_k", "top_p", "min_p")
    over = make_grid(["factual"], {"temperature": (0.1, 0.9)})
    assert [(s.params.temperature, s.params.top_k) for s in over.settings] == [(0.1, 40), (0.9, 40)]


@pytest.mark.parametrize(
    ("presets", "values", "words"),
    [
        (["poetic"], {}, "preset is 'poetic'"),
        ([], {"temperature": (0.5, -1)}, "temperature is -1"),
        ([], {"top_p": ("x",)}, "top_p is 'x'"),
        ([], {"seed": tuple(range(MAX_COMBINATIONS + 1))}, "at most 100,000"),
    ],
)
def test_what_is_refused(presets: list[str], values: dict[str, tuple[object, ...]], words: str) -> None:
    with pytest.raises(InvalidParameterError, match=words):
        make_grid(presets, values)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "temperature": st.lists(st.sampled_from([0, 1e-6, 0.5, 1.0]), min_size=1, max_size=3),
            "top_k": st.lists(st.sampled_from([-1, 0, 1, 40]), min_size=1, max_size=3),
            "repetition_penalty": st.lists(st.sampled_from([1.0, 1.2]), min_size=1, max_size=2),
            "seed": st.lists(st.integers(0, 3), min_size=1, max_size=3),
        },
    )
)
def test_a_combination_is_there_or_one_with_its_answer_is(values: dict[str, list[float]]) -> None:
    grid = make_grid([], values)

    def answers(params: SamplingParams) -> tuple[object, ...]:
        if params.greedy:
            return ("greedy", params.repetition_penalty)
        return (params.temperature, max(0, params.top_k), params.repetition_penalty, params.seed)

    combinations = [dict(zip(values, one, strict=True)) for one in itertools.product(*values.values())]
    wanted = {answers(SamplingParams(**one)) for one in combinations}
    kept = [answers(setting.params) for setting in grid.settings]
    if "seed" in values:
        assert len(kept) == len(set(kept))
    assert set(kept) == wanted
    assert set(grid.varied) <= {"preset", *GRID_FIELDS}
