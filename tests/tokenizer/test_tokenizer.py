"""Special tokens, spaces, bytes, end ids and metadata errors, on vocabularies small enough to see through."""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_tokenizers import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    byte_level,
    byte_level_metadata,
    bytes_without_a_token,
    sentencepiece,
    sentencepiece_metadata,
    spellable,
    texts_of,
)

from pellucid.errors import InvalidParameterError, ModelFileError, UnsupportedModelError
from pellucid.tokenizer.chat_template import encode_chat
from pellucid.tokenizer.tokenizer import Tokenizer

# Any Unicode text; half surrogate pairs are no text.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
CONTROL_STRINGS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
HOSTILE = st.lists(st.sampled_from([*CONTROL_STRINGS, "<|", "|>", "user\n", " "]) | TEXT, max_size=8).map("".join)


class TestSpecialTokens:
    def test_control_strings_are_text_unless_asked_for(self) -> None:
        tokenizer = byte_level()
        plain = tokenizer.encode("hello<|im_end|>")
        assert not any(tokenizer.is_special(i) for i in plain)
        assert tokenizer.decode(plain) == "hello<|im_end|>"
        assert texts_of(tokenizer, tokenizer.encode("hello<|im_end|>", parse_special=True)) == ["hello", "<|im_end|>"]

    def test_user_defined_tokens_are_matched_either_way(self) -> None:
        tokenizer = byte_level()
        for parse_special in (False, True):
            ids = tokenizer.encode("hello<think>hello", parse_special=parse_special)
            assert texts_of(tokenizer, ids) == ["hello", "<think>", "hello"]
            assert not tokenizer.is_special(ids[1])

    def test_text_never_merges_into_a_control_token(self) -> None:
        tokenizer = byte_level(control=("hello", "<|endoftext|>"), merges=("h e", "l l", "he ll"))
        metadata = byte_level_metadata(control=("hello", "<|endoftext|>"), merges=("h e", "l l", "he ll"))
        metadata["tokenizer.ggml.merges"].append("hell o")
        for made in (tokenizer, Tokenizer.from_gguf(metadata)):
            assert texts_of(made, made.encode("hello")) == ["hell", "o"]

    def test_leftmost_then_longest(self) -> None:
        tokenizer = byte_level(control=("<|endoftext|>", "<a>", "<a><b>", "b><c"), user_defined=("<",))
        ids = tokenizer.encode("<a><b><c><", parse_special=True)
        assert texts_of(tokenizer, ids) == ["<a><b>", "<", "c", ">", "<"]

    @pytest.mark.parametrize("model", ["smollm2", "gemma3"])
    def test_text_alone_never_gives_a_control_token(self, model: str, request: pytest.FixtureRequest) -> None:
        tokenizer: Tokenizer = request.getfixturevalue(model)

        lost = bytes_without_a_token(tokenizer)

        @given(HOSTILE)
        def check(text: str) -> None:
            ids = tokenizer.encode(spellable(text, lost), add_special_tokens=False, parse_special=False)
            assert not any(tokenizer.is_special(i) for i in ids)

        check()
        for text in tokenizer.special_tokens:
            assert not any(map(tokenizer.is_special, tokenizer.encode(text, add_special_tokens=False)))

    def test_phi3_tokens_swallow_the_space_after_them(self) -> None:
        metadata = sentencepiece_metadata() | {"general.name": "Phi-3 mini"}
        tokenizer = Tokenizer.from_gguf(metadata)
        assert texts_of(tokenizer, tokenizer.encode("[INST] \n hello", parse_special=True)) == [
            "<s>",
            "[INST]",
            " hello",
        ]


