"""Strings that are cut apart at once are those that a reader finds who goes one by one."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.errors import ModelFileError
from pellucid.formats.gguf import GGUFFile
from pellucid.formats.gguf_strings import MOST_BYTES, cut_strings

TEXTS = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=12).map(str.encode),
    st.sampled_from(
        [
            b"",
            b"\0",
            bytes(7),
            bytes(8),
            bytes(20),
            b"a" * 127,
            b"a" * 128,
            b"a" * 255,
            b"a" * 256,
            b"a" * 300,
            b"\xc4",
            b"\x05",
        ]
    ),
)


def written(texts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def file_with(path: Path, texts: list[bytes], count: int | None = None) -> Path:
    """A GGUF file with two keys, an array of strings and a number."""
    path.write_bytes(
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 2)
        + written([b"words"])
        + struct.pack("<IIQ", 9, 8, len(texts) if count is None else count)
        + written(texts)
        + written([b"n"])
        + struct.pack("<II", 4, 7)
    )
    return path


@settings(max_examples=300, deadline=None)
@given(st.lists(TEXTS, max_size=30), st.binary(max_size=30))
def test_what_is_cut_is_there(texts: list[bytes], after: bytes) -> None:
    strings, taken = cut_strings(np.frombuffer(written(texts) + after, np.uint8), len(texts))
    assert [s.encode() for s in strings] == texts[: len(strings)]
    assert taken == len(written(texts[: len(strings)]))


def test_plain_strings_are_cut_but_for_the_last() -> None:
    texts = [f"Ġword{i}".encode() for i in range(1000)]
    data = np.frombuffer(written(texts), np.uint8)
    assert [s.encode() for s in cut_strings(data, 1000)[0]] == texts[:999]
    assert cut_strings(data, 10)[0] == [f"Ġword{i}" for i in range(10)]


@settings(max_examples=100, deadline=None)
@given(st.lists(TEXTS, max_size=30))
def test_a_file_gives_its_strings(tmp_path_factory: pytest.TempPathFactory, texts: list[bytes]) -> None:
    path = file_with(tmp_path_factory.mktemp("strings") / "one.gguf", texts)
    with GGUFFile.open(path) as file:
        assert file.metadata == {"words": [t.decode("utf-8", "surrogateescape") for t in texts], "n": 7}


@pytest.mark.parametrize("odd", [b"", b"a\0b", bytes(9), b"\xff", b"x" * 1000])
def test_strings_over_many_chunks(tmp_path: Path, odd: bytes) -> None:
    texts = [str(i).encode() for i in range(MOST_BYTES // 4)]
    texts[7] = texts[len(texts) // 2] = texts[-1] = odd
    with GGUFFile.open(file_with(tmp_path / "many.gguf", texts)) as file:
        assert file.metadata == {"words": [t.decode("utf-8", "surrogateescape") for t in texts], "n": 7}


@pytest.mark.parametrize("length", [100, 127, 128, 1 << 40, (1 << 64) - 1])
def test_a_string_beyond_the_file_is_refused(tmp_path: Path, length: int) -> None:
    path = file_with(tmp_path / "long.gguf", [b"a"] * 50)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40] + struct.pack("<Q", length) + b"abc")
    with pytest.raises(ModelFileError, match=r"key 'words' needs bytes to"):
        GGUFFile.open(path)


def test_more_strings_than_there_are_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cut short or damaged"):
        GGUFFile.open(file_with(tmp_path / "few.gguf", [b"a"] * 50, count=60))
