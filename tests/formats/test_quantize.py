"""Quantisers against the `gguf` package, byte for byte, and against the error each type's step allows."""

from __future__ import annotations

import warnings

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pellucid.errors import InvalidParameterError, UnsupportedModelError
from pellucid.formats import block_types
from pellucid.formats.block_types import BlockType
from pellucid.formats.dequantize import dequantize
from pellucid.formats.quantize import QUANTIZABLE, quantize

STEPS = {"Q4_0": 8, "Q4_1": 15, "Q5_0": 16, "Q5_1": 31, "Q8_0": 127}
"""Steps from zero to the largest magnitude, or from the smallest to the largest value for the types with a minimum."""


SIMPLE = tuple(t for t in QUANTIZABLE if not t.name.endswith("_K"))
"""Those whose rule is ggml's; the K types are held to its errors in models/test_quantization.py."""


def theirs(values: npt.NDArray[np.float32], block_type: BlockType) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[block_type.name]).tobytes()


def test_the_types_are_those_promised() -> None:
    assert {t.name for t in QUANTIZABLE} == {"F32", "F16", "BF16", *STEPS, "Q4_K", "Q5_K", "Q6_K"}


@pytest.mark.parametrize("block_type", SIMPLE, ids=lambda t: t.name)
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3, 1e-6, 1e-20])
def test_random_values(block_type: BlockType, scale: float) -> None:
    values = (np.random.default_rng(3).standard_normal((400, 96)) * scale).astype(np.float32)
    values[0] = 0
    values[1] = scale
    values[2] = -np.abs(values[2])
    values[3] = np.round(values[3] / np.float32(scale)) * np.float32(scale / 2)
    assert quantize(values, block_type).tobytes() == theirs(values, block_type)


@pytest.mark.parametrize("block_type", SIMPLE, ids=lambda t: t.name)
def test_values_next_to_a_tie(block_type: BlockType) -> None:
    # Halves and their neighbours: where an added half and a truncation would round twice.
    ties = np.arange(-8, 8, dtype=np.float32)[:, None] + np.float32(0.5)
    values = np.concatenate([ties, np.nextafter(ties, np.float32(99)), np.nextafter(ties, np.float32(-99))], axis=1)
    blocks = np.zeros((16, 32), np.float32)
    blocks[:, :3] = values
    for largest in (8, -8, 15, 16, -16, 31, 127, -127):
        blocks[:, 3] = largest
        assert quantize(blocks, block_type).tobytes() == theirs(blocks, block_type)


FINITE = st.floats(-60000, 60000, width=32).filter(lambda x: x == 0 or abs(x) > 1e-30)


@settings(max_examples=150, deadline=None)
@given(values=hnp.arrays(np.float32, (2, 32), elements=FINITE), block_type=st.sampled_from(SIMPLE))
def test_any_values(values: npt.NDArray[np.float32], block_type: BlockType) -> None:
    assert quantize(values, block_type).tobytes() == theirs(values, block_type)


@pytest.mark.parametrize("name", STEPS)
def test_round_trip_error_is_within_a_step(name: str) -> None:
    block_type: BlockType = getattr(block_types, name)
    values = np.random.default_rng(4).standard_normal((200, 64)).astype(np.float32)
    back = dequantize(quantize(values, block_type), block_type, values.shape)
    blocks = values.reshape(-1, 32)
    affine = name.endswith("_1")
    span = np.ptp(blocks, axis=1) if affine else np.abs(blocks).max(axis=1)
    # Half a step, but a whole one at the end the symmetric types have no level for; and the half scale's rounding.
    bound = span / STEPS[name] * (1.0 if name in ("Q4_0", "Q5_0") else 0.5) + np.abs(blocks).max(axis=1) * 2**-9
    assert (np.abs(back.reshape(-1, 32) - blocks).max(axis=1) <= bound).all()


@pytest.mark.parametrize("block_type", SIMPLE, ids=lambda t: t.name)
def test_subnormal_blocks_become_zero_not_noise(block_type: BlockType) -> None:
    values = np.full((1, 32), 1e-42, np.float32)
    values[0, 5] = -1e-42
    back = dequantize(quantize(values, block_type), block_type, (1, 32))
    assert np.abs(back).max() <= 1.01e-42


def test_bfloat16_keeps_nan_and_infinity() -> None:
    bits = np.array([0x7F800001, 0xFF800001, 0x7F800000, 0xFF800000, 0x7F7FFFFF], "<u4")
    values = bits.view(np.float32)
    assert quantize(values, block_types.BF16).tobytes() == theirs(values, block_types.BF16)
    assert np.isnan(dequantize(quantize(values, block_types.BF16), block_types.BF16, (5,))[:2]).all()


def test_a_tensor_larger_than_one_chunk() -> None:
    values = np.random.default_rng(5).standard_normal((1100, 256)).astype(np.float32)
    assert quantize(values, block_types.Q4_1).tobytes() == theirs(values, block_types.Q4_1)


def test_refusals() -> None:
    with pytest.raises(InvalidParameterError, match=r"shape \(33,\) do not divide into Q8_0 blocks of 32"):
        quantize(np.zeros(33, np.float32), block_types.Q8_0)
    with pytest.raises(UnsupportedModelError, match="quantising to IQ4_XS is not supported: use F32"):
        quantize(np.zeros(256, np.float32), block_types.IQ4_XS)
    for bad in (np.nan, np.inf):
        with pytest.raises(InvalidParameterError, match="must be finite to be quantised to Q4_0"):
            quantize(np.full(32, bad, np.float32), block_types.Q4_0)
    for block_type in (block_types.F16, block_types.Q8_0, block_types.Q4_1):
        with pytest.raises(InvalidParameterError, match="too large for float16"):
            quantize(np.full(32, 1e30, np.float32), block_type)
