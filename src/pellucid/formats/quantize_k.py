"""Float32 to K-quant blocks: 256 elements with scales of their own for each 16 or 32 of them.

The layouts are ggml's (ggml-quants.c, described in `dequantize`); how values are chosen is our own. Every sub-block
tries a few steps around the one that just spans its values, solves scale and minimum by least squares for the levels
that each step gives, and keeps the pair with the smallest weighted error; levels are then chosen once more for the
scales as stored.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from pellucid.errors import InvalidParameterError

UInt8Array = npt.NDArray[np.uint8]
Float32Array = npt.NDArray[np.float32]

_STEPS: Final = np.linspace(-1.0, 1.0, 9, dtype=np.float32)
"""Steps tried: the one that spans the values, with up to one level fewer or more over the same span."""


def pack_q4_k(blocks: Float32Array) -> UInt8Array:
    """[n, 256] to [n, 144]."""
    head, q = _affine(blocks, 15)
    return np.concatenate([head, _pack_fields(q, 4, 32)], axis=1)


def pack_q5_k(blocks: Float32Array) -> UInt8Array:
    """[n, 256] to [n, 176]."""
    head, q = _affine(blocks, 31)
    return np.concatenate([head, _pack_fields(q >> np.uint8(4), 1, 32), _pack_fields(q & np.uint8(15), 4, 32)], axis=1)


def pack_q6_k(blocks: Float32Array) -> UInt8Array:
    """[n, 256] to [n, 210]."""
    groups = blocks.reshape(-1, 16)
    scales = _symmetric_scales(groups, 32).reshape(-1, 16)
    at = np.abs(scales).argmax(axis=1, keepdims=True)
    d = _half(np.take_along_axis(scales, at, axis=1) / np.float32(-128))
    small = np.clip(_divided(scales, _float(d)), -128, 127).astype(np.int8)
    effective = (_float(d) * small.astype(np.float32)).reshape(-1, 1)
    q = np.clip(_divided(groups, effective), -32, 31).astype(np.int8) + np.int8(32)
    q8 = q.astype(np.uint8).reshape(len(blocks), 256)
    return np.concatenate(
        [
            _pack_fields(q8 & np.uint8(15), 4, 64),
            _pack_fields(q8 >> np.uint8(4), 2, 32),
            small.view(np.uint8),
            d.view(np.uint8),
        ],
        axis=1,
    )


def _affine(blocks: Float32Array, levels: int) -> tuple[UInt8Array, UInt8Array]:
    """The 16 bytes before the levels (d, dmin, packed scales and minimums) and the levels [n, 256] of
    x = (d scale) q − dmin minimum, q from 0 to `levels`."""
    groups = blocks.reshape(-1, 32)
    scales, minimums = (values.reshape(-1, 8) for values in _affine_scales(groups, levels))
    d = _half(scales.max(axis=1, keepdims=True) / np.float32(63))
    dmin = _half(minimums.max(axis=1, keepdims=True) / np.float32(63))
    small = np.clip(_divided(scales, _float(d)), 0, 63).astype(np.uint8)
    small_minimums = np.clip(_divided(minimums, _float(dmin)), 0, 63).astype(np.uint8)
    step = (_float(d) * small.astype(np.float32)).reshape(-1, 1)
    offset = (_float(dmin) * small_minimums.astype(np.float32)).reshape(-1, 1)
    q = np.clip(_divided(groups + offset, step), 0, levels).astype(np.uint8).reshape(len(blocks), 256)
    packed = _pack_k_scales(small, small_minimums)
    return np.concatenate([d.view(np.uint8), dmin.view(np.uint8), packed], axis=1), q


def _affine_scales(groups: Float32Array, levels: int) -> tuple[Float32Array, Float32Array]:
    """(scale, minimum) [m] of x ≈ scale q − minimum for groups [m, 32]; both at least 0."""
    low = np.minimum(groups.min(axis=1, keepdims=True), 0)
    high = np.maximum(groups.max(axis=1, keepdims=True), 0)
    span = high - low
    # Large values matter more: an error in them meets larger activations more often (as ggml weighs them).
    weights = np.abs(groups) + np.sqrt(np.mean(groups * groups, axis=1, keepdims=True))
    best_scale = (span / np.float32(levels))[:, 0]
    best_low = low[:, 0].copy()
    sum_w, sum_x = weights.sum(axis=1), (weights * groups).sum(axis=1)
    best_error = np.full(len(groups), np.inf, dtype=np.float32)
    for extra in _STEPS:
        q = np.clip(np.rint((groups - low) * _inverse(span) * (levels + extra)), 0, levels).astype(np.float32)
        wq = weights * q
        sum_q, sum_qq, sum_qx = wq.sum(axis=1), (wq * q).sum(axis=1), (wq * groups).sum(axis=1)
        determinant = sum_w * sum_qq - sum_q * sum_q
        usable = determinant > 0
        safe = np.where(usable, determinant, 1)
        scale = (sum_w * sum_qx - sum_x * sum_q) / safe
        offset = (sum_qq * sum_x - sum_q * sum_qx) / safe
        # A minimum can only lower: where the best one is above 0 it is 0, and the scale is solved alone.
        above = offset > 0
        scale = np.where(above, sum_qx / np.where(sum_qq > 0, sum_qq, 1), scale)
        offset = np.where(above, 0, offset)
        difference = scale[:, None] * q + offset[:, None] - groups
        error = (weights * difference * difference).sum(axis=1)
        better = usable & (scale >= 0) & (error < best_error)
        best_error = np.where(better, error, best_error)
        best_scale = np.where(better, scale, best_scale)
        best_low = np.where(better, offset, best_low)
    return best_scale.astype(np.float32), (-best_low).astype(np.float32)


def _symmetric_scales(groups: Float32Array, half: int) -> Float32Array:
    """The scale [m] of x ≈ scale q, q from −half to half − 1, for groups [m, 16]."""
    at = np.abs(groups).argmax(axis=1, keepdims=True)
    largest = np.take_along_axis(groups, at, axis=1)
    weights = groups * groups
    best = (largest / np.float32(-half))[:, 0]
    best_gain = np.full(len(groups), -np.inf, dtype=np.float32)
    for extra in _STEPS:
        q = np.clip(np.rint(groups * _inverse(largest) * -(half + extra)), -half, half - 1).astype(np.float32)
        wq = weights * q
        sum_qx, sum_qq = (wq * groups).sum(axis=1), (wq * q).sum(axis=1)
        # The least-squares scale is sum_qx / sum_qq, and lowers the error by sum_qx² / sum_qq.
        gain = np.where(sum_qq > 0, sum_qx * sum_qx / np.where(sum_qq > 0, sum_qq, 1), -np.inf)
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best = np.where(better, sum_qx / np.where(sum_qq > 0, sum_qq, 1), best)
    return best.astype(np.float32)


def _pack_fields(q: UInt8Array, bits: int, group: int) -> UInt8Array:
    """The inverse of `dequantize._fields`: small fields [n, k] to bytes [n, k · bits / 8]."""
    runs = 8 // bits
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    grouped = q.reshape(len(q), -1, runs, group) << shifts
    packed: UInt8Array = np.bitwise_or.reduce(grouped, axis=2).reshape(len(q), -1)
    return packed


def _pack_k_scales(scales: UInt8Array, minimums: UInt8Array) -> UInt8Array:
    """The inverse of `dequantize._k_scales`: two [n, 8] of six bits to [n, 12]."""
    first = scales[:, :4] | ((scales[:, 4:] >> 4) << 6)
    second = minimums[:, :4] | ((minimums[:, 4:] >> 4) << 6)
    third = (scales[:, 4:] & 15) | ((minimums[:, 4:] & 15) << 4)
    return np.concatenate([first, second, third], axis=1)


def _half(values: Float32Array) -> npt.NDArray[np.float16]:
    with np.errstate(over="ignore"):
        halves: npt.NDArray[np.float16] = values.astype("<f2")
    if np.isinf(halves).any():
        raise InvalidParameterError("values", "values are too large for float16: use BF16 or F32")
    return halves


def _float(halves: npt.NDArray[np.float16]) -> Float32Array:
    return halves.astype(np.float32)


def _inverse(values: Float32Array) -> Float32Array:
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / values
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _divided(values: Float32Array, by: Float32Array) -> Float32Array:
    """The nearest whole number to values / by; 0 where the divisor is 0."""
    nearest: Float32Array = np.rint(values * _inverse(by))
    return nearest
