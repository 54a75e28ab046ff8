"""The merge list that a SentencePiece BPE vocabulary implies.

Such a vocabulary has scores and no merges: SentencePiece joins, among all neighbours whose join is a piece, those
with the highest score first. The `tokenizers` library wants pairs by rank instead, so every piece is cut at every
place where both halves are pieces themselves. Pairs with one result are ordered by the length of the left half,
longest first, as in the tokenizer.json files published with such models.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# An odd multiplier of a polynomial hash modulo 2^64 (Steele & Vigna, "Computationally easy, spectrally good
# multipliers", 2022); odd, so that it has an inverse.
_BASE = 0xD1342543DE82EF95
_BASE_INVERSE = pow(_BASE, -1, 1 << 64)
_TABLE_BITS = 22


def merges_from_scores(
    tokens: list[str], scores: np.ndarray[Any, np.dtype[np.float32]], mergeable: list[int]
) -> list[tuple[str, str]]:
    """The merges in order of rank, best first.

    tokens, scores: of the whole vocabulary, indexed by id. mergeable: the ids that take part (normal pieces).

    A vocabulary of 262,144 pieces has 1.4 million places to cut, too many for a look-up each, so halves are found by
    a 64-bit hash in bulk. Should two texts ever share a hash, the library refuses the pair whose join is no piece.
    """
    order = np.asarray(mergeable, dtype=np.int64)
    order = order[np.argsort(-scores[order], kind="stable")]
    pieces = [tokens[i] for i in order.tolist()]
    if not pieces:
        return []
    lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    ends = np.cumsum(lengths)
    starts = ends - lengths
    prefix_sums, inverse_powers = _prefix_sums("".join(pieces))

    def hashes(first: Array, last: Array) -> Array:
        """Hash of the characters first … last-1, the same wherever they stand."""
        return (prefix_sums[last] - prefix_sums[first]) * inverse_powers[first]

    # Every inner position of every piece, from the last one to the first: the longest left half comes first.
    cuts = np.maximum(lengths - 1, 0)
    whole = np.repeat(np.arange(len(pieces)), cuts)
    cut = ends[whole] - 1 - (np.arange(len(whole)) - np.repeat(np.cumsum(cuts) - cuts, cuts))
    known = _HashTable(hashes(starts, ends))
    left = known.find(hashes(starts[whole], cut))
    kept = np.flatnonzero(left >= 0)
    left, whole, cut = left[kept], whole[kept], cut[kept]
    right = known.find(hashes(cut, ends[whole]))
    real = (right >= 0) & (lengths[left] + lengths[right] == lengths[whole])
    left_pieces, right_pieces = (map(pieces.__getitem__, half[real].tolist()) for half in (left, right))
    merges = list(zip(left_pieces, right_pieces, strict=True))
    if np.unique(scores[order]).size < len(order):
        merges = _break_ties(merges, scores[order][whole[real]])
    return merges


class _HashTable:
    """Index of each hash of an array, found in bulk."""

    def __init__(self, hashes: Array) -> None:
        self._hashes = hashes
        self._shift = np.uint64(64 - _TABLE_BITS)
        self._table = np.full(1 << _TABLE_BITS, -1, dtype=np.int32)
        self._table[hashes >> self._shift] = np.arange(len(hashes), dtype=np.int32)
        self._sorted_at = np.argsort(hashes)
        self._sorted = hashes[self._sorted_at]

    def find(self, wanted: Array) -> Array:
        """The index of each wanted hash, -1 where there is none."""
        found: Array = self._table[wanted >> self._shift]
        wrong = np.flatnonzero((self._hashes[found] != wanted) & (found >= 0))
        # Two hashes in one place of the table: the few left are looked up in order.
        at = self._sorted_at[np.minimum(np.searchsorted(self._sorted, wanted[wrong]), len(self._sorted) - 1)]
        found[wrong] = np.where(self._hashes[at] == wanted[wrong], at, -1)
        return found


def _prefix_sums(text: str) -> tuple[Array, Array]:
    """(S, B^-i) with S[i] = sum of c_j B^j over j < i, modulo 2^64, both of length len(text) + 1."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64) + np.uint64(1)
    powers = np.full(len(codes) + 1, _BASE, dtype=np.uint64)
    inverse_powers = np.full(len(codes) + 1, _BASE_INVERSE, dtype=np.uint64)
    powers[0] = inverse_powers[0] = 1
    powers = np.cumprod(powers, dtype=np.uint64)
    sums = np.zeros(len(codes) + 1, dtype=np.uint64)
    np.cumsum(codes * powers[:-1], dtype=np.uint64, out=sums[1:])
    return sums, np.cumprod(inverse_powers, dtype=np.uint64)


def _break_ties(merges: list[tuple[str, str]], scores: Array) -> list[tuple[str, str]]:
    """Equal scores: the longer left half, then the longer right half, is merged first."""
    left, right = (np.array([len(pair[side]) for pair in merges], dtype=np.int64) for side in (0, 1))
    return [merges[i] for i in np.lexsort((-right, -left, -scores)).tolist()]
