"""The GGUF reader on files that are cut, damaged or hostile: one sentence, no other exception, little memory."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_gguf import ARRAY, BOOL, FLOAT32, STRING, UINT32, array, gguf, kv, small_file, string, tensor, u32, u64

from pellucid.errors import ModelFileError, PellucidError
from pellucid.formats.gguf import GGUFFile

OPENER_BYTES = 64 << 10
"""What opening any file may take: objects of the reader, messages."""


@pytest.fixture
def model(tmp_path: Path) -> Callable[[bytes], Path]:
    path = tmp_path / "model.gguf"

    def write(content: bytes) -> Path:
        path.write_bytes(content)
        return path

    return write


def peak_bytes(action: Callable[[], object]) -> int:
    """The most memory Python and NumPy held at once for it, beyond what they held before."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refusal(path: Path, limit: int | None = None) -> str:
    """The sentence with which a file is refused, after checking what all of them have in common."""

    def attempt() -> None:
        with pytest.raises(ModelFileError) as caught:
            GGUFFile.open(path)
        messages.append(str(caught.value))

    messages: list[str] = []
    assert peak_bytes(attempt) < (OPENER_BYTES + 16 * path.stat().st_size if limit is None else limit)
    assert str(path) in messages[0]
    assert "\n" not in messages[0]
    assert len(messages[0]) < len(str(path)) + 300
    return messages[0].replace(str(path), "FILE")


def open_or_refuse(path: Path) -> bool:
    """Whether the file was refused; any exception but ours is the test's failure."""
    try:
        GGUFFile.open(path)
    except PellucidError:
        return True
    return False


@pytest.mark.parametrize("version", [2, 3])
def test_cut_at_every_byte(model: Callable[[bytes], Path], version: int) -> None:
    whole = small_file(version)
    path = model(whole)
    assert GGUFFile.open(path).tensors
    for size in range(len(whole) - 1, 0, -1):
        os.truncate(path, size)
        message = refusal(path)
        assert "cut short" in message
        assert f"the file has {size:,}" in message
        assert "fetch it again" in message


def test_the_cut_tensor_is_named_with_its_bytes(model: Callable[[bytes], Path]) -> None:
    whole = small_file()
    message = refusal(model(whole[:-1]))
    assert f"tensor 'bias' needs bytes to {len(whole):,}, the file has {len(whole) - 1:,}" in message


def test_every_flipped_bit_of_the_header(model: Callable[[bytes], Path]) -> None:
    whole = small_file()
    header = len(whole) - 108
    outcomes: list[bool] = []
    path = model(whole)
    with open(path, "r+b", buffering=0) as file:
        for place in range(8 * header):
            index = place // 8
            os.pwrite(file.fileno(), bytes([whole[index] ^ 1 << place % 8]), index)
            assert peak_bytes(lambda: outcomes.append(open_or_refuse(path))) < OPENER_BYTES + 16 * len(whole)
            os.pwrite(file.fileno(), whole[index : index + 1], index)
    assert sum(outcomes) > header  # lengths, counts and types are a good part of the header


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), edits=st.integers(1, 12))
def test_random_bytes_in_the_header(model: Callable[[bytes], Path], seed: int, edits: int) -> None:
    whole = small_file()
    draw = random.Random(seed)
    content = bytearray(whole)
    for _ in range(edits):
        at = draw.randrange(4, len(whole) - 108)
        content[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])
    path = model(bytes(content))

    assert peak_bytes(lambda: open_or_refuse(path)) < OPENER_BYTES + 16 * len(whole)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=400), kv_count=st.integers(0, 5), tensor_count=st.integers(0, 5))
def test_noise_behind_a_sound_preamble(
    model: Callable[[bytes], Path], body: bytes, kv_count: int, tensor_count: int
) -> None:
    path = model(b"GGUF" + u32(3) + u64(tensor_count) + u64(kv_count) + body)
    assert peak_bytes(lambda: open_or_refuse(path)) < OPENER_BYTES + 16 * path.stat().st_size


