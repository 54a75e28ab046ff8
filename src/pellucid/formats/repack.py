"""Weights that safetensors holds as codes and scales: MXFP4 as gpt-oss stores it, FP8 with block scales."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

UInt8Array = npt.NDArray[np.uint8]
Float32Array = npt.NDArray[np.float32]

MXFP4_GROUP: Final = 32
FP8_BLOCK: Final = 128


def mxfp4_blocks(codes: UInt8Array, scales: UInt8Array) -> UInt8Array:
    """ggml's MXFP4 blocks [n · 17] of codes [n, 16] and exponents [n]; every bit of a number stays.

    In gpt-oss byte j of a group holds elements 2 j (low nibble) and 2 j + 1, in ggml elements j and j + 16.
    """
    blocks = np.empty((len(codes), 17), dtype=np.uint8)
    blocks[:, 0] = scales
    elements = np.empty((len(codes), MXFP4_GROUP), dtype=np.uint8)
    elements[:, 0::2] = codes & np.uint8(15)
    elements[:, 1::2] = codes >> np.uint8(4)
    blocks[:, 1:] = elements[:, :16] | (elements[:, 16:] << np.uint8(4))
    return blocks.reshape(-1)


def _e4m3_values() -> Float32Array:
    """The 256 values of an 8-bit float with 4 exponent bits and 3 mantissa bits, bias 7, without infinities
    (OCP 8-bit Floating Point Specification 1.0, section 5.1)."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    size[(codes & 127) == 127] = np.nan
    return np.where(codes < 128, size, -size).astype(np.float32)


E4M3_VALUES: Final = _e4m3_values()


def fp8_values(codes: UInt8Array, scales: Float32Array) -> Float32Array:
    """Float32 [rows, columns] of E4M3 codes [rows, columns] and a scale for each 128 × 128 of them
    [⌈rows / 128⌉, ⌈columns / 128⌉] (DeepSeek-V3, section 3.3.1)."""
    rows, columns = codes.shape
    values = E4M3_VALUES[codes]
    for i in range(scales.shape[0]):
        factors = np.repeat(scales[i], FP8_BLOCK)[:columns]
        values[i * FP8_BLOCK : min((i + 1) * FP8_BLOCK, rows)] *= factors
    return values


def are_powers_of_two(scales: Float32Array) -> bool:
    """Whether values times these scales are exact in bfloat16, whose exponents are float32's (as they are where a
    model's scales have the format ue8m0), away from the smallest numbers."""
    mantissas, exponents = np.frexp(scales)
    return bool(((mantissas == 0.5) & (exponents > -100) & (exponents < 100)).all())
