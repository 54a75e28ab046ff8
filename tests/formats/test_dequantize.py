"""Each served type against the `gguf` package, bit for bit, and each block layout against numbers worked by hand."""

from __future__ import annotations

import warnings

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.formats import block_types
from pellucid.formats.block_types import BLOCK_TYPES, BlockType
from pellucid.formats.dequantize import DEQUANTIZABLE, dequantize

SERVED = [
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
]  # fmt: skip

HALF_FIELDS = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "F16": (0,),
}  # fmt: skip
"""Where the halves of a block are."""

EDGE_HALVES = np.array(
    [0.0, -0.0, 1.0, -1.0, 65504.0, -65504.0, 6.1e-5, 5.96e-8, -5.96e-8, 3.0e-6, 1 / 3, np.inf, -np.inf, np.nan], "<f2"
)
"""Zeros, the largest half, the least normal one, subnormal ones, and what a damaged file may hold."""


def theirs(data: npt.NDArray[np.uint8], block_type: BlockType, rows: int) -> npt.NDArray[np.float32]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = gguf.GGMLQuantizationType[block_type.name]
        return np.asarray(gguf.quants.dequantize(data.reshape(rows, -1), kind))


def check(data: npt.NDArray[np.uint8], block_type: BlockType, shape: tuple[int, int]) -> None:
    ours = dequantize(data, block_type, shape)
    expected = theirs(data, block_type, shape[0])
    assert ours.dtype == np.float32
    assert ours.shape == expected.shape == shape
    same = (ours.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(ours) & np.isnan(expected))
    assert same.all(), f"{block_type.name}: {(~same).sum()} of {same.size} elements differ"


def test_the_served_types_are_those_promised() -> None:
    assert {t.name for t in DEQUANTIZABLE} == set(SERVED)


@pytest.mark.parametrize("name", SERVED)
def test_random_blocks(name: str) -> None:
    block_type: BlockType = getattr(block_types, name)
    rows, blocks = 64, 5
    data = np.random.default_rng(7).integers(0, 256, rows * blocks * block_type.type_size, dtype=np.uint8)
    check(data, block_type, (rows, blocks * block_type.block_size))


@pytest.mark.parametrize("name", HALF_FIELDS)
def test_edge_scales(name: str) -> None:
    block_type: BlockType = getattr(block_types, name)
    count = len(EDGE_HALVES) ** 2
    blocks = np.random.default_rng(8).integers(0, 256, (count, block_type.type_size), dtype=np.uint8)
    for at, halves in zip(HALF_FIELDS[name], np.meshgrid(EDGE_HALVES, EDGE_HALVES), strict=False):
        blocks[:, at : at + 2] = halves.reshape(-1, 1).view(np.uint8)
    check(blocks.reshape(-1), block_type, (count, block_type.block_size))


def test_every_exponent_of_mxfp4() -> None:
    blocks = np.random.default_rng(9).integers(0, 256, (256, 17), dtype=np.uint8)
    blocks[:, 0] = np.arange(256)
    check(blocks.reshape(-1), block_types.MXFP4, (256, 32))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), name=st.sampled_from(SERVED))
def test_any_bytes(data: st.DataObject, name: str) -> None:
    block_type: BlockType = getattr(block_types, name)
    count = data.draw(st.integers(1, 3))
    raw = data.draw(st.binary(min_size=count * block_type.type_size, max_size=count * block_type.type_size))
    check(np.frombuffer(raw, np.uint8), block_type, (count, block_type.block_size))


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("F32", "0000803f", {0: 1.0}),
        ("F16", "00c0", {0: -2.0}),
        ("BF16", "40c0", {0: -3.0}),
        # d = 2: nibbles 1 (element 0) and 15 (element 16) of byte 0, the rest 0.
        ("Q4_0", "0040" + "f1" + "00" * 15, {0: -14.0, 16: 14.0, 1: -16.0}),
        ("Q4_1", "0040" + "003c" + "f1" + "00" * 15, {0: 3.0, 16: 31.0, 1: 1.0}),
        # fifth bits of elements 0 and 17.
        ("Q5_0", "0040" + "01000200" + "f1" + "00" * 15, {0: 2.0, 16: -2.0, 17: 0.0, 1: -32.0}),
        ("Q5_1", "0040" + "003c" + "01000200" + "f1" + "00" * 15, {0: 35.0, 16: 31.0, 17: 33.0, 1: 1.0}),
        ("Q8_0", "0040" + "ff7f80" + "00" * 29, {0: -2.0, 1: 254.0, 2: -256.0, 3: 0.0}),
        ("IQ4_NL", "0040" + "f1" + "00" * 15, {0: -208.0, 16: 226.0, 1: -254.0}),
        # e = 127 is a scale of 1; codes 1 and 15 are 0.5 and −6.
        ("MXFP4", "7f" + "f1" + "00" * 15, {0: 0.5, 16: -6.0, 1: 0.0}),
    ],
)
def test_blocks_worked_by_hand(name: str, raw: str, expected: dict[int, float]) -> None:
    block_type: BlockType = getattr(block_types, name)
    values = dequantize(np.frombuffer(bytes.fromhex(raw), np.uint8), block_type, (block_type.block_size,))
    assert {index: values[index] for index in expected} == expected


def test_a_tensor_larger_than_one_chunk_and_of_three_dimensions() -> None:
    data = np.random.default_rng(10).integers(0, 256, 300 * 4 * 8 * 34, dtype=np.uint8)
    values = dequantize(data, block_types.Q8_0, (300, 4, 256))
    np.testing.assert_array_equal(
        values.reshape(1200, 256).view(np.uint32), theirs(data, block_types.Q8_0, 1200).view(np.uint32)
    )


def test_the_result_is_a_writable_copy_even_for_f32() -> None:
    data = np.frombuffer(b"\0\0\x80?" * 4, np.uint8)
    values = dequantize(data, block_types.F32, (2, 2))
    values[0, 0] = 5
    assert data[:4].tobytes() == b"\0\0\x80?"


@pytest.mark.parametrize("block_type", [t for t in BLOCK_TYPES.values() if not t.served], ids=lambda t: t.name)
def test_other_types_are_named(block_type: BlockType) -> None:
    with pytest.raises(UnsupportedModelError, match=f"^tensor type {block_type.name} is not supported: use .*Q4_K"):
        dequantize(np.zeros(block_type.type_size, np.uint8), block_type, (block_type.block_size,))


def test_bytes_that_do_not_fit_the_shape() -> None:
    with pytest.raises(ModelFileError, match=r"a Q4_0 tensor of shape \(2, 32\) takes 36 bytes, but 35 are given"):
        dequantize(np.zeros(35, np.uint8), block_types.Q4_0, (2, 32))
    with pytest.raises(ModelFileError, match=r"shape \(2, 33\) do not divide into Q4_0 blocks of 32"):
        dequantize(np.zeros(36, np.uint8), block_types.Q4_0, (2, 33))
