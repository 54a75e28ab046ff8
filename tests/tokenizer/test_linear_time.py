"""Time in proportion to the text, for every kind of tokenizer: counted where the work is ours, else by its growth."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizer.small_tokenizers import byte_level as gguf_byte_level
from tokenizer.small_tokenizers import sentencepiece_metadata
from tokenizer.test_folders import KINDS, LEARNT, saved
from tokenizers import Regex, normalizers, pre_tokenizers

from pellucid.errors import InvalidParameterError, ModelFileError, UnsupportedModelError
from pellucid.tokenizer.pre_tokenizers import PRE_TOKENIZERS, linear
from pellucid.tokenizer.sentencepiece import ScoreMerger
from pellucid.tokenizer.tokenizer import Tokenizer
from pellucid.tokenizer.wordpiece import WordPieces

UNITS = {"letter": "a", "spaces": " ", "syllables": "hello", "cjk": "東", "digits": "12", "words": LEARNT[0], "!": "!"}
GROWTH = 8
"""How much longer the long text is; a quadratic way takes 64 times as long, and half of that is allowed."""


def assert_linear(tokenizer: Tokenizer, unit: str, size: int, end: str = "") -> None:
    spent = []
    for length in (size, GROWTH * size):
        text = unit * (length // len(unit)) + end
        start = time.thread_time()
        tokenizer.encode(text, parse_special=True)
        spent.append(time.thread_time() - start)
    assert spent[1] <= GROWTH**2 / 2 * max(spent[0], 0.01), spent


@pytest.mark.parametrize(
    "size", [10_000, pytest.param(125_000, marks=pytest.mark.slow)], ids=["a word of 80,000", "a megabyte"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_time_grows_with_the_text(tmp_path: Path, kind: str, size: int) -> None:
    tokenizer = saved(tmp_path, KINDS[kind]())
    for unit in UNITS.values():
        assert_linear(tokenizer, unit, size)


@pytest.mark.parametrize("pre", sorted({row.steps: name for name, row in PRE_TOKENIZERS.items()}.values()))
def test_rules_of_words_are_linear_whatever_a_run_ends_with(pre: str) -> None:
    tokenizer = gguf_byte_level(pre=pre)
    for unit in (" ", "\t", "\u3000", "A", "'", "\u0301"):
        for end in ("5", "!", "好"):
            assert_linear(tokenizer, unit, 3_000, end)


class Counting(dict[str, int]):
    """Counts what is looked up."""

    count = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.count += 1
        return super().get(key, default)


@pytest.mark.parametrize("unit", ["a", "hello", "▁", "▁hello", "é", "aab"])
def test_joins_by_score_look_a_piece_up_a_few_times_for_each_character(unit: str) -> None:
    metadata = sentencepiece_metadata({"a": -9.0, "aa": -2.0, "aaaa": -1.0, "hello": -3.0, "he": -4.0, "▁": -9.0})
    tokens = metadata["tokenizer.ggml.tokens"]
    pieces = Counting({token: i for i, token in enumerate(tokens) if i >= 4})
    merger = ScoreMerger(pieces, metadata["tokenizer.ggml.scores"], {byte: 4 + byte for byte in range(256)}, 0)
    for length in (1_000, 100_000):
        pieces.count = 0
        merger.encode_ids(unit * (length // len(unit)))
        assert pieces.count <= 4 * length


@pytest.mark.parametrize("word", ["a" * 100_000, "ab" * 50_000, "a" * 99_999 + "?"])
def test_a_long_word_looks_up_no_length_that_no_piece_has(word: str) -> None:
    pieces = Counting({"a": 1, "##a": 2, "##b": 3, "##aba": 4, "##aaaaa": 5})
    ids = WordPieces(pieces, 0, "##", 100_000).ids_of(word)
    assert pieces.count <= 5 * len(word)
    assert ids == ([0] if "?" in word else ids)
    assert WordPieces(pieces, 0, "##", 99_999).ids_of(word) == [0]
    if word == "a" * 100_000:
        assert ids == [1, *[5] * 19_999, *[2] * 4]


def wordpiece(limit: int | None) -> tokenizers.Tokenizer:
    engine = KINDS["wordpiece"]()
    state = json.loads(engine.to_str())
    if limit is not None:
        state["model"]["max_input_chars_per_word"] = limit
    return tokenizers.Tokenizer.from_str(json.dumps(state))


@pytest.mark.parametrize("limit", [None, 7, 100, 101, 250])
def test_long_words_are_cut_as_the_library_cuts_them(tmp_path: Path, limit: int | None) -> None:
    engine = wordpiece(limit)
    engine.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.from_folder(tmp_path)
    for text in ["llamas" * 40, "llamas" * 50, "hello " * 30, "x" * 101, "Straße" * 17 + " llama", "llama~" * 20, ""]:
        assert ours.encode(text, add_special_tokens=False) == engine.encode(text, add_special_tokens=False).ids


def test_what_long_words_cannot_go_with_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="max_input_chars_per_word is 1000, but at most 100 is supported"):
        saved(tmp_path, wordpiece(1000))  # with an added token that is normalized
    state = json.loads(wordpiece(1000).to_str())
    state["model"]["vocab"] |= {"y" * 1001: len(state["model"]["vocab"])}
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(ModelFileError, match="a piece of the vocabulary has 1001 characters, but"):
        Tokenizer.from_folder(tmp_path)


@given(st.text(alphabet=" \t\u3000\u00a05a", max_size=30))
def test_a_pattern_made_linear_has_the_same_matches(text: str) -> None:
    assert linear(r"\s+$") != r"\s+$"
    one, other = (
        pre_tokenizers.Split(Regex(pattern), "isolated").pre_tokenize_str(text)
        for pattern in (r"\s+$", linear(r"\s+$"))
    )
    assert one == other


@pytest.mark.parametrize("place", ["normalizer", "pre_tokenizer"])
def test_a_pattern_that_goes_astray_is_one_sentence(tmp_path: Path, place: str) -> None:
    engine = KINDS["byte_level"]()
    pattern = Regex("(a|aa)+$")
    if place == "normalizer":
        engine.normalizer = normalizers.Replace(pattern, "x")
    else:
        engine.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
    tokenizer = saved(tmp_path, engine)
    assert tokenizer.encode("aab")
    with pytest.raises(InvalidParameterError, match=r"tokenizer cannot cut this text: Onig: .*retry-limit-in-match"):
        tokenizer.encode("a" * 10_000 + "b")
