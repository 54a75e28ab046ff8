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
_TABLE_BITS = 24


def merges_from_scores(
    tokens: list[str], scores: np.ndarray[Any, np.dtype[np.float32]], mergeable: list[int]
) -> list[tuple[str, str]]:
    """The merges in order of rank, best first.

    tokens, scores: of the whole vocabulary, indexed by id. mergeable: the ids that take part (normal pieces).

    A vocabulary of 262,144 pieces has 1.4 million places to cut, so the halves are first looked up by hash in bulk;
    the pairs that remain are compared as text, which makes the result exact.
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
    cuts = lengths - 1
    piece_of_cut = np.repeat(np.arange(len(pieces)), cuts)
    cut = ends[piece_of_cut] - 1 - (np.arange(len(piece_of_cut)) - np.repeat(np.cumsum(cuts) - cuts, cuts))
    piece_hashes = hashes(starts, ends)
    left = hashes(starts[piece_of_cut], cut)
    right = hashes(cut, ends[piece_of_cut])
    # A table of one bit per hash prefix throws out most of the cuts at the price of one indexing each.
    shift = np.uint64(64 - _TABLE_BITS)
    table = np.zeros(1 << _TABLE_BITS, dtype=np.bool_)
    table[piece_hashes >> shift] = True
    likely = np.flatnonzero(table[left >> shift] & table[right >> shift])

    by_hash = np.argsort(piece_hashes, kind="stable")
    sorted_hashes = piece_hashes[by_hash]
    found_left = by_hash[np.minimum(np.searchsorted(sorted_hashes, left[likely]), len(pieces) - 1)]
    found_right = by_hash[np.minimum(np.searchsorted(sorted_hashes, right[likely]), len(pieces) - 1)]
    real = (piece_hashes[found_left] == left[likely]) & (piece_hashes[found_right] == right[likely])
    whole = piece_of_cut[likely][real]
    pairs = zip(found_left[real].tolist(), found_right[real].tolist(), whole.tolist(), strict=True)
    merges = [(pieces[a], pieces[b]) for a, b, joined in pairs if pieces[a] + pieces[b] == pieces[joined]]
    if np.unique(scores[order]).size < len(order):
        merges = _break_ties(merges, {piece: float(scores[i]) for i, piece in zip(order.tolist(), pieces, strict=True)})
    return merges


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


def _break_ties(merges: list[tuple[str, str]], scores: dict[str, float]) -> list[tuple[str, str]]:
    """Equal scores: the longer left half, then the longer right half, is merged first."""
    return sorted(merges, key=lambda pair: (-scores[pair[0] + pair[1]], -len(pair[0]), -len(pair[1])))
