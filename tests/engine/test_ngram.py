"""Prompt lookup against its definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pellucid.engine.speculation.ngram import MAX_MATCH, MAX_PLACES, NO_MATCH, RESUME_WITHIN, Match, NgramIndex

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def naive_places(text: list[int]) -> list[int]:
    """One past every earlier occurrence of the last two tokens, the latest first."""
    return [end for end in range(len(text) - 1, 1, -1) if text[end - 2 : end] == text[-2:]]


def agreement(text: list[int], place: int) -> int:
    length = 0
    while length < min(place, MAX_MATCH) and text[place - 1 - length] == text[-1 - length]:
        length += 1
    return length


@given(TEXTS, st.integers(1, 5))
def test_the_longest_of_the_latest_matches(text: list[int], piece: int) -> None:
    index = NgramIndex()
    for start in range(0, len(text), piece):
        index.extend(text[start : start + piece])
    places = naive_places(text)[:MAX_PLACES] if len(text) > 2 else []
    if not places:
        assert index.match() == NO_MATCH
        return
    best = max(places, key=lambda place: (agreement(text, place), place))
    assert index.match() == Match(best, agreement(text, best))


@given(TEXTS, TEXTS)
def test_asked_at_every_token_it_never_knows_less(start: list[int], rest: list[int]) -> None:
    """What it copies from is remembered beyond the latest places; it still agrees, as far as the best of them."""
    index = NgramIndex()
    index.extend(start)
    for token_id in rest:
        index.extend([token_id])
        text, match = index.token_ids, index.match()
        places = naive_places(text)[:MAX_PLACES]
        assert match.length == (agreement(text, match.position) if match.length else 0)
        assert match.length >= max((agreement(text, place) for place in places), default=0)


@given(TEXTS, st.integers(0, 40))
def test_a_continuation_is_what_followed_and_then_goes_round(text: list[int], count: int) -> None:
    index = NgramIndex()
    index.extend(text)
    match = index.match()
    if match.length:
        long = list(text)
        for _ in range(count):
            long.append(long[match.position + len(long) - len(text)])
        assert index.continuation(match, count) == long[len(text) :]


def test_the_place_that_is_copied_from_is_kept_among_many() -> None:
    """A pair that stands in more places than are compared does not end the copy."""
    source = [50, 51, 52, 1, 2, 53, 54]
    index = NgramIndex()
    index.extend([*source, *([1, 2, 9] * (MAX_PLACES + 3)), 50, 51])
    for token_id in source[2:5]:
        assert index.continuation(index.match(), 1) == [token_id]
        index.extend([token_id])
    assert index.continuation(index.match(), 2) == [53, 54]


def test_a_copy_goes_on_after_a_word_that_was_replaced_and_after_words_left_out() -> None:
    source = list(range(100, 140))
    index = NgramIndex()
    index.extend([*source, 100, 101, 102])
    assert index.continuation(index.match(), 1) == [103]
    index.extend([7])  # instead of 103
    assert index.match() == NO_MATCH
    index.extend([104])
    assert index.match() == Match(5, 1)
    assert index.continuation(index.match(), 2) == [105, 106]
    index.extend([105])
    assert index.match() == Match(6, 2), "a pair again"
    index.extend([120])  # a sentence left out
    assert index.match() == Match(21, 1)
    index.extend([8] * RESUME_WITHIN)
    index.extend([121])
    assert index.match() == NO_MATCH, "too long ago"
