"""The bound that refuses a prompt before it is encoded never exceeds the true number of tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import byte_level, sentencepiece

from pellucid.tokenizer.tokenizer import Tokenizer

PLAIN = byte_level()
COMPOSED = byte_level(pre="qwen2")
PIECES = sentencepiece()
STRIPPING = sentencepiece(user_defined=("<think>",), pre="phi-3")
NO_BYTES = Tokenizer.from_gguf(
    {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "h", "e"],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1],
        "tokenizer.ggml.scores": [0.0] * 5,
        "tokenizer.ggml.unknown_token_id": 0,
    }
)
PARTS = st.sampled_from(
    ["<|endoftext|>", "<think>", " hello", "\u2581hello", "\u212b", "e\u0301", "   ", "\U0001f999", "z"]
)
TEXTS = st.lists(PARTS | st.text(max_size=4), max_size=12).map("".join)


@pytest.mark.parametrize(
    "tokenizer", [PLAIN, COMPOSED, PIECES, STRIPPING, NO_BYTES], ids=["plain", "nfc", "pieces", "strips", "no-bytes"]
)
@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_the_bound_holds(tokenizer: Tokenizer, text: str) -> None:
    for parse_special in (False, True):
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=parse_special)
        assert tokenizer.least_tokens(text) <= len(ids)


def test_the_bound_holds_for_real_models(smollm2: Tokenizer, gemma3: Tokenizer, corpus: list[str]) -> None:
    for tokenizer in (smollm2, gemma3):
        longest = max(map(tokenizer.token_bytes, range(tokenizer.vocab_size)), key=len)
        for text in (*corpus, longest.decode("utf-8", "replace") * 50):
            try:
                ids = tokenizer.encode(text, add_special_tokens=False)
            except ValueError:  # no token for a control character
                continue
            assert tokenizer.least_tokens(text) <= len(ids)
        assert tokenizer.least_tokens("word " * 100_000) > 5000


def test_nothing_can_be_told_where_runs_of_unknown_characters_are_one_token() -> None:
    assert len(NO_BYTES.encode("z" * 1000)) <= 2
    assert NO_BYTES.least_tokens("z" * 1000) == 0