class TestBosAndEos:
    @pytest.mark.parametrize(
        ("make", "flags", "expected"),
        [
            (byte_level, {}, (False, False)),
            (byte_level, {"pre": "llama-bpe"}, (True, False)),
            (byte_level, {"pre": "tekken"}, (True, False)),
            (byte_level, {"pre": "llama-bpe", "add_bos_token": False}, (False, False)),
            (byte_level, {"add_bos_token": True, "add_eos_token": True}, (True, True)),
            (sentencepiece, {}, (True, False)),
            (sentencepiece, {"add_bos_token": False, "add_eos_token": True}, (False, True)),
        ],
    )
    def test_as_the_file_says(self, make: Any, flags: dict[str, Any], expected: tuple[bool, bool]) -> None:
        tokenizer = make(**flags)
        ids = tokenizer.encode("hello")
        assert (ids[0] == tokenizer.bos_id, ids[-1] == tokenizer.eos_id) == expected
        assert (tokenizer.add_bos, tokenizer.add_eos) == expected
        bare = tokenizer.encode("hello", add_special_tokens=False)
        assert tokenizer.bos_id not in bare
        assert tokenizer.eos_id not in bare

    def test_never_twice(self) -> None:
        tokenizer = sentencepiece(add_eos_token=True)
        ids = tokenizer.encode("<s>hello</s>", parse_special=True)
        assert ids.count(tokenizer.bos_id) == ids.count(tokenizer.eos_id) == 1
        assert tokenizer.encode("", parse_special=True) == [tokenizer.bos_id, tokenizer.eos_id]

    def test_gemma3(self, gemma3: Tokenizer) -> None:
        assert gemma3.encode("Hi")[0] == gemma3.bos_id == 2
        assert gemma3.encode("<bos>Hi", parse_special=True).count(2) == 1


