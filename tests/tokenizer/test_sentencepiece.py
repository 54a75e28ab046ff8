"""SentencePiece BPE by scores against its plain definition: look at every pair, join the best, begin again."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pellucid.tokenizer.sentencepiece import ScoreMerger

ALPHABET = "ab▁é🦙"


def plain(text: str, pieces: dict[str, int], scores: list[float]) -> list[str]:
    symbols = list(text.replace(" ", "▁"))
    while True:
        joins = [(-scores[pieces[a + b]], i) for i, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in pieces]
        if not joins:
            return symbols
        _, at = min(joins)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@st.composite
def vocabularies(draw: st.DrawFn) -> tuple[dict[str, int], list[float]]:
    tokens = draw(st.lists(st.text(ALPHABET, min_size=1, max_size=5), unique=True, max_size=60))
    scores = draw(st.lists(st.integers(-9, 0).map(float), min_size=len(tokens), max_size=len(tokens)))
    return {token: i for i, token in enumerate(tokens)}, scores


@given(vocabularies(), st.lists(st.text(ALPHABET + " ", max_size=40), min_size=1, max_size=3))
def test_equal_to_the_plain_definition(vocabulary: tuple[dict[str, int], list[float]], texts: list[str]) -> None:
    pieces, scores = vocabulary
    bytes_at = {byte: 1000 + byte for byte in range(256)}
    merger = ScoreMerger(pieces, scores, bytes_at, None)
    for text in texts * 2:  # the second time words come from the cache
        expected = [
            i
            for s in plain(text, pieces, scores)
            for i in ([pieces[s]] if s in pieces else [1000 + b for b in s.encode()])
        ]
        assert merger.encode_ids(text) == expected


def test_a_piece_that_goes_on_over_a_word_start_is_found() -> None:
    pieces = {"a": 0, "▁": 1, "b": 2, "▁b": 3, "a▁": 4, "a▁b": 5}
    merger = ScoreMerger(pieces, [-9.0, -9.0, -9.0, -2.0, -1.0, -3.0], {}, None)
    assert merger.encode_ids("a b") == [5]
    assert merger.encode_ids("b b") == [2, 3]


def test_a_run_of_unknown_characters_is_one_unknown_token() -> None:
    merger = ScoreMerger({"a": 1}, [0.0, 0.0], {}, 0)
    assert merger.encode_ids("axxa xa") == [1, 0, 1, 0, 1]
