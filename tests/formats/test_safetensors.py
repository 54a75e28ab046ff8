"""The safetensors reader: good files as the format's own library reads them, hostile ones refused in one sentence."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pellucid.errors import ModelFileError
from pellucid.formats.safetensors import ITEM_BYTES, MAX_HEADER_BYTES, read_folder, read_safetensors

LIBRARY_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
}
WITH_FILES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


def file_bytes(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


shapes = st.lists(st.integers(0, 5), max_size=4)


@WITH_FILES
@given(
    tensors=st.dictionaries(st.text(min_size=1, max_size=8), st.tuples(st.sampled_from(sorted(LIBRARY_DTYPES)), shapes))
)
def test_good_files_as_the_library_reads_them(tmp_path: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    numpy_io = pytest.importorskip("safetensors.numpy")
    tensors.pop("__metadata__", None)
    rng = np.random.default_rng(0)
    arrays = {}
    for name, (dtype, shape) in tensors.items():
        size = int(np.prod(shape)) * np.dtype(LIBRARY_DTYPES[dtype]).itemsize
        arrays[name] = rng.integers(0, 256, size, dtype=np.uint8).view(LIBRARY_DTYPES[dtype]).reshape(shape)
    path = tmp_path / "m.safetensors"
    numpy_io.save_file(arrays, path, metadata={"format": "np"})
    ours, theirs = read_safetensors(path), numpy_io.load_file(path)
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (tensors[name][0], values.shape)
        assert ours[name].data.tobytes() == values.tobytes()


HOSTILE: list[tuple[str, bytes, str]] = [
    ("empty", b"", "the file is empty"),
    ("short", b"1234", "too few"),
    ("length beyond the file", file_bytes({}, length=10**6), "is cut or not a safetensors file"),
    ("length of 2**64 - 1", file_bytes({}, length=2**64 - 1), "is cut or not a safetensors file"),
    ("not JSON", file_bytes(b"{" * 100), "not valid JSON"),
    ("not UTF-8", file_bytes(b'{"\xff": 1}'), "not valid JSON"),
    ("deep", file_bytes(b"[" * 200_000), "not valid JSON"),
    ("a list", file_bytes(b"[]"), "must be a JSON object"),
    ("twice", file_bytes(b'{"a": 1, "a": 2}'), "names something twice"),
    ("no entry", file_bytes({"a": 5}), "no sound dtype"),
    ("no shape", file_bytes({"a": {"dtype": "F32", "data_offsets": [0, 0]}}), "no sound dtype"),
    ("negative", file_bytes({"a": entry("F32", [-1], 0, 0)}), "no sound dtype"),
    ("a true size", file_bytes({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"1234"), "no sound"),
    ("a float size", file_bytes({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}, b"1234"), "no sound"),
    ("nine dimensions", file_bytes({"a": entry("F32", [1] * 9, 0, 4)}, b"1234"), "no sound dtype"),
    ("unknown type", file_bytes({"a": entry("F4", [1], 0, 4)}, b"1234"), "is of type 'F4', which is not supported"),
    ("beyond the file", file_bytes({"a": entry("F32", [2], 0, 8)}, b"1234"), "do not give them"),
    ("other size", file_bytes({"a": entry("F32", [2], 0, 4)}, b"1234"), "takes 8 bytes"),
    ("overflow", file_bytes({"a": entry("F32", [2**40, 2**40], 0, 4)}, b"1234"), "do not give them"),
    ("backwards", file_bytes({"a": entry("F32", [1], 4, 0)}, b"1234"), "do not give them"),
    ("overlap", file_bytes({"a": entry("U8", [3], 0, 3), "b": entry("U8", [3], 2, 5)}, b"12345"), "overlap"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "message"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_hostile_files_are_one_sentence(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as caught:
        read_safetensors(path)
    assert message in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(sorted(ITEM_BYTES)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "__metadata__", "a"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@WITH_FILES
@given(header=st.dictionaries(st.text(max_size=4), JSON, max_size=3), data=st.binary(max_size=40))
def test_any_header_is_read_within_the_file_or_refused(tmp_path: Path, header: dict[str, Any], data: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(file_bytes(header, data))
    try:
        tensors = read_safetensors(path)
    except ModelFileError:
        return
    assert sum(len(tensor.data) for tensor in tensors.values()) <= len(data)


@WITH_FILES
@given(cut=st.integers(0, 200), flips=st.lists(st.tuples(st.integers(0, 199), st.integers(1, 255)), max_size=3))
def test_cut_and_damaged_files(tmp_path: Path, cut: int, flips: list[tuple[int, int]]) -> None:
    whole = bytearray(file_bytes({"a": entry("F32", [2, 3], 0, 24), "b": entry("U8", [4], 24, 28)}, bytes(range(28))))
    for at, mask in flips:
        if at < len(whole):
            whole[at] ^= mask
    path = tmp_path / "m.safetensors"
    path.write_bytes(whole[: max(0, len(whole) - cut)])
    try:
        tensors = read_safetensors(path)
    except ModelFileError:
        return
    assert all(tensor.data.tobytes() in bytes(whole) for tensor in tensors.values())


def test_the_header_is_bounded() -> None:
    assert MAX_HEADER_BYTES == 100_000_000


def test_shards(tmp_path: Path) -> None:
    one = file_bytes({"a": entry("U8", [2], 0, 2)}, b"ab")
    two = file_bytes({"b": entry("U8", [1], 0, 1)}, b"c")
    (tmp_path / "m-1.safetensors").write_bytes(one)
    (tmp_path / "m-2.safetensors").write_bytes(two)
    index = tmp_path / "model.safetensors.index.json"

    def write(places: Any) -> None:
        index.write_text(json.dumps({"weight_map": places}))

    write({"a": "m-1.safetensors", "b": "m-2.safetensors"})
    assert {name: tensor.data.tobytes() for name, tensor in read_folder(tmp_path).items()} == {"a": b"ab", "b": b"c"}
    bad: list[tuple[Any, str]] = [
        ({}, "missing or empty"),
        ({"a": "../m-1.safetensors"}, "which is no shard"),
        ({"a": "m-1.bin"}, "which is no shard"),
        ({"a": 5}, "which is no shard"),
        ({"a": "m-1.safetensors", "b": "m-3.safetensors"}, "shard m-3.safetensors is missing"),
        ({"a": "m-1.safetensors", "c": "m-2.safetensors"}, "m-2.safetensors: tensor 'c' is missing"),
    ]
    for places, message in bad:
        write(places)
        with pytest.raises(ModelFileError, match=message.replace(".", r"\.")):
            read_folder(tmp_path)
    (tmp_path / "m-2.safetensors").write_bytes(one)
    write({"a": "m-1.safetensors", "b": "m-2.safetensors"})
    with pytest.raises(ModelFileError, match="tensor 'a' is in another shard too"):
        read_folder(tmp_path)
    (tmp_path / "m-2.safetensors").write_bytes(two[:-1])
    with pytest.raises(ModelFileError, match=r"m-2\.safetensors: tensor 'b'"):
        read_folder(tmp_path)


def test_pickles_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(ModelFileError, match=r"pytorch_model\.bin is a pickle file, which may run any program"):
        read_folder(tmp_path)
