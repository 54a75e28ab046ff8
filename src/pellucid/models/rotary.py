"""Cosines and sines of the rotary positions (Su et al. 2021, RoFormer, section 3.4), and what scalings do to them.

Scalings that depend on length are resolved once, from the longest request the engine takes: a key in the cache must
keep its meaning while the text grows.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import numpy.typing as npt

from pellucid.config import RopeConfig, RopeScaling
from pellucid.kernels.backend import Float32Array

Angles = tuple[Float32Array, Float32Array]
"""cos and sin [T, pairs]."""

_CHUNK = 256


def inverse_frequencies(rope: RopeConfig, max_model_len: int = 0) -> Float32Array:
    """[pairs] theta ** (−2 i / dim) as scaled, float32 as transformers has it.

    max_model_len: the longest context in use; it decides for dynamic and longrope.
    """
    scaling = rope.scaling
    theta = rope.theta if scaling is None else _theta(rope, scaling, max_model_len)
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    frequencies = np.float32(1) / np.power(np.float32(theta), exponents, dtype=np.float32)
    if scaling is None or scaling.kind in ("ntk", "dynamic"):
        return cast(Float32Array, frequencies)
    if scaling.kind == "linear":
        return cast(Float32Array, frequencies / np.float32(scaling.factor))
    if scaling.kind == "llama3":
        return _llama3(frequencies, scaling)
    if scaling.kind == "yarn":
        return _yarn(frequencies, rope, scaling)
    factors = scaling.factors
    if scaling.kind == "longrope" and max_model_len <= scaling.original_context:
        factors = scaling.short_factors
    return cast(Float32Array, frequencies / np.asarray(factors, dtype=np.float32))


def _theta(rope: RopeConfig, scaling: RopeScaling, max_model_len: int) -> float:
    """bloc97 2023: the base that turns the slowest pair `factor` times as slowly."""
    if scaling.kind == "ntk":
        growth = scaling.factor
    elif scaling.kind == "dynamic" and max_model_len > scaling.original_context:
        growth = scaling.factor * max_model_len / scaling.original_context - (scaling.factor - 1)
    else:
        return rope.theta
    return rope.theta * cast(float, growth ** (rope.dim / (rope.dim - 2)))


def _llama3(frequencies: Float32Array, scaling: RopeScaling) -> Float32Array:
    """Llama 3.1: by wavelength against the original context, as transformers computes it."""
    wavelengths = np.float32(2 * math.pi) / frequencies
    turns = np.float32(scaling.original_context) / wavelengths
    span = np.float32(scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = (turns - np.float32(scaling.low_freq_factor)) / span
    slow = frequencies / np.float32(scaling.factor)
    blended = (np.float32(1) - smooth) * slow + smooth * frequencies
    kept = np.where(wavelengths > scaling.original_context / scaling.low_freq_factor, slow, frequencies)
    is_between = (wavelengths >= scaling.original_context / scaling.high_freq_factor) & (
        wavelengths <= scaling.original_context / scaling.low_freq_factor
    )
    return cast(Float32Array, np.where(is_between, blended, kept).astype(np.float32))


def _yarn(frequencies: Float32Array, rope: RopeConfig, scaling: RopeScaling) -> Float32Array:
    """Peng et al. 2023, section 3.2, NTK by parts: pairs of many turns are kept, those of few divided."""

    def pair_of(turns: float) -> float:
        context = scaling.original_context / (turns * 2 * math.pi)
        return rope.dim * math.log(context) / (2 * math.log(rope.theta))

    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001  # the paper's ramp of no width
    ramp = (np.arange(rope.dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept = np.float32(1) - np.clip(ramp, 0, 1)
    slow = frequencies / np.float32(scaling.factor)
    return cast(Float32Array, (slow * (1 - kept) + frequencies * kept).astype(np.float32))


class RotaryTable:
    """cos and sin of position · frequency, grown as far as positions are used.

    Rows are computed in whole chunks of positions, so that a row's bits never depend on who asked first.
    """

    def __init__(self, rope: RopeConfig, max_model_len: int = 0) -> None:
        self._frequencies = inverse_frequencies(rope, max_model_len)
        self._factor = 1.0 if rope.scaling is None else rope.scaling.attention_factor
        self._cosine = np.empty((0, len(self._frequencies)), dtype=np.float32)
        self._sine = np.empty((0, len(self._frequencies)), dtype=np.float32)

    def rows(self, positions: npt.NDArray[np.int32]) -> Angles:
        """cos and sin [T, pairs] of T positions."""
        self._reach(positions)
        return self._cosine[positions], self._sine[positions]

    def write_rows(self, positions: npt.NDArray[np.int32], out: Angles) -> None:
        """The same into arrays that are there."""
        self._reach(positions)
        for table, rows in ((self._cosine, out[0]), (self._sine, out[1])):
            table.take(positions, axis=0, out=rows, mode="clip")  # no position is outside; "raise" would copy first

    def _reach(self, positions: npt.NDArray[np.int32]) -> None:
        needed = int(positions.max()) + 1 if len(positions) else 0
        if needed > len(self._cosine):
            self._grow(needed)

    def _grow(self, needed: int) -> None:
        # At least doubled, so that a long generation copies the table only now and then.
        stop = -(-max(needed, 2 * len(self._cosine)) // _CHUNK) * _CHUNK
        cosines, sines = [self._cosine], [self._sine]
        for start in range(len(self._cosine), stop, _CHUNK):
            positions = np.arange(start, start + _CHUNK, dtype=np.float32)
            angles = (positions[:, None] * self._frequencies[None, :]).astype(np.float64)
            cosines.append((np.cos(angles) * self._factor).astype(np.float32))
            sines.append((np.sin(angles) * self._factor).astype(np.float32))
        self._cosine, self._sine = np.concatenate(cosines), np.concatenate(sines)


def sinusoidal_rows(positions: npt.NDArray[np.int32], hidden_size: int) -> Float32Array:
    """[T, hidden_size] sines, then cosines, of position · 10000 ** (−i / (hidden_size / 2 − 1)): the form of XGLM and
    fairseq (Vaswani et al. 2017, section 3.5, with the halves side by side)."""
    half = hidden_size // 2
    step = math.log(10000.0) / max(half - 1, 1)
    frequencies = np.exp(np.arange(half, dtype=np.float32) * np.float32(-step))
    angles = positions[:, None].astype(np.float32) * frequencies[None, :]
    rows = np.zeros((len(positions), hidden_size), dtype=np.float32)
    rows[:, :half], rows[:, half : 2 * half] = np.sin(angles), np.cos(angles)
    return rows


def alibi_slopes(num_heads: int) -> Float32Array:
    """[heads] how much a score falls with each position of distance (Press et al. 2022, ALiBi)."""
    closest = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / closest) for i in range(closest)]
    slopes += [2.0 ** (-4.0 * (2 * i + 1) / closest) for i in range(num_heads - closest)]
    return np.asarray(slopes, dtype=np.float32)
