"""Blocks to float32 in plain NumPy: the readable reference that faster kernels are checked against.

Each function takes blocks as uint8 [n, type_size] and returns float32 [n, block_size]. Its docstring lists the
fields of a block in the order of their bytes; `half` is a float16, numbers are little-endian. The formulas
are those of ggml's `dequantize_row_*` (ggml-quants.c), computed in float32 in the same order of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.formats.block_types import BLOCK_TYPES, CHUNK_ELEMENTS, BlockType

UInt8Array = npt.NDArray[np.uint8]
Float32Array = npt.NDArray[np.float32]

_IQ4_VALUES: Final = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32
)
"""The 16 levels of IQ4_NL and IQ4_XS (kvalues_iq4nl in ggml-common.h)."""

_E2M1_VALUES: Final = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)
"""Twice the 16 values of a float with 2 exponent bits and 1 mantissa bit (OCP Microscaling Formats 1.0, 5.3.3)."""


def dequantize(data: UInt8Array, block_type: BlockType, shape: Sequence[int]) -> Float32Array:
    """Expand a tensor's bytes.

    `data` is uint8 [nbytes], `shape` the tensor's shape in NumPy order. Returns a new float32 array of `shape`.
    Raises UnsupportedModelError for a type without a formula here, ModelFileError where bytes and shape disagree.
    """
    expand = _EXPAND.get(block_type.name)
    if expand is None:
        raise UnsupportedModelError(
            f"tensor type {block_type.name} is not supported: use a model with {', '.join(_EXPAND)} tensors"
        )
    try:
        nbytes = block_type.nbytes(shape)
    except ValueError as error:
        raise ModelFileError(str(error)) from None
    if len(data) != nbytes:
        raise ModelFileError(
            f"a {block_type.name} tensor of shape {tuple(shape)} takes {nbytes:,} bytes, but {len(data):,} are given"
        )
    blocks = data.reshape(-1, block_type.type_size)
    out = np.empty((len(blocks), block_type.block_size), np.float32)
    step = CHUNK_ELEMENTS // block_type.block_size
    # Scales of a damaged file may be infinite; that is for the caller to notice, not a NumPy warning.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), step):
            out[start : start + step] = expand(blocks[start : start + step])
    return out.reshape(tuple(shape))


def _half(blocks: UInt8Array, at: int) -> Float32Array:
    """The float16 at byte `at` of each block, as float32 [n, 1]."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def _fields(packed: UInt8Array, bits: int, group: int) -> UInt8Array:
    """Unpack small unsigned fields, [n, bytes] to [n, bytes · 8 / bits].

    The bytes come in groups of `group`; a group gives first the lowest `bits` of each of its bytes, then the next
    lowest, and so on: ggml's order, in which one shift serves a whole vector register.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    grouped = packed.reshape(len(packed), -1, 1, group)
    return ((grouped >> shifts) & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)


def _bits(packed: UInt8Array) -> UInt8Array:
    """[n, bytes] to [n, 8 · bytes], lowest bit of the first byte first."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _scaled(scales: Float32Array, values: npt.NDArray[np.generic]) -> Float32Array:
    """Multiply runs of consecutive values, [n, s] scales and [n, s · run] values to [n, s, run]."""
    return scales[:, :, None] * values.reshape(*scales.shape, -1).astype(np.float32)


def _flat(values: Float32Array) -> Float32Array:
    return values.reshape(len(values), -1)


def _expand_f32(blocks: UInt8Array) -> Float32Array:
    """4 bytes: float32."""
    return blocks.view("<f4")


def _expand_f16(blocks: UInt8Array) -> Float32Array:
    """2 bytes: half."""
    return blocks.view("<f2").astype(np.float32)


