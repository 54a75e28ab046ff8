"""The tokens still in the race: min-p, top-k, top-p and the pick, exact and without sorting the vocabulary.

Candidates are ordered by logit, highest first, ties by id, lowest first. Temperature does not change that order, so
it is only a divisor here, applied where probabilities are needed. A candidate's weight is
exp((logit - largest logit) / temperature) in float32; its probability is the weight over the float64 sum of weights.

Two observations avoid the full sort, which would cost more than all the rest at 50,000 tokens:

- the k-th largest of the maxima of m >= k groups is a lower bound of the k-th largest logit;
- the token at which the cumulative weight reaches a target lies in the few most probable ones almost always, and
  otherwise in one bin of a histogram over the logits; only that part has to be sorted.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IdArray = npt.NDArray[np.int64]

SORT_LIMIT = 1024
"""Up to this many candidates are simply sorted."""
HEAD_SIZE = 256
"""About this many of the most probable candidates are looked at before a histogram is made."""
BINS_PER_NAT = 64
NUM_BINS = 2048
"""The last bin takes all below e**-32 of the largest weight."""
CHUNK = 8192
"""Histograms are made of this many candidates at a time: their float64 copies then stay in the cache."""
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def ordered_positions(logits: FloatArray) -> IdArray:
    """All positions by logit, highest first; equal logits keep their places."""
    positions: IdArray = np.argsort(-logits, kind="stable")
    return positions


def top_positions(logits: FloatArray, k: int) -> IdArray:
    """The k (>= 1) first positions in candidate order, ordered; `logits` without NaN."""
    if k < len(logits) and len(logits) > SORT_LIMIT:
        positions = np.flatnonzero(logits >= _kth_largest_bound(logits, k))
        if len(positions) > max(SORT_LIMIT, 2 * k):
            positions = _exactly_top(logits, positions, k)
        top: IdArray = positions[ordered_positions(logits[positions])[:k]]
        return top
    return ordered_positions(logits)[:k]


def _kth_largest_bound(logits: FloatArray, k: int) -> np.float32:
    """A number not above the k-th largest logit, and near it when k is small."""
    groups = max(4 * k, SORT_LIMIT // 2)
    rows = len(logits) // groups
    if rows < 2:
        return _kth_largest(logits, k)
    maxima = logits[: rows * groups].reshape(rows, groups).max(axis=0)
    return _kth_largest(maxima, k)


def _kth_largest(values: FloatArray, k: int) -> np.float32:
    place = len(values) - k
    return np.float32(np.partition(values, place)[place])


def _exactly_top(logits: FloatArray, positions: IdArray, k: int) -> IdArray:
    """The k first of `positions` in candidate order, given in ascending position."""
    values = logits[positions]
    kth = _kth_largest(values, k)
    above = values > kth
    ties = np.flatnonzero(values == kth)[: k - int(np.count_nonzero(above))]
    above[ties] = True
    kept: IdArray = positions[above]
    return kept


class Candidates:
    """Tokens that can still be drawn, and their weights.

    `ids` is None while all ids are in, at their own places; a filter replaces `ids` and `logits` by shorter arrays.
    `ordered` says whether they are in candidate order. Nothing here changes the logits it was given: a stage that
    does asks for `writable_logits`.
    """

    __slots__ = ("_owned", "_total", "_weights", "ids", "largest", "logits", "ordered", "temperature")

    def __init__(self, logits: FloatArray) -> None:
        self.ids: IdArray | None = None
        self.logits = logits
        self.temperature = 1.0
        self.ordered = False
        self.largest = logits[logits.argmax()]
        """The largest logit; NaN if any is NaN."""
        self._owned = False
        self._weights: FloatArray | None = None
        self._total = 0.0

    def writable_logits(self) -> FloatArray:
        """The logits of all ids [vocab], to be changed in place and followed by `logits_changed`."""
        if not self._owned:
            self.logits = self.logits.copy()
            self._owned = True
        return self.logits

    def logits_changed(self) -> None:
        """Take note that logits have changed."""
        self.largest = self.logits[self.logits.argmax()]
        self._weights = None

    def set_temperature(self, temperature: float) -> None:
        """Divide the logits by `temperature` (> 0) where probabilities are computed."""
        # A masked logit over an infinite divisor would be NaN.
        self.temperature = min(temperature, _FLOAT32_MAX)
        self._weights = None

    def exponents(self) -> FloatArray:
        """(logit - largest) / temperature for each candidate, at most 0."""
        with np.errstate(over="ignore"):
            exponents: FloatArray = self.logits - self.largest
            if self.temperature != 1.0:
                exponents /= np.float32(self.temperature)
        return exponents

    def weights(self) -> FloatArray:
        """exp of the exponents: 1 for the most probable candidate."""
        if self._weights is None:
            exponents = self.exponents()
            self._weights = np.exp(exponents, out=exponents)
            self._total = float(self._weights.sum(dtype=np.float64))
        return self._weights

    def total(self) -> float:
        """Sum of the weights (>= 1)."""
        self.weights()
        return self._total

    def keep_min_p(self, min_p: float) -> None:
        """Keep candidates at least `min_p` (in (0, 1]) times as probable as the first one."""
        # Compared as logits: exp would be needed for the whole vocabulary otherwise.
        cutoff = float(self.largest) + self.temperature * math.log(min_p)
        self._keep_where(self.logits >= np.float32(max(cutoff, -_FLOAT32_MAX)))

    def keep_top_k(self, k: int) -> None:
        """Keep the first k (>= 1) candidates."""
        if k < len(self.logits):
            positions = np.arange(k) if self.ordered else top_positions(self.logits, k)
            self._keep(positions, True)

    def keep_top_p(self, top_p: float) -> None:
        """Keep the fewest first candidates whose probabilities reach `top_p` (in (0, 1))."""
        reached = self._reach(top_p * self.total(), strictly=False)
        if isinstance(reached, np.ndarray):
            self._keep(reached, True)
            return
        value = self.logits[reached]
        keep = self.logits > value
        keep[: reached + 1] |= self.logits[: reached + 1] == value
        self._keep_where(keep)

    def pick(self, u: float) -> int:
        """The first id in candidate order whose cumulative probability exceeds u (in [0, 1))."""
        reached = self._reach(u * self.total(), strictly=True)
        place = int(reached[-1] if isinstance(reached, np.ndarray) else reached)
        return place if self.ids is None else int(self.ids[place])

    def first(self) -> int:
        """The most probable id, the lowest of equals."""
        place = int(self.logits.argmax())
        return place if self.ids is None else int(self.ids[place])

    def _keep_where(self, keep: npt.NDArray[np.bool_]) -> None:
        """Keep the candidates at which the mask is true, in the order they have."""
        if 4 * np.count_nonzero(keep) <= len(keep):
            self._keep(np.flatnonzero(keep), self.ordered)
            return
        # Gathering most of them costs more than carrying impossible ones along.
        self.logits = np.where(keep, self.logits, np.float32(-np.inf))
        self._owned = True
        if self._weights is not None:
            self._weights *= keep
            self._total = float(self._weights.sum(dtype=np.float64))

    def _keep(self, places: IdArray, ordered: bool) -> None:
        self.ids = places if self.ids is None else self.ids[places]
        self.logits = self.logits[places]
        self.ordered = ordered
        if self._weights is not None:
            self._weights = self._weights[places]
            self._total = float(self._weights.sum(dtype=np.float64))

    def _reach(self, target: float, *, strictly: bool) -> IdArray | int:
        """Where the cumulative weight in candidate order reaches (`strictly`: exceeds) the target.

        Gives all places up to there, ordered, where a sort made them known, else the last one alone.
        """
        weights = self.weights()
        if self.ordered:
            return np.arange(_reached(weights, 0.0, target, strictly) + 1)
        if len(weights) <= SORT_LIMIT:
            order = ordered_positions(self.logits)
            return order[: _reached(weights[order], 0.0, target, strictly) + 1]
        head = np.flatnonzero(self.logits >= _kth_largest_bound(self.logits, HEAD_SIZE))
        if len(head) <= 4 * SORT_LIMIT:
            mass = float(weights[head].sum(dtype=np.float64))
            if mass > target:
                order = head[ordered_positions(self.logits[head])]
                return order[: _reached(weights[order], 0.0, target, strictly) + 1]
        return self._reach_in_bins(target, strictly)

    def _reach_in_bins(self, target: float, strictly: bool) -> int:
        """`_reach` by a histogram over the exponents: bins are in candidate order, and only one is sorted."""
        weights = self.weights()
        depth = self.exponents()
        depth *= np.float32(-BINS_PER_NAT)
        np.minimum(depth, np.float32(NUM_BINS - 1), out=depth)
        bins = depth.astype(np.int16)
        masses = np.zeros(NUM_BINS)
        for start in range(0, len(bins), CHUNK):
            part = slice(start, start + CHUNK)
            masses += np.bincount(bins[part], weights=weights[part], minlength=NUM_BINS)
        chosen = _reached(masses, 0.0, target, strictly)
        places = np.flatnonzero(bins == chosen)
        values = self.logits[places]
        if values.min() != values.max():
            places = places[ordered_positions(values)]
        base = float(masses[:chosen].cumsum()[-1]) if chosen else 0.0
        return int(places[_reached(weights[places], base, target, strictly)])


def _reached(weights: npt.NDArray[np.floating], base: float, target: float, strictly: bool) -> int:
    """The first place at which base + cumulative weight reaches (`strictly`: exceeds) the target.

    Rounding may leave the whole sum a hair below it: then the last place that has a weight.
    """
    cumulative = weights.cumsum(dtype=np.float64)
    if base:
        cumulative += base
    place = int(cumulative.searchsorted(target, side="right" if strictly else "left"))
    if place == len(cumulative):
        place = int(np.flatnonzero(weights)[-1])
    return place
