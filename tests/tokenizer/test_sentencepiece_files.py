"""tokenizer.model: ids are those of `sentencepiece` itself; damaged files are refused."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.tokenizer.sentencepiece_file import read_sentencepiece
from pellucid.tokenizer.tokenizer import Tokenizer

Golden = Callable[[str], dict[str, Any]]
KINDS = ["unigram", "unigram_bytes", "unigram_plain", "bpe", "bpe_llama"]


def model_of(golden: Golden, kind: str) -> bytes:
    return base64.b64decode(golden("sentencepiece_files")[kind]["model"])


@pytest.mark.parametrize("kind", KINDS)
def test_ids_equal_sentencepiece(golden: Golden, corpus: list[str], tmp_path: Path, kind: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model_of(golden, kind))
    tokenizer = Tokenizer.from_folder(tmp_path)
    for text, ids in zip(corpus, golden("sentencepiece_files")[kind]["ids"], strict=True):
        if "<tool>" in text:
            continue
        assert " ".join(map(str, tokenizer.encode(text, add_special_tokens=False))) == ids, text


def test_control_tokens_are_text(golden: Golden, tmp_path: Path) -> None:
    for kind in KINDS:
        (tmp_path / "tokenizer.model").write_bytes(model_of(golden, kind))
        tokenizer = Tokenizer.from_folder(tmp_path)
        ids = tokenizer.encode("<s>a</s><tool>", add_special_tokens=False)
        assert not {tokenizer.bos_id, tokenizer.eos_id} & set(ids)
        assert tokenizer.special_tokens.get("<tool>") is None
        assert tokenizer.encode("<tool>", add_special_tokens=False)[-1] == 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80, deadline=None)
@given(cut=st.integers(0, 2000), flips=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 255)), max_size=4))
def test_damaged_files(golden: Golden, tmp_path: Path, cut: int, flips: list[tuple[int, int]]) -> None:
    data = bytearray(model_of(golden, "unigram"))
    for at, mask in flips:
        data[at] ^= mask
    (tmp_path / "tokenizer.model").write_bytes(data[: len(data) - cut])
    with suppress(ModelFileError, UnsupportedModelError):  # refused; any other error is a failure
        Tokenizer.from_folder(tmp_path).encode("hello world")


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x02pickle", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xff" * 100, b"\x0b\x0c"]
)
def test_what_is_no_sentencepiece_model(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(ModelFileError, match=r"tokenizer\.model: is cut, damaged, or no SentencePiece model"):
        read_sentencepiece(tmp_path / "tokenizer.model")