def _expand_bf16(blocks: UInt8Array) -> Float32Array:
    """2 bytes: the upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


def _expand_q4_0(blocks: UInt8Array) -> Float32Array:
    """18 bytes, 32 elements: half d · 16 bytes q, element i < 16 in the low nibble, i + 16 in the high one.

    x = d (q − 8).
    """
    return _half(blocks, 0) * (_fields(blocks[:, 2:], 4, 16).astype(np.float32) - 8)


def _expand_q4_1(blocks: UInt8Array) -> Float32Array:
    """20 bytes, 32 elements: half d · half m · 16 bytes q as in Q4_0.

    x = d q + m.
    """
    return _half(blocks, 0) * _fields(blocks[:, 4:], 4, 16).astype(np.float32) + _half(blocks, 2)


def _expand_q5_0(blocks: UInt8Array) -> Float32Array:
    """22 bytes, 32 elements: half d · 32 bits, bit i the fifth bit of q_i · 16 bytes, low four bits as in Q4_0.

    x = d (q − 16).
    """
    q = _fields(blocks[:, 6:], 4, 16) | (_bits(blocks[:, 2:6]) << np.uint8(4))
    return _half(blocks, 0) * (q.astype(np.float32) - 16)


def _expand_q5_1(blocks: UInt8Array) -> Float32Array:
    """24 bytes, 32 elements: half d · half m · 32 fifth bits · 16 bytes as in Q5_0.

    x = d q + m.
    """
    q = _fields(blocks[:, 8:], 4, 16) | (_bits(blocks[:, 4:8]) << np.uint8(4))
    return _half(blocks, 0) * q.astype(np.float32) + _half(blocks, 2)


def _expand_q8_0(blocks: UInt8Array) -> Float32Array:
    """34 bytes, 32 elements: half d · 32 int8 q.

    x = d q.
    """
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _expand_q2_k(blocks: UInt8Array) -> Float32Array:
    """84 bytes, 256 elements: 16 bytes, each a scale (low nibble) and a minimum (high) of 16 elements ·
    64 bytes of 2-bit q, four runs of 32 elements to every 32 bytes · half d · half dmin.

    x = (d scale) q − dmin minimum.
    """
    scales = _half(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)
    minimums = _half(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    return _flat(_scaled(scales, _fields(blocks[:, 16:80], 2, 32)) - minimums[:, :, None])


def _expand_q3_k(blocks: UInt8Array) -> Float32Array:
    """110 bytes, 256 elements: 32 bytes of third bits, bit j of byte i for element 32 j + i · 64 bytes of low
    2 bits as in Q2_K · 12 bytes, 16 six-bit scales: 8 bytes with the low nibbles (scale s and s + 8), then
    4 bytes with the upper two bits (scales s, s + 4, s + 8, s + 12) · half d.

    x = d (scale − 32) (q − 4), q three bits wide.
    """
    q = _fields(blocks[:, 32:96], 2, 32) | (_fields(blocks[:, :32], 1, 32) << np.uint8(2))
    scales = _fields(blocks[:, 96:104], 4, 8) | (_fields(blocks[:, 104:108], 2, 4) << np.uint8(4))
    return _flat(_scaled(_half(blocks, 108) * (scales.astype(np.float32) - 32), q.astype(np.float32) - 4))


def _k_scales(packed: UInt8Array) -> tuple[UInt8Array, UInt8Array]:
    """The eight 6-bit scales and minimums of Q4_K and Q5_K, [n, 12] to two [n, 8].

    Bytes 0–3: scales 0–3, bytes 4–7: minimums 0–3, in their low six bits. Bytes 8–11: the low nibbles of scales 4–7
    (low) and minimums 4–7 (high), whose upper two bits are the top two bits of bytes 0–3 and 4–7.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=1)
    minimums = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=1)
    return scales, minimums


def _expand_q4_k(blocks: UInt8Array) -> Float32Array:
    """144 bytes, 256 elements: half d · half dmin · 12 bytes of scales and minimums (`_k_scales`) ·
    128 bytes of nibbles, two runs of 32 elements to every 32 bytes.

    x = (d scale) q − dmin minimum.
    """
    scales, minimums = _k_scales(blocks[:, 4:16])
    q = _fields(blocks[:, 16:], 4, 32)
    offsets = _half(blocks, 2) * minimums.astype(np.float32)
    return _flat(_scaled(_half(blocks, 0) * scales.astype(np.float32), q) - offsets[:, :, None])


