"""Keys and values as the cache keeps them, in NumPy: what the compiled stores and reads are held to.

Codes of a head: x ≈ scale · code. Keys (and queries) in int16 use all 16 bits up to a length of 46,300, values 13 bits
and a sign, so that the exact 32-bit sums of attention never wrap (docs/decisions/032). int8 and int4 keys are turned by
a Walsh–Hadamard transform first, which spreads what stands out in every key (QuaRot, Ashkboos et al. 2024); int4 has a
factor 0 … 127 per 16 numbers besides (docs/decisions/033).
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt

from pellucid.config import KV_FACTOR_GROUP
from pellucid.kernels.backend import Float32Array
from pellucid.kv_cache.storage import KVLayer

Codes = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

CODE_MAX, CODE_LENGTH, VALUE_LIMIT = 32767.0, 46300.0, 8191.0
INT8_LIMIT, INT4_LIMIT, FACTOR_LIMIT = 127.0, 7.0, 127.0
_SMALLEST = np.float32(1e-30)
"""Heads whose numbers are all smaller become zero: their quotients would overflow."""


def turn(x: Float32Array) -> Float32Array:
    """Walsh–Hadamard transform, without its factor 1 / √block, of each block of the last axis; a block is the largest
    power of two that divides it. turn(turn(x)) = block · x."""
    dim = x.shape[-1]
    block = dim & -dim
    step = 1
    while step < block:
        pairs = x.reshape(*x.shape[:-1], dim // (2 * step), 2, step)
        x = np.stack([pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]], axis=-2)
        x = x.reshape(*pairs.shape[:-3], dim)
        step *= 2
    return x


def encode(x: Float32Array, limit: float, length: float | None = None) -> tuple[Codes, Float32Array]:
    """Codes of heads [..., D] and their scales [...]: |code| ≤ limit and of at most `length` together.

    The scale is NaN where a number is not finite.
    """
    top = np.abs(x).max(axis=-1)
    live = np.isfinite(top) & (top > _SMALLEST)
    safe = np.where(live, top, np.float32(1))
    with np.errstate(invalid="ignore"):
        factor = np.full_like(safe, limit)
        if length is not None:
            unit = np.where(live[..., None], x, np.float32(1)) * (np.float32(1) / safe)[..., None]
            factor = np.minimum(factor, np.float32(length) / np.sqrt(np.square(unit).sum(axis=-1, dtype=np.float32)))
        codes = np.rint(np.where(live[..., None], x, np.float32(0)) * (factor / safe)[..., None]).astype(np.int32)
        scales = np.where(live, safe / factor, np.where(np.isfinite(top), np.float32(0), np.float32(np.nan)))
    return codes, scales.astype(np.float32)


def encode4(x: Float32Array) -> tuple[Codes, Float32Array, npt.NDArray[np.uint8]]:
    """4-bit codes [..., D], scales [...] and factors [..., D / 16]: x ≈ scale · factor · code."""
    top = np.abs(x).max(axis=-1)
    live = np.isfinite(top) & (top > _SMALLEST)
    scale = np.where(live, top, np.float32(1)) / np.float32(INT4_LIMIT * FACTOR_LIMIT)
    groups = np.where(live[..., None], x, np.float32(0)).reshape(*x.shape[:-1], -1, KV_FACTOR_GROUP)
    wanted = np.ceil(np.abs(groups).max(axis=-1) / (scale * np.float32(INT4_LIMIT))[..., None])
    factors = np.minimum(wanted, np.float32(FACTOR_LIMIT)).astype(np.float32)
    inverse = np.float32(1) / np.where(factors > 0, scale[..., None] * factors, np.float32(1))
    codes = np.rint(groups * np.where(factors > 0, inverse, np.float32(0))[..., None])
    codes = np.clip(codes, -INT4_LIMIT, INT4_LIMIT).astype(np.int32).reshape(x.shape)
    scales = np.where(live, scale, np.where(np.isfinite(top), np.float32(0), np.float32(np.nan)))
    return codes, scales.astype(np.float32), factors.astype(np.uint8)


def store(layer: KVLayer, block: Indices, offset: Indices, k: Float32Array, v: Float32Array) -> npt.NDArray[np.bool_]:
    """Store keys [T, G, D] and values [T, G, Dv] at (block, offset) [T]; returns which rows are finite as stored."""
    if layer.scales is None:
        with np.errstate(over="ignore"):  # a number too large for float16 becomes infinite and is reported below
            layer.keys[block, :, :, offset] = k
            layer.values[block, :, offset] = v
        stored = layer.keys[block, :, :, offset], layer.values[block, :, offset]
        return cast(npt.NDArray[np.bool_], np.logical_and(*(np.isfinite(part).all(axis=(1, 2)) for part in stored)))
    with np.errstate(invalid="ignore"):
        scales = _store_codes(layer, block, offset, k, v)
    layer.scales[block, :, 0, offset], layer.scales[block, :, 1, offset] = scales
    return cast(npt.NDArray[np.bool_], np.isfinite(np.concatenate(scales, axis=1)).all(axis=1))


def _store_codes(
    layer: KVLayer, block: Indices, offset: Indices, k: Float32Array, v: Float32Array
) -> tuple[Float32Array, Float32Array]:
    keys, values = layer.keys, layer.values
    if layer.factors is not None:
        key_codes, key_scales, key_factors = encode4(turn(k))
        value_codes, value_scales, value_factors = encode4(v)
        layer.factors[block, :, :, offset] = np.concatenate([key_factors, value_factors], axis=-1)
        keys[block, :, :, offset] = _nibbles(key_codes[..., 0::2], key_codes[..., 1::2])
        low = _low_numbers(v.shape[-1])
        high = np.setdiff1d(np.arange(v.shape[-1]), low)
        values[block, :, offset] = _nibbles(value_codes[..., low], value_codes[..., high])
        return key_scales, value_scales
    if layer.dtype == "int16":
        key_codes, key_scales = encode(k, CODE_MAX, CODE_LENGTH)
        value_codes, value_scales = encode(v, VALUE_LIMIT)
    else:
        key_codes, key_scales = encode(turn(k), INT8_LIMIT)
        value_codes, value_scales = encode(v, INT8_LIMIT)
    keys[block, :, :, offset] = key_codes.reshape(*k.shape[:-1], -1, 2)
    values[block, :, offset // 2, :, offset % 2] = value_codes
    return key_scales, value_scales


def gather(layer: KVLayer, blocks: npt.NDArray[np.int32], length: int) -> tuple[Float32Array, Float32Array]:
    """Keys [G, length, D] and values [G, length, Dv] of one sequence, out of its blocks, as they were stored."""
    keys, values = layer.keys[blocks], layer.values[blocks]
    if layer.scales is None:
        keys, values = keys.swapaxes(2, 3).astype(np.float32), values.astype(np.float32)
    else:
        if layer.factors is not None:
            factors = layer.factors[blocks].astype(np.float32).repeat(KV_FACTOR_GROUP, axis=2).swapaxes(2, 3)
            keys = (
                np.stack([_low(keys), _high(keys)], axis=3).reshape(*keys.shape[:2], -1, keys.shape[3]).swapaxes(2, 3)
            )
            keys = keys * factors[..., : layer.head_dim]
            low = _low_numbers(layer.value_dim)
            numbers = np.empty((*values.shape[:3], layer.value_dim), dtype=np.float32)
            numbers[..., low] = _low(values)
            numbers[..., np.setdiff1d(np.arange(layer.value_dim), low)] = _high(values)
            values = numbers * factors[..., layer.head_dim :]
        else:
            keys = np.moveaxis(keys, 3, 2).reshape(*keys.shape[:2], keys.shape[3], -1).astype(np.float32)
            values = np.moveaxis(values, 4, 3).reshape(*values.shape[:2], -1, values.shape[3]).astype(np.float32)
        scales = layer.scales[blocks]
        keys, values = keys * scales[:, :, 0, :, None], values * scales[:, :, 1, :, None]
        if layer.dtype != "int16":
            keys = turn(keys) / np.float32(layer.head_dim & -layer.head_dim)
    return _joined(keys, length), _joined(values, length)


def _joined(blocks: npt.NDArray[Any], length: int) -> Float32Array:
    """[blocks, G, S, D] → [G, length, D]."""
    moved = np.moveaxis(blocks, 0, 1)
    joined: Float32Array = moved.reshape(moved.shape[0], -1, moved.shape[3])[:, :length]
    return joined


def _low_numbers(dim: int) -> npt.NDArray[np.int64]:
    """Numbers in the low nibbles, byte after byte: the first half of each 32, and of a last 16."""
    return np.concatenate([np.arange(d, d + min(32, dim - d) // 2) for d in range(0, dim, 32)])


def _nibbles(low: Codes, high: Codes) -> npt.NDArray[np.uint8]:
    return ((low + 8) | ((high + 8) << 4)).astype(np.uint8)


def _low(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    return (packed & 15).astype(np.int32) - 8


def _high(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32]:
    return (packed >> 4).astype(np.int32) - 8
