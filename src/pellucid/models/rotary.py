"""Cosines and sines of the rotary positions (Su et al. 2021, RoFormer, section 3.4)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pellucid.config import RopeConfig
from pellucid.kernels.backend import Float32Array

_CHUNK = 256


def inverse_frequencies(rope: RopeConfig) -> Float32Array:
    """[pairs] theta ** (−2 i / dim), divided by the scaling's per-pair divisors; float32 as transformers has it."""
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    frequencies = np.float32(1) / np.power(np.float32(rope.theta), exponents, dtype=np.float32)
    if rope.inv_freq_divisors is not None:
        frequencies = frequencies / np.asarray(rope.inv_freq_divisors, dtype=np.float32)
    return np.asarray(frequencies / np.float32(rope.linear_factor), dtype=np.float32)


class RotaryTable:
    """cos and sin of position · frequency, grown as far as positions are used.

    Rows are computed in whole chunks of positions, so that a row's bits never depend on who asked first.
    """

    def __init__(self, rope: RopeConfig) -> None:
        self._frequencies = inverse_frequencies(rope)
        self._cosine = np.empty((0, len(self._frequencies)), dtype=np.float32)
        self._sine = np.empty((0, len(self._frequencies)), dtype=np.float32)

    def rows(self, positions: npt.NDArray[np.int32]) -> tuple[Float32Array, Float32Array]:
        """cos and sin [T, pairs] of T positions."""
        needed = int(positions.max()) + 1 if len(positions) else 0
        if needed > len(self._cosine):
            self._grow(needed)
        return self._cosine[positions], self._sine[positions]

    def _grow(self, needed: int) -> None:
        # At least doubled, so that a long generation copies the table only now and then.
        stop = -(-max(needed, 2 * len(self._cosine)) // _CHUNK) * _CHUNK
        cosines, sines = [self._cosine], [self._sine]
        for start in range(len(self._cosine), stop, _CHUNK):
            positions = np.arange(start, start + _CHUNK, dtype=np.float32)
            angles = (positions[:, None] * self._frequencies[None, :]).astype(np.float64)
            cosines.append(np.cos(angles).astype(np.float32))
            sines.append(np.sin(angles).astype(np.float32))
        self._cosine, self._sine = np.concatenate(cosines), np.concatenate(sines)
