"""Deltas joined are the text, and no delta shows half a character."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import byte_level, bytes_without_a_token, sentencepiece, spellable

from pellucid.tokenizer.detokenizer import IncrementalDetokenizer
from pellucid.tokenizer.tokenizer import Tokenizer

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def stream(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    """All deltas, the flushed one last."""
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_random_ids(model: str, skip: bool, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(model)
    # Byte tokens and control tokens come first in the vocabulary: draw them as often as all others together.
    ids = st.integers(0, tokenizer.vocab_size - 1) | st.integers(0, 500)

    @given(st.lists(ids, max_size=40))
    def check(token_ids: list[int]) -> None:
        deltas = stream(tokenizer, token_ids, skip_special_tokens=skip)
        assert "".join(deltas) == tokenizer.decode(token_ids, skip_special_tokens=skip)

    check()


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_no_replacement_character_in_a_delta_of_text(model: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(model)

    lost = bytes_without_a_token(tokenizer)

    @given(TEXT)
    def check(text: str) -> None:
        text = spellable(text.replace("\ufffd", ""), lost)
        ids = tokenizer.encode(text, add_special_tokens=False)
        deltas = stream(tokenizer, ids)
        assert "".join(deltas) == tokenizer.decode(ids)
        assert not any("\ufffd" in delta for delta in deltas)

    check()


def test_bytes_of_a_character_are_held_back() -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode("a🦙", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(tokenizer)
    seen = [(detokenizer.push(i), detokenizer.num_held_bytes) for i in ids]
    assert seen[-4:] == [("", 1), ("", 2), ("", 3), ("🦙", 0)]
    assert detokenizer.flush() == ""


def test_an_unfinished_character_is_shown_at_the_end() -> None:
    tokenizer = byte_level()
    deltas = stream(tokenizer, tokenizer.encode("ab🦙")[:-1])
    assert deltas[-1] == "\ufffd"
    assert not any("\ufffd" in delta for delta in deltas[:-1])


def test_an_invalid_byte_is_shown_as_soon_as_it_is_known() -> None:
    tokenizer = byte_level()
    lead, letter = tokenizer.encode("é")[0], tokenizer.encode("a")[0]
    assert stream(tokenizer, [lead, letter, letter]) == ["", "\ufffda", "a", ""]


def test_special_tokens_are_left_out_when_asked() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("hello<|im_end|>hello", parse_special=True)
    assert stream(tokenizer, ids) == ["hello", "", "hello", ""]
    assert stream(tokenizer, ids, skip_special_tokens=False)[1] == "<|im_end|>"


def test_a_special_token_does_not_break_a_character_in_two() -> None:
    tokenizer = byte_level()
    first, second = tokenizer.encode("é")
    deltas = stream(tokenizer, [first, 2, second])
    assert "".join(deltas) == tokenizer.decode([first, 2, second]) == "é"


def test_spaces_of_sentencepiece_words_are_kept() -> None:
    tokenizer = sentencepiece()
    ids = tokenizer.encode("hello hello", add_special_tokens=False)
    assert stream(tokenizer, ids) == ["hello", " hello", ""]
    assert stream(tokenizer, ids, strip_prefix_space=False) == [" hello", " hello", ""]
    assert tokenizer.decode(ids, strip_prefix_space=False) == " hello hello"


def test_cost_does_not_grow_with_the_text(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("The capital of France is Paris. " * 20_000)
    detokenizer = IncrementalDetokenizer(smollm2)
    start = time.thread_time()
    for token_id in ids:
        detokenizer.push(token_id)
    assert time.thread_time() - start < 2.0
