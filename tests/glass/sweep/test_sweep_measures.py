"""Measures of a text, against the formulas written out, and by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.glass.pieces import common_prefix
from pellucid.glass.sweep.measures import distinct_n, longest_repeat, mean, repetition

TEXTS = st.lists(st.integers(0, 3), max_size=24)


def test_by_hand() -> None:
    text = ["the", "cat", "and", "the", "cat", "and", "the", "dog"]
    assert distinct_n([text], 1) == 4 / 8
    assert distinct_n([text], 2) == 4 / 7  # the cat, cat and, and the, the dog
    assert repetition(text, 4) == pytest.approx(1 - 4 / 5)
    assert longest_repeat(text) == 4  # the cat and the
    assert repetition(text[:3], 4) is None
    assert distinct_n([[], [1]], 2) is None
    assert distinct_n([[1, 2], [1, 2], [1, 3]], 2) == 2 / 3
    assert longest_repeat([1] * 5) == 4
    assert (common_prefix([1, 2, 3], [1, 2, 4, 5]), common_prefix([], [1])) == (2, 0)
    assert mean([1.0, None, 3.0]) == 2.0
    assert mean([None]) is None


@given(TEXTS, st.integers(1, 5))
def test_distinct_and_repetition_are_one(text: list[int], n: int) -> None:
    grams = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
    found = distinct_n([text], n)
    if not grams:
        assert found is None
        assert repetition(text, n) is None
    else:
        assert found is not None
        assert math.isclose(found, len(set(grams)) / len(grams))
        assert repetition(text, n) == 1 - found


@given(TEXTS)
def test_the_longest_repeat_is_that_of_trying_all(text: list[int]) -> None:
    most = 0
    for i in range(len(text)):
        for j in range(i + 1, len(text)):
            most = max(most, common_prefix(text[i:], text[j:]))
    assert longest_repeat(text) == most