class TestEndIds:
    def test_union_of_all_sources(self) -> None:
        tokenizer = byte_level(
            control=("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "a", "b", "c"),
            eot_token_id=3,
            eom_token_id=4,
            eos_token_ids=np.array([0, 5], dtype=np.uint32),
        )
        assert tokenizer.eos_ids == {0, 1, 2, 3, 4, 5}

    def test_harmony_end_closes_a_message_not_the_answer(self) -> None:
        tokenizer = byte_level(control=("<|endoftext|>", "<|end|>", "<|return|>", "<|call|>"))
        assert tokenizer.eos_ids == {0, 2, 3}
        assert byte_level(control=("<|endoftext|>", "<|end|>")).eos_ids == {0, 1}

    def test_a_known_end_text_left_normal_becomes_control(self) -> None:
        metadata = byte_level_metadata()
        metadata["tokenizer.ggml.token_type"][2] = NORMAL
        tokenizer = Tokenizer.from_gguf(metadata)
        assert 2 in tokenizer.eos_ids
        assert tokenizer.is_special(2)

    def test_an_html_tag_is_no_end(self) -> None:
        tokenizer = byte_level(user_defined=("</s>",))
        assert tokenizer.special_tokens.keys() == {"<|bos|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"}
        assert tokenizer.eos_ids == {2, 3}

    def test_real_models(self, smollm2: Tokenizer, gemma3: Tokenizer) -> None:
        assert {smollm2.token_text(i) for i in smollm2.eos_ids} == {"<|im_end|>", "<|endoftext|>"}
        assert {gemma3.token_text(i) for i in gemma3.eos_ids} == {"<eos>", "<end_of_turn>"}


class TestSentencePiece:
    def test_merges_by_score_and_falls_back_to_bytes(self) -> None:
        tokenizer = sentencepiece()
        ids = tokenizer.encode("hello 🦙", add_special_tokens=False)
        assert texts_of(tokenizer, ids[:2]) == [" hello", " "]
        assert [tokenizer.token_bytes(i) for i in ids[2:]] == [b"\xf0", b"\x9f", b"\xa6", b"\x99"]
        assert tokenizer.decode(ids) == "hello 🦙"

    def test_a_space_is_put_before_text_and_taken_away_again(self) -> None:
        tokenizer = sentencepiece()
        ids = tokenizer.encode("hello")
        assert texts_of(tokenizer, ids) == ["<s>", " hello"]
        assert tokenizer.decode(ids) == "hello"
        assert tokenizer.decode(ids, strip_prefix_space=False) == " hello"
        # One space only: a text that begins with spaces keeps its own.
        assert tokenizer.decode(tokenizer.encode("  hello")) == "  hello"

    def test_no_space_where_the_file_says_so(self) -> None:
        tokenizer = sentencepiece(add_space_prefix=False)
        assert texts_of(tokenizer, tokenizer.encode("hello")) == ["<s>", "hello"]

    def test_after_a_control_token_text_begins_anew(self) -> None:
        tokenizer = sentencepiece()
        ids = tokenizer.encode("hello[INST]hello", parse_special=True)
        assert texts_of(tokenizer, ids) == ["<s>", " hello", "[INST]", " hello"]

    def test_unused_and_control_pieces_are_never_merged_into(self) -> None:
        metadata = sentencepiece_metadata()
        metadata["tokenizer.ggml.token_type"][-1] = UNUSED
        ids = Tokenizer.from_gguf(metadata).encode("hello", add_special_tokens=False)
        assert len(ids) == 2

    def test_a_piece_whose_text_an_unused_token_has_too_is_still_found(self) -> None:
        metadata = sentencepiece_metadata()
        plain = Tokenizer.from_gguf(metadata).encode("hello")
        metadata["tokenizer.ggml.tokens"].append("▁hello")
        metadata["tokenizer.ggml.token_type"].append(UNUSED)
        metadata["tokenizer.ggml.scores"].append(0.0)
        assert Tokenizer.from_gguf(metadata).encode("hello") == plain

    def test_user_defined_runs_of_spaces_whichever_way_they_are_spelled(self) -> None:
        for spelling in ("  ", "▁▁"):
            tokenizer = sentencepiece(user_defined=(spelling,), add_space_prefix=False)
            ids = tokenizer.encode("hello  hello▁▁", add_special_tokens=False)
            assert texts_of(tokenizer, ids) == ["hello", "  ", "hello", "  "]

    def test_bytes_missing_gives_the_unknown_token(self) -> None:
        metadata = sentencepiece_metadata()
        kinds = metadata["tokenizer.ggml.token_type"]
        metadata["tokenizer.ggml.token_type"] = [UNUSED if kind == BYTE else kind for kind in kinds]
        ids = Tokenizer.from_gguf(metadata).encode("helloé", add_special_tokens=False)
        assert ids[-1] == 0


class TestRoundTrip:
    @pytest.mark.parametrize("model", ["smollm2", "gemma3"])
    def test_any_text(self, model: str, request: pytest.FixtureRequest) -> None:
        tokenizer: Tokenizer = request.getfixturevalue(model)

        lost = bytes_without_a_token(tokenizer)
        assert lost == ({4, 6, 19, 20, 22, 29, 241, 242} if model == "smollm2" else set())

        @given(TEXT | HOSTILE)
        def check(text: str) -> None:
            text = spellable(text, lost)
            if model == "gemma3":
                # SentencePiece has one spelling for a space and for ▁.
                text = text.replace("▁", " ")
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
            assert tokenizer.decode(ids, skip_special_tokens=False) == text

        check()

    def test_what_no_token_can_spell_is_refused_and_not_dropped(self, smollm2: Tokenizer) -> None:
        """transformers and llama.cpp leave such characters out without a word."""
        for text, name in (("a\x04b", r"U\+0004"), ("a\U0004fffe", r"U\+4FFFE")):
            with pytest.raises(InvalidParameterError, match=name):
                smollm2.encode(text)
        metadata = sentencepiece_metadata()
        kinds = metadata["tokenizer.ggml.token_type"]
        metadata["tokenizer.ggml.token_type"] = [UNUSED if kind in (BYTE, UNKNOWN) else kind for kind in kinds]
        with pytest.raises(InvalidParameterError, match=r"U\+00E9"):
            Tokenizer.from_gguf(metadata).encode("helloé")

    @given(TEXT)
    def test_small_vocabularies(self, text: str) -> None:
        assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text
        assert SENTENCEPIECE.decode(SENTENCEPIECE.encode(text)) == text.replace("▁", " ")

    def test_llama_emoji(self, smollm2: Tokenizer, gemma3: Tokenizer) -> None:
        for tokenizer in (smollm2, gemma3):
            ids = tokenizer.encode(" this is 🦙", add_special_tokens=False)
            assert b"".join(map(tokenizer.token_bytes, ids)) == b" this is \xf0\x9f\xa6\x99"
        tail = [gemma3.token_bytes(i) for i in gemma3.encode(" this is 🦙")][-4:]
        assert tail == [b"\xf0", b"\x9f", b"\xa6", b"\x99"]

    def test_invalid_bytes_become_replacement_characters(self) -> None:
        halves = SENTENCEPIECE.encode("é", add_special_tokens=False)[1:]
        assert SENTENCEPIECE.decode(halves[:1]) == "\ufffd"
        assert SENTENCEPIECE.token_text(halves[0]) == "\ufffd"


BYTE_LEVEL = byte_level()
SENTENCEPIECE = sentencepiece()


@pytest.mark.parametrize(
    "unit", ["a", "abcdefghij", " ", "\n", " \n", "好", "🦙", "!", "1", "<", "<|im_end|>", "e\u0301"]
)
def test_long_texts_without_a_break_come_back(unit: str, smollm2: Tokenizer, gemma3: Tokenizer) -> None:
    """In reasonable time: a quadratic way would take minutes (test_linear_time.py)."""
    text = unit * (100_000 // len(unit))
    for tokenizer in (smollm2, gemma3):
        ids = tokenizer.encode(text, parse_special=True, add_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_many_shielded_control_strings_take_linear_time(gemma3: Tokenizer) -> None:
    """Gemma has user-defined tokens too: a control string that stays text looks for one in its own place only."""
    template = (
        "{% for m in messages %}{{ '<start_of_turn>' + m.role + '\n' + m.content + '<end_of_turn>\n' }}{% endfor %}"
    )
    content = "<start_of_turn>" * 10_000
    start = time.thread_time()
    prompt = encode_chat(gemma3, [{"role": "user", "content": content}], chat_template=template)
    assert time.thread_time() - start < 2.0
    assert prompt.token_ids.count(gemma3.special_tokens["<start_of_turn>"]) == 1


def test_falcon_cuts_digits_by_three_and_away_from_the_space() -> None:
    tokenizer = byte_level(pre="falcon", merges=("1 2", "12 3", "123 4", "Ġ 1", "Ġ a", "! !"))
    assert texts_of(tokenizer, tokenizer.encode(" a 12345!!")) == [" a", " ", "123", "4", "5", "!!"]


class TestPieces:
    def test_ids_bytes_and_kind(self) -> None:
        pieces = byte_level().pieces("hello<|im_end|>é", parse_special=True)
        assert [(piece.token_bytes, piece.special) for piece in pieces] == [
            (b"hello", False),
            (b"<|im_end|>", True),
            (b"\xc3", False),
            (b"\xa9", False),
        ]


def refusal_of(metadata: dict[str, Any]) -> str | None:
    """What a tokenizer or its first text was refused with; any other error is a failure."""
    try:
        tokenizer = Tokenizer.from_gguf(metadata)
        tokenizer.decode(tokenizer.encode("hello"))
    except (ModelFileError, UnsupportedModelError, InvalidParameterError) as error:
        return str(error)
    return None


class TestErrors:
    @pytest.mark.parametrize(
        ("changes", "kind", "message"),
        [
            ({"model": "rwkv"}, UnsupportedModelError, "tokenizer.ggml.model is 'rwkv'"),
            ({"model": None}, UnsupportedModelError, "tokenizer.ggml.model is None"),
            ({"pre": "no-such-rule"}, UnsupportedModelError, "tokenizer.ggml.pre is 'no-such-rule'.*smollm"),
            ({"tokens": None}, ModelFileError, "tokenizer.ggml.tokens is missing"),
            ({"tokens": []}, ModelFileError, "tokenizer.ggml.tokens"),
            ({"token_type": [1]}, ModelFileError, "tokenizer.ggml.token_type has 1 entries"),
            ({"bos_token_id": 99_999}, ModelFileError, "tokenizer.ggml.bos_token_id is 99999"),
            ({"eos_token_ids": [7, -3]}, ModelFileError, "tokenizer.ggml.eos_token_ids is -3"),
        ],
    )
    def test_metadata(self, changes: dict[str, Any], kind: type[Exception], message: str) -> None:
        with pytest.raises(kind, match=message):
            byte_level(**changes)

    @pytest.mark.parametrize("make", [byte_level_metadata, sentencepiece_metadata])
    def test_every_key_with_every_kind_of_value(self, make: Any) -> None:
        """A key of the wrong type is refused by its name; none is taken for what it is not."""
        metadata = make()
        count = len(metadata["tokenizer.ggml.tokens"])
        values: list[Any] = ["x", -1, 2**40, 1.0, math.nan, 1e300, True, [], ["a", "b"], [1, 2], [[1], [2, 3]]]
        values += [kind * count for kind in ([99], [-1], [2.5], [math.nan], ["a"], [""])]
        flat = [value for value in values if isinstance(value, list) and not any(isinstance(v, list) for v in value)]
        values += map(np.asarray, flat)
        names = ["bos", "eos", "eot", "eom", "unknown", "padding"]
        keys = {*metadata, "tokenizer.chat_template", "tokenizer.chat_template.tool_use", "general.name"}
        keys |= {f"tokenizer.ggml.{name}_token_id" for name in names}
        keys |= {f"tokenizer.ggml.{key}" for key in ("add_bos_token", "add_space_prefix", "eos_token_ids", "scores")}
        for key, value in itertools.product(sorted(keys), values):
            sentence = refusal_of(metadata | {key: value})
            assert sentence is None or key in sentence or " tokens" in sentence, (key, value, sentence)
            assert len(sentence or "") < 1000, key

    def test_merges(self) -> None:
        metadata = byte_level_metadata()
        del metadata["tokenizer.ggml.merges"]
        with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.merges is missing"):
            Tokenizer.from_gguf(metadata)

        with pytest.raises(ModelFileError, match="'hello', which is not two pieces"):
            Tokenizer.from_gguf(byte_level_metadata() | {"tokenizer.ggml.merges": ["h e", "hello"]})

    def test_pieces_that_are_no_text(self) -> None:
        metadata = sentencepiece_metadata(pieces={"▁": -1.0, "a": -2.0, "\udcff": -3.0, "a\udcff": -4.0})
        tokenizer = Tokenizer.from_gguf(metadata)
        assert tokenizer.decode(tokenizer.encode("a\xff")) == "a\xff"
        assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == b"a\xff"

    def test_byte_tokens(self) -> None:
        metadata = sentencepiece_metadata()
        metadata["tokenizer.ggml.tokens"][10] = "<0xZZ>"
        with pytest.raises(ModelFileError, match="byte token '<0xZZ>'"):
            Tokenizer.from_gguf(metadata)

    def test_scores(self) -> None:
        with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.scores is missing"):
            sentencepiece(scores=None)
        with pytest.raises(ModelFileError, match="has 2 entries"):
            sentencepiece(scores=[0.0, 1.0])

    def test_half_a_surrogate_pair_is_no_text(self) -> None:
        with pytest.raises(InvalidParameterError, match="character 2"):
            byte_level().encode("ab\ud800")

    @pytest.mark.parametrize("token_id", [-1, 10_000])
    def test_ids_outside_the_vocabulary(self, token_id: int) -> None:
        tokenizer = byte_level()
        for use in (tokenizer.token_bytes, tokenizer.is_special, lambda i: tokenizer.decode([i])):
            with pytest.raises(InvalidParameterError, match="outside the vocabulary"):
                use(token_id)

    def test_no_special_ids(self) -> None:
        tokenizer = byte_level(bos_token_id=None, eos_token_id=None, pre="llama-bpe")
        assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (None, None, False)
        metadata = sentencepiece_metadata()
        assert Tokenizer.from_gguf(metadata).bos_id == 1
        metadata["tokenizer.ggml.token_type"] = [NORMAL] * len(metadata["tokenizer.ggml.tokens"])
        assert Tokenizer.from_gguf(metadata).bos_id is None


def test_control_kinds_are_those_of_the_file() -> None:
    tokenizer = byte_level()
    assert (
        set(tokenizer.special_tokens.values())
        == {i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)}
        == {0, 1, 2, 3}
    )
    assert CONTROL == 3