HUGE = [2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
PADDING = bytes(64)

HOSTILE_COUNTS: dict[str, tuple[Callable[[int], bytes], str]] = {
    "tensor_count": (lambda n: gguf(tensor_count=n) + PADDING, "tensor_count"),
    "kv_count": (lambda n: gguf(kv_count=n) + PADDING, "kv_count"),
    "key length": (lambda n: gguf([u64(n) + b"key"], kv_count=1) + PADDING, "key 1 of 1"),
    "string length": (lambda n: gguf([kv("s", STRING, u64(n))]) + PADDING, "key 's'"),
    "array of uint8": (lambda n: gguf([kv("a", ARRAY, array(0, n, b""))]) + PADDING, "key 'a'"),
    "array of float64": (lambda n: gguf([kv("a", ARRAY, array(12, n, b""))]) + PADDING, "key 'a'"),
    "array of bool": (lambda n: gguf([kv("a", ARRAY, array(BOOL, n, b""))]) + PADDING, "key 'a'"),
    "array of strings": (lambda n: gguf([kv("a", ARRAY, array(STRING, n, b""))]) + PADDING, "key 'a'"),
    "array of arrays": (lambda n: gguf([kv("a", ARRAY, array(ARRAY, n, b""))]) + PADDING, "key 'a'"),
    "length within an array": (lambda n: gguf([kv("a", ARRAY, array(STRING, 1, u64(n)))]) + PADDING, "key 'a'"),
    "tensor name length": (lambda n: gguf(tensors=[u64(n) + b"w"]) + PADDING, "tensor 1 of 1"),
    "first dimension": (lambda n: gguf(tensors=[tensor("w", [n])]) + PADDING, "tensor 'w'"),
    "last dimension": (lambda n: gguf(tensors=[tensor("w", [1, 1, 1, n])]) + PADDING, "tensor 'w'"),
    "two dimensions": (lambda n: gguf(tensors=[tensor("w", [n, n])]) + PADDING, "tensor 'w'"),
    "dimension of blocks": (lambda n: gguf(tensors=[tensor("w", [n & ~255, n], 12)]) + PADDING, "tensor 'w'"),
    "offset": (lambda n: gguf(tensors=[tensor("w", [1], offset=n & ~31)]) + PADDING, "tensor 'w'"),
}


@pytest.mark.parametrize("place", HOSTILE_COUNTS)
def test_hostile_counts(model: Callable[[bytes], Path], place: str) -> None:
    build, named = HOSTILE_COUNTS[place]
    for value in HUGE:
        # Zeros are valid empty strings and arrays: reading them one by one until the end would take memory.
        path = model(build(value) + bytes(100_000))
        assert named in refusal(path, OPENER_BYTES)


def test_a_product_of_dimensions_that_wraps_to_a_small_number(model: Callable[[bytes], Path]) -> None:
    # 2**32 · 2**32 is 0 in 64 bits, and (2**62 + 1) · 4 is 4.
    for ne in ([2**32, 2**32], [4, 2**62 + 1], [2**16, 2**16, 2**16, 2**16]):
        assert "tensor 'w'" in refusal(model(gguf(tensors=[tensor("w", ne)], data=PADDING)))


REFUSED: dict[str, tuple[bytes, str]] = {
    "duplicate key": (gguf([kv("k", BOOL, b"\0"), kv("k", BOOL, b"\0")]), "key 'k' stands in it twice"),
    "duplicate tensor": (
        gguf(tensors=[tensor("w", [8]), tensor("w", [8], offset=32)], data=PADDING),
        "tensor 'w' stands in it twice",
    ),
    "key not UTF-8": (gguf([kv(b"\xff", BOOL, b"\0")]), "key 1 of 1 is not UTF-8"),
    "surrogate in a key": (gguf([kv(b"\xed\xa0\x80", BOOL, b"\0")]), "key 1 of 1 is not UTF-8"),
    "tensor name not UTF-8": (gguf(tensors=[tensor(b"\xc3", [8])], data=PADDING), "tensor 1 of 1 is not UTF-8"),
    "endless key": (gguf([kv("k" * 65536, BOOL, b"\0")]), "at most 65,535"),
    "bool of 2": (gguf([kv("b", BOOL, b"\2")]), "key 'b' is a bool with the value 2"),
    "array of bool with 2": (gguf([kv("b", ARRAY, array(BOOL, 2, b"\1\2"))]), "key 'b' is a bool with the value 2"),
    "unknown value type": (gguf([kv("k", 13, PADDING)]), "key 'k' has the unknown value type 13"),
    "unknown item type": (gguf([kv("k", ARRAY, array(99, 1, PADDING))]), "unknown value type 99"),
    "unknown tensor type": (gguf(tensors=[tensor("w", [8], 777)], data=PADDING), "tensor 'w' of the unknown type 777"),
    "5 dimensions": (gguf(tensors=[tensor("w", [1] * 5)], data=PADDING), "tensor 'w' has 5 dimensions, at most 4"),
    "2**32 - 1 dimensions": (
        gguf(tensors=[tensor("w", [1], n_dims=2**32 - 1)], data=PADDING),
        "tensor 'w' has 4,294,967,295 dimensions",
    ),
    "dimension of 0": (gguf(tensors=[tensor("w", [2**62, 0])], data=PADDING), "tensor 'w' has a dimension of 0"),
    "broken block": (gguf(tensors=[tensor("w", [33], 2)], data=PADDING), "tensor 'w': the rows of shape (33,)"),
    "scalar of blocks": (gguf(tensors=[tensor("w", [], 2)], data=PADDING), "tensor 'w': the rows of shape ()"),
    "odd offset": (gguf(tensors=[tensor("w", [1], offset=8)], data=PADDING), "tensor 'w' has the offset 8"),
    "overlap": (
        gguf(tensors=[tensor("b", [16]), tensor("a", [1], offset=32)], data=PADDING),
        "tensors 'b' and 'a' overlap",
    ),
    "same place twice": (gguf(tensors=[tensor("a", [8]), tensor("b", [8])], data=PADDING), "overlap"),
    "alignment 0": (gguf([kv("general.alignment", UINT32, u32(0))]), "'general.alignment' must be a power of two"),
    "alignment 48": (gguf([kv("general.alignment", UINT32, u32(48))]), "'general.alignment' must be a power of two"),
    "alignment true": (gguf([kv("general.alignment", BOOL, b"\1")]), "'general.alignment' must be a power of two"),
    "alignment 32.0": (
        gguf([kv("general.alignment", FLOAT32, struct.pack("<f", 32))]),
        "'general.alignment' must be a power of two",
    ),
    "alignment in words": (
        gguf([kv("general.alignment", STRING, string("32"))]),
        "'general.alignment' must be a power of two",
    ),
    "version 0": (gguf(version=0), "big-endian"),
    "version 1": (gguf(version=1) + PADDING, "version 1, but only versions 2 and 3"),
    "version 4": (gguf(version=4) + PADDING, "version 4, but only versions 2 and 3"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "terminal escapes": (gguf([kv("\x1b[2J", BOOL, b"\2")]), r"key '\x1b[2J'"),
    "zip": (b"PK\x03\x04" + PADDING, "PyTorch"),
    "pickle": (b"\x80\x02}q" + PADDING, "PyTorch"),
    "safetensors": (u64(200) + b'{"__metadata__":{}}' + PADDING, "safetensors"),
    "web page": (b"\n<!DOCTYPE html><html>", "HTML"),
    "old ggml": (b"tjgg" + PADDING, "before GGUF"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS"),
    "text": (b"hello, world", "does not start with the bytes GGUF"),
    "one byte": (b"x", "does not start with the bytes GGUF"),
    "empty": (b"", "is empty"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_reason(model: Callable[[bytes], Path], case: str) -> None:
    content, reason = REFUSED[case]
    assert reason in refusal(model(content))


def test_nested_arrays_are_bounded_in_depth(model: Callable[[bytes], Path]) -> None:
    def nested(depth: int) -> bytes:
        return gguf([kv("deep", ARRAY, array(ARRAY, 1, b"") * (depth - 1) + array(0, 1, b"\7"))])

    assert GGUFFile.open(model(nested(4))).metadata["deep"][0][0][0].tolist() == [7]
    for depth in (5, 100_000):
        assert "key 'deep' nests arrays" in refusal(model(nested(depth)))


DENSE: dict[str, Callable[[int], bytes]] = {
    "keys": lambda n: gguf([kv(f"{i:x}", BOOL, b"\0") for i in range(n)]),
    "empty arrays": lambda n: gguf([kv(f"{i:x}", ARRAY, array(0, 0, b"")) for i in range(n)]),
    "nested empty arrays": lambda n: gguf([kv("a", ARRAY, array(ARRAY, n, array(0, 0, b"") * n))]),
    "short strings": lambda n: gguf([kv("a", ARRAY, array(STRING, n, b"".join(string(f"{i:x}") for i in range(n))))]),
    "wide strings": lambda n: gguf([kv("a", ARRAY, array(STRING, n, string("\u0101") * n))]),
    "tensors": lambda n: gguf(
        [kv("general.alignment", UINT32, u32(1))],
        [tensor(f"{i:x}", [1], 24, i) for i in range(n)],
        bytes(n),
        alignment=1,
    ),
}


@pytest.mark.parametrize("kind", DENSE)
def test_memory_is_a_small_multiple_of_the_file(model: Callable[[bytes], Path], kind: str) -> None:
    path = model(DENSE[kind](4000))
    peak = peak_bytes(lambda: GGUFFile.open(path))
    assert peak < OPENER_BYTES + 24 * path.stat().st_size


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"absent\.gguf does not exist"):
        GGUFFile.open(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match=r"is a folder, but a GGUF file is needed"):
        GGUFFile.open(tmp_path)
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(ModelFileError, match=r"cannot be read: Not a directory"):
        GGUFFile.open(tmp_path / "file" / "model.gguf")
    with pytest.raises(ModelFileError, match=r"cannot be read"):
        GGUFFile.open("a\0b")
    with pytest.raises(ModelFileError, match=r"not a regular file"):
        GGUFFile.open("/dev/zero")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="not a regular file"):
        GGUFFile.open(tmp_path / "pipe")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read anything")
def test_a_file_without_read_permission(model: Callable[[bytes], Path]) -> None:
    path = model(small_file())
    path.chmod(0)
    with pytest.raises(ModelFileError, match="cannot be read: Permission denied"):
        GGUFFile.open(path)
