"""The GGUF writer: what it writes is read back by our reader and by the `gguf` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pellucid.errors import InvalidParameterError, ModelFileError
from pellucid.formats import block_types
from pellucid.formats.gguf import GGUFFile
from pellucid.formats.gguf_writer import write_gguf
from pellucid.formats.quantize import QUANTIZABLE, quantize

DTYPES = [np.dtype(f"<{kind}{size}") for kind in "uif" for size in (1, 2, 4, 8) if kind != "f" or size > 2]
DTYPES.append(np.dtype("?"))

SMALL_BLOCKS = tuple(t for t in QUANTIZABLE if t.block_size <= 32)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, st.integers(0, 5)))
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(width=32),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=5),
    ARRAYS,
    ARRAYS.filter(len).map(lambda array: array[0]),
    st.lists(ARRAYS, min_size=1, max_size=3),
)


def same(ours: Any, given: Any) -> bool:
    if isinstance(given, list):
        return isinstance(ours, list) and len(ours) == len(given) and all(map(same, ours, given))
    if isinstance(given, np.ndarray):
        return bool(ours.dtype == given.dtype and ours.tobytes() == given.tobytes())
    if isinstance(given, float | np.floating):
        return isinstance(ours, float) and (ours == float(given) or bool(np.isnan(ours) and np.isnan(given)))
    return bool(ours == given) and isinstance(ours, bool) == isinstance(given, bool | np.bool_)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    metadata=st.dictionaries(NAMES.filter(lambda key: key != "general.alignment"), VALUES, max_size=6),
    tensors=st.dictionaries(
        NAMES, st.tuples(st.sampled_from(SMALL_BLOCKS), st.lists(st.integers(1, 3), max_size=3)), max_size=4
    ),
    alignment=st.sampled_from([1, 8, 32, 64]),
    version=st.sampled_from([2, 3]),
)
def test_round_trip(
    tmp_path: Path, metadata: dict[str, Any], tensors: dict[str, Any], alignment: int, version: int
) -> None:
    path = tmp_path / "model.gguf"
    metadata = {"general.alignment": alignment, **metadata}
    written = {}
    for seed, (name, (block_type, outer)) in enumerate(tensors.items()):
        values = np.random.default_rng(seed).standard_normal((*outer, 32)).astype(np.float32)
        written[name] = (values.shape, block_type, quantize(values, block_type))
    write_gguf(path, metadata, written, version=version)
    with GGUFFile.open(path) as file:
        assert (file.version, file.alignment) == (version, alignment)
        assert list(file.metadata) == list(metadata)
        assert all(same(file.metadata[key], value) for key, value in metadata.items())
        assert list(file.tensors) == list(written)
        for name, (shape, block_type, data) in written.items():
            tensor = file.tensors[name]
            assert (tensor.shape, tensor.type) == (shape, block_type)
            assert tensor.offset % alignment == 0
            assert tensor.data.tobytes() == data.tobytes()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("version", [2, 3])
def test_the_gguf_package_reads_it(tmp_path: Path, version: int) -> None:
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.alignment": 64,
        "a.uint32": 7,
        "a.int32": -7,
        "a.uint64": 2**63,
        "a.int64": -(2**40),
        "a.float32": 0.5,
        "a.bool": True,
        "a.strings": ["x", "日本", ""],
        "a.ints": [1, -2],
        "a.floats": [0.5, -1.0],
        "a.bools": [True, False],
    } | {f"n.{dtype.name}": dtype.type(1) for dtype in DTYPES}
    values = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    tensors = {t.name: (values.shape, t, quantize(values, t)) for t in SMALL_BLOCKS}
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata, tensors, version=version)
    reader = gguf.GGUFReader(path)
    for key, value in metadata.items():
        assert reader.fields[key].contents() == value
    types = {key: reader.fields[key].types[-1].name for key in metadata}
    assert [types[f"a.{kind}"] for kind in ("uint32", "int32", "uint64", "int64", "float32", "bool")] == [
        "UINT32", "INT32", "UINT64", "INT64", "FLOAT32", "BOOL",
    ]  # fmt: skip
    assert [types[f"n.{dtype.name}"] for dtype in DTYPES] == [dtype.name.upper() for dtype in DTYPES]
    assert [t.name for t in reader.tensors] == list(tensors)
    for theirs in reader.tensors:
        shape, block_type, data = tensors[theirs.name]
        assert theirs.tensor_type.name == block_type.name
        assert tuple(reversed(theirs.shape.tolist())) == shape
        assert theirs.data.tobytes() == data.tobytes()


def test_surrogate_escapes_are_written_as_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tokens = [b"\xff".decode("utf-8", "surrogateescape"), "ok"]
    write_gguf(path, {"tokens": tokens}, {})
    assert b"\x01\0\0\0\0\0\0\0\xff" in path.read_bytes()
    assert GGUFFile.open(path).metadata["tokens"] == tokens


def test_empty_file_and_bytes_as_tensor(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, {}, {})
    file = GGUFFile.open(path)
    assert (file.metadata, file.tensors) == ({}, {})
    write_gguf(path, {"none": []}, {"w": ((2,), block_types.F32, b"\0\0\x80?" * 2)})
    assert GGUFFile.open(path).metadata["none"] == [], "no strings, as llama.cpp wants a vocabulary's merges"
    assert GGUFFile.open(path).tensors["w"].data.view("<f4").tolist() == [1.0, 1.0]


F32 = block_types.F32
BAD_METADATA: dict[str, tuple[Any, str]] = {
    "None": (None, "holds a value of type NoneType"),
    "dict": ({"a": 1}, "holds a value of type dict"),
    "mixed list": ([1, "a"], "holds a value of type list"),
    "matrix": (np.zeros((2, 2)), "holds a value of type ndarray"),
    "complex": (np.complex64(1), "holds a value of type complex64"),
    "big int": (2**64, "an integer outside 64 bits"),
    "spread ints": ([-1, 2**64 - 1], "an integer outside 64 bits"),
    "big float": (1e300, "too large for float32"),
}


@pytest.mark.parametrize("case", BAD_METADATA)
def test_values_a_file_cannot_hold(tmp_path: Path, case: str) -> None:
    value, reason = BAD_METADATA[case]
    with pytest.raises(InvalidParameterError, match=f"key 'k' holds {reason}|key 'k' {reason}|key 'k'.*{reason}"):
        write_gguf(tmp_path / "model.gguf", {"k": value}, {})
    assert not list(tmp_path.iterdir())


BAD_TENSORS: dict[str, tuple[Any, str]] = {
    "short": (((4,), F32, bytes(15)), r"shape \(4,\) and type F32 takes 16 bytes, but 15 are given"),
    "no dimensions": (((), F32, bytes(4)), "needs 1 to 4 dimensions"),
    "five dimensions": (((1,) * 5, F32, bytes(4)), "needs 1 to 4 dimensions"),
    "dimension of 0": (((0,), F32, b""), "dimensions of at least 1"),
    "broken block": (((33,), block_types.Q8_0, bytes(34)), "do not divide into Q8_0 blocks"),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_tensors_a_file_cannot_hold(tmp_path: Path, case: str) -> None:
    tensor, reason = BAD_TENSORS[case]
    with pytest.raises(InvalidParameterError, match=f"tensor 'w'.*{reason}"):
        write_gguf(tmp_path / "model.gguf", {}, {"w": tensor})


def test_names_and_options_a_file_cannot_hold(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for arguments, reason in (
        (({"\ud800": 1}, {}), "not valid Unicode"),
        (({"k" * 65536: 1}, {}), "longer than 65,535 bytes"),
        (({}, {"\udcff": ((1,), F32, bytes(4))}), "not valid Unicode"),
        (({"general.alignment": 48}, {}), "must be a power of two"),
        (({"general.alignment": "32"}, {}), "must be a power of two"),
    ):
        with pytest.raises(InvalidParameterError, match=reason):
            write_gguf(path, *arguments)
    with pytest.raises(InvalidParameterError, match="version is 1, but must be 2 or 3"):
        write_gguf(path, {}, {}, version=1)


def test_a_place_that_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"absent/model\.gguf cannot be written: No such file or directory"):
        write_gguf(tmp_path / "absent" / "model.gguf", {}, {})
    (tmp_path / "folder").mkdir()
    with pytest.raises(ModelFileError, match="folder cannot be written"):
        write_gguf(tmp_path / "folder", {}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
