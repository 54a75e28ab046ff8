"""Float32 to blocks: round to nearest within each block's range; the K types search (quantize_k.py).

The results of the others are, byte for byte, those of `gguf.quants.quantize`, which follows ggml's `quantize_row_*_ref`
(ggml-quants.c), except in blocks so small (below about 1e-38) that the inverse of the scale overflows: there the
scale stored as a half is 0, and so is every value. Block layouts are documented in `dequantize`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from pellucid.errors import InvalidParameterError, UnsupportedModelError
from pellucid.formats.block_types import BLOCK_TYPES, CHUNK_ELEMENTS, BlockType
from pellucid.formats.quantize_k import pack_q4_k, pack_q5_k, pack_q6_k

UInt8Array = npt.NDArray[np.uint8]
Float32Array = npt.NDArray[np.float32]


def quantize(values: Float32Array, block_type: BlockType) -> UInt8Array:
    """Pack an array into blocks along its last dimension.

    `values` is float32 of any shape whose last dimension is a multiple of the block size. Returns uint8 [nbytes].
    Raises UnsupportedModelError for a type without a rule here; InvalidParameterError for a shape that does not
    divide into blocks, and for values that the type cannot hold (not finite, or too large for a half scale).
    """
    pack = _PACK.get(block_type.name)
    if pack is None:
        raise UnsupportedModelError(f"quantising to {block_type.name} is not supported: use {', '.join(_PACK)}")
    try:
        nbytes = block_type.nbytes(values.shape)
    except ValueError as error:
        raise InvalidParameterError("values", str(error)) from None
    blocks = np.ascontiguousarray(values, dtype="<f4").reshape(-1, block_type.block_size)
    out = np.empty((len(blocks), block_type.type_size), np.uint8)
    step = CHUNK_ELEMENTS // block_type.block_size
    for start in range(0, len(blocks), step):
        chunk = blocks[start : start + step]
        if block_type.block_size > 1 and not np.isfinite(chunk).all():
            raise InvalidParameterError("values", f"values must be finite to be quantised to {block_type.name}")
        out[start : start + step] = pack(chunk)
    return out.reshape(nbytes)


def _half_bytes(values: Float32Array) -> UInt8Array:
    """Float32 [n, k] to the bytes of halves [n, 2 k]; refuses finite values that a half cannot hold."""
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    if (np.isinf(halves) & np.isfinite(values)).any():
        raise InvalidParameterError("values", "values are too large for float16: use BF16 or F32")
    packed: UInt8Array = halves.view(np.uint8)
    return packed


def _inverse(scales: Float32Array) -> Float32Array:
    """1 / scale, and 0 for 0."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse: Float32Array = np.where(scales == 0, np.float32(0), np.float32(1) / scales)
    return inverse


def _levels(values: Float32Array, offset: float, levels: int) -> UInt8Array:
    """trunc(value + offset) within 0 … levels − 1; the offset holds the half that makes it rounding."""
    # The inverse of a subnormal scale is infinite, and infinity times 0 is NaN; the half scale is then 0 anyway.
    shifted = np.nan_to_num(values + np.float32(offset), nan=0.0)
    whole: UInt8Array = np.trunc(np.clip(shifted, 0, levels - 1)).astype(np.uint8)
    return whole


def _nibbles(q: UInt8Array) -> UInt8Array:
    """[n, 32] to [n, 16]: element i in the low nibble of byte i, element i + 16 in the high one."""
    return (q[:, :16] & np.uint8(15)) | (q[:, 16:] << np.uint8(4))


def _fifth_bits(q: UInt8Array) -> UInt8Array:
    """[n, 32] to [n, 4]: bit i of the 32 is the fifth bit of element i."""
    return np.packbits(q >> np.uint8(4), axis=1, bitorder="little")


def _symmetric(blocks: Float32Array, levels: int) -> tuple[UInt8Array, UInt8Array]:
    """Scale bytes [n, 2] and q [n, 32] of x = d (q − levels / 2): the value of largest magnitude gets q = 0."""
    at = np.abs(blocks).argmax(axis=1, keepdims=True)
    scales = np.take_along_axis(blocks, at, axis=1) / np.float32(-levels / 2)
    with np.errstate(invalid="ignore", over="ignore"):
        q = _levels(blocks * _inverse(scales), levels / 2 + 0.5, levels)
    return _half_bytes(scales), q


def _affine(blocks: Float32Array, levels: int) -> tuple[UInt8Array, UInt8Array]:
    """Scale and minimum bytes [n, 4] and q [n, 32] of x = d q + m: m is the smallest value, d m's distance to the
    largest over the number of steps."""
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", over="ignore"):
        scales = (high - low) / np.float32(levels - 1)
        q = _levels((blocks - low) * _inverse(scales), 0.5, levels)
    return _half_bytes(np.concatenate([scales, low], axis=1)), q


def _pack_f32(blocks: Float32Array) -> UInt8Array:
    return blocks.view(np.uint8)


def _pack_f16(blocks: Float32Array) -> UInt8Array:
    return _half_bytes(blocks)


def _pack_bf16(blocks: Float32Array) -> UInt8Array:
    """Round to nearest, ties to even; NaN becomes a quiet NaN."""
    bits = blocks.view("<u4").astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    upper = np.where(np.isnan(blocks), (bits >> np.uint64(16)) | np.uint64(0x40), rounded)
    return upper.astype("<u2").view(np.uint8)


def _pack_q4_0(blocks: Float32Array) -> UInt8Array:
    scales, q = _symmetric(blocks, 16)
    return np.concatenate([scales, _nibbles(q)], axis=1)


def _pack_q4_1(blocks: Float32Array) -> UInt8Array:
    scales, q = _affine(blocks, 16)
    return np.concatenate([scales, _nibbles(q)], axis=1)


def _pack_q5_0(blocks: Float32Array) -> UInt8Array:
    scales, q = _symmetric(blocks, 32)
    return np.concatenate([scales, _fifth_bits(q), _nibbles(q)], axis=1)


def _pack_q5_1(blocks: Float32Array) -> UInt8Array:
    scales, q = _affine(blocks, 32)
    return np.concatenate([scales, _fifth_bits(q), _nibbles(q)], axis=1)


def _pack_q8_0(blocks: Float32Array) -> UInt8Array:
    """d is the largest magnitude over 127; halves round away from zero."""
    magnitudes = np.abs(blocks)
    scales = magnitudes.max(axis=1, keepdims=True) / np.float32(127)
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.nan_to_num(magnitudes * _inverse(scales), nan=0.0)
        whole = np.floor(steps)
        # Adding a half and truncating would round 0.49999997 up: the sum itself rounds to 1.
        nearest = np.minimum(whole + (steps - whole >= 0.5), 127).astype(np.int8)
    q = np.where(np.signbit(blocks), -nearest, nearest)
    return np.concatenate([_half_bytes(scales), q.view(np.uint8)], axis=1)


_PACK: Final[dict[str, Callable[[Float32Array], UInt8Array]]] = {
    "F32": _pack_f32,
    "F16": _pack_f16,
    "BF16": _pack_bf16,
    "Q4_0": _pack_q4_0,
    "Q4_1": _pack_q4_1,
    "Q5_0": _pack_q5_0,
    "Q5_1": _pack_q5_1,
    "Q8_0": _pack_q8_0,
    "Q4_K": pack_q4_k,
    "Q5_K": pack_q5_k,
    "Q6_K": pack_q6_k,
}

QUANTIZABLE: Final[tuple[BlockType, ...]] = tuple(t for t in BLOCK_TYPES.values() if t.name in _PACK)
"""The types `quantize` serves."""