def _expand_q5_k(blocks: UInt8Array) -> Float32Array:
    """176 bytes, 256 elements: half d · half dmin · 12 bytes of scales and minimums (`_k_scales`) · 32 bytes of
    fifth bits, bit j of byte i for element 32 j + i · 128 bytes of low nibbles as in Q4_K.

    x = (d scale) q − dmin minimum.
    """
    scales, minimums = _k_scales(blocks[:, 4:16])
    q = _fields(blocks[:, 48:], 4, 32) | (_fields(blocks[:, 16:48], 1, 32) << np.uint8(4))
    offsets = _half(blocks, 2) * minimums.astype(np.float32)
    return _flat(_scaled(_half(blocks, 0) * scales.astype(np.float32), q) - offsets[:, :, None])


def _expand_q6_k(blocks: UInt8Array) -> Float32Array:
    """210 bytes, 256 elements: 128 bytes of low nibbles, two runs of 64 elements to every 64 bytes · 64 bytes of upper
    two bits, four runs of 32 elements to every 32 bytes · 16 int8 scales of 16 elements each · half d.

    x = (d scale) (q − 32).
    """
    q = _fields(blocks[:, :128], 4, 64) | (_fields(blocks[:, 128:192], 2, 32) << np.uint8(4))
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _flat(_scaled(scales, q.astype(np.float32) - 32))


def _expand_iq4_nl(blocks: UInt8Array) -> Float32Array:
    """18 bytes, 32 elements: half d · 16 bytes of indices into 16 uneven levels, nibbles as in Q4_0.

    x = d level[q].
    """
    return _half(blocks, 0) * _IQ4_VALUES[_fields(blocks[:, 2:], 4, 16)]


def _expand_iq4_xs(blocks: UInt8Array) -> Float32Array:
    """136 bytes, 256 elements: half d · uint16, upper two bits of eight 6-bit scales, lowest first · 4 bytes, their
    low nibbles, low nibble first · 128 bytes of level indices, each 16 bytes as in IQ4_NL.

    x = d (scale − 32) level[q].
    """
    scales = _fields(blocks[:, 4:8], 4, 1) | (_fields(blocks[:, 2:4], 2, 1) << np.uint8(4))
    return _flat(
        _scaled(_half(blocks, 0) * (scales.astype(np.float32) - 32), _IQ4_VALUES[_fields(blocks[:, 8:], 4, 16)])
    )


def _expand_mxfp4(blocks: UInt8Array) -> Float32Array:
    """17 bytes, 32 elements: a shared exponent e (E8M0) · 16 bytes of 4-bit floats (E2M1), nibbles as in Q4_0.

    x = 2^(e − 128) v[q] with v twice the E2M1 value; e = 255 is not treated as NaN, as in ggml.
    """
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return scale * _E2M1_VALUES[_fields(blocks[:, 1:], 4, 16)]


_EXPAND: Final[dict[str, Callable[[UInt8Array], Float32Array]]] = {
    "F32": _expand_f32,
    "F16": _expand_f16,
    "BF16": _expand_bf16,
    "Q4_0": _expand_q4_0,
    "Q4_1": _expand_q4_1,
    "Q5_0": _expand_q5_0,
    "Q5_1": _expand_q5_1,
    "Q8_0": _expand_q8_0,
    "Q2_K": _expand_q2_k,
    "Q3_K": _expand_q3_k,
    "Q4_K": _expand_q4_k,
    "Q5_K": _expand_q5_k,
    "Q6_K": _expand_q6_k,
    "IQ4_NL": _expand_iq4_nl,
    "IQ4_XS": _expand_iq4_xs,
    "MXFP4": _expand_mxfp4,
}

DEQUANTIZABLE: Final[tuple[BlockType, ...]] = tuple(t for t in BLOCK_TYPES.values() if t.name in _EXPAND)
"""The types `dequantize` serves."""
