"""Ids equal those of SentencePiece itself, over a small vocabulary trained with the settings of Llama 1 and 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pellucid.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def content(golden: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return golden("sentencepiece")


@pytest.fixture(scope="module")
def tokenizer(content: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_gguf(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": content["tokens"],
            "tokenizer.ggml.token_type": content["kinds"],
            "tokenizer.ggml.scores": content["scores"],
        }
    )


def test_ids_of_the_corpus(tokenizer: Tokenizer, content: dict[str, Any], corpus: list[str]) -> None:
    for text, expected in zip(corpus, content["plain"], strict=True):
        assert " ".join(map(str, tokenizer.encode(text, add_special_tokens=False))) == expected, text


def test_texts_come_back(tokenizer: Tokenizer, corpus: list[str]) -> None:
    for text in corpus:
        # SentencePiece has one spelling for a space and for ▁.
        assert tokenizer.decode(tokenizer.encode(text)) == text.replace("▁", " ")


def test_llama_cpp_agrees(content: dict[str, Any]) -> None:
    assert content["plain_llama_cpp_differs"] == {}
