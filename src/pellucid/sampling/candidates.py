"""The tokens still in the race: their order, their weights, the filters and the pick. The definition of the draw.

Candidates are ordered by logit, highest first, ties by id, lowest first. Temperature does not change that order, so
it is only a divisor here. A candidate's weight is the whole number round(2**42 · exp((logit - largest logit) /
temperature)), its probability the weight over the sum of weights. Whole numbers add up to the same sum in any order,
so that another program can add them as it likes and still draw the same token: the compiled twin (csrc/sampling.cpp)
does without the sort that is made here.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IdArray = npt.NDArray[np.int64]
WeightArray = npt.NDArray[np.int64]

ONE = 2.0**42
"""The weight of the most probable candidate."""
MAX_VOCAB_SIZE = 2**21
"""Weights of so many tokens add up to what a 64-bit number holds."""
LEAST_EXPONENT = np.float32(-30.8)
"""exp of it is no weight: exponents below are set to it."""
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_LOG2_E = np.float32(1.44269504088896341)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_COEFFICIENTS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def exponential(x: FloatArray) -> FloatArray:
    """exp(x) for x <= 0, by float32 products and sums alone, each rounded: the same bits on every machine.

    Relative error below 2e-7. x = n · ln 2 + r, then the polynomial of Cephes' expf (Moshier 1992).
    """
    x = np.maximum(x, LEAST_EXPONENT)
    n = np.rint(x * _LOG2_E)
    r = x - n * _LN2_HIGH
    r -= n * _LN2_LOW
    p = np.full_like(r, _COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        p = p * r + np.float32(coefficient)
    p = p * (r * r) + (r + np.float32(1.0))
    result: FloatArray = np.ldexp(p, n.astype(np.int32))
    return result


def exponents_of(logits: FloatArray, largest: np.float32, temperature: float) -> FloatArray:
    """(logit - largest) / temperature, at most 0."""
    with np.errstate(over="ignore"):
        exponents: FloatArray = logits - largest
        if temperature != 1.0:
            exponents /= np.float32(temperature)
    return exponents


def weights_of(logits: FloatArray, largest: np.float32, temperature: float) -> WeightArray:
    """The whole weights of logits, none above `largest`."""
    weights: WeightArray = np.rint(
        exponential(exponents_of(logits, largest, temperature)).astype(np.float64) * ONE
    ).astype(np.int64)
    return weights


def ordered_positions(logits: FloatArray) -> IdArray:
    """All positions by logit, highest first; equal logits keep their places."""
    positions: IdArray = np.argsort(-logits, kind="stable")
    return positions


def top_positions(logits: FloatArray, k: int) -> IdArray:
    """The k (>= 1) first positions in candidate order, ordered; `logits` without NaN."""
    if 4 * k < len(logits):
        kth = np.partition(logits, len(logits) - k)[len(logits) - k]
        positions = np.flatnonzero(logits >= kth)
        top: IdArray = positions[ordered_positions(logits[positions])[:k]]
        return top
    return ordered_positions(logits)[:k]


class Candidates:
    """Tokens that can still be drawn, and their weights.

    `ids` is None while all ids are in, at their own places; a filter replaces `ids` and `logits` by shorter arrays.
    `ordered` says whether they are in candidate order. Nothing here changes the logits it was given: a stage that
    does asks for `writable_logits`.
    """

    __slots__ = ("_first", "_owned", "_weights", "ids", "largest", "logits", "ordered", "temperature")

    def __init__(self, logits: FloatArray) -> None:
        self.ids: IdArray | None = None
        self.logits = logits
        self.temperature = 1.0
        self.ordered = False
        self._first = int(logits.argmax())
        self.largest = logits[self._first]
        """The largest logit; NaN if any is NaN."""
        self._owned = False
        self._weights: WeightArray | None = None

    def writable_logits(self) -> FloatArray:
        """The logits of all ids [vocab], to be changed in place and followed by `logits_changed`."""
        if not self._owned:
            self.logits = self.logits.copy()
            self._owned = True
        return self.logits

    def logits_changed(self) -> None:
        """Take note that logits have changed."""
        self._first = int(self.logits.argmax())
        self.largest = self.logits[self._first]
        self._weights = None

    def set_temperature(self, temperature: float) -> None:
        """Divide the logits by `temperature` (> 0) where probabilities are computed."""
        self.temperature = usable_temperature(temperature)
        self._weights = None

    def exponents(self) -> FloatArray:
        """(logit - largest) / temperature for each candidate, at most 0."""
        return exponents_of(self.logits, self.largest, self.temperature)

    def weights(self) -> WeightArray:
        """The whole weight of each candidate: 2**42 for the most probable one."""
        if self._weights is None:
            self._weights = weights_of(self.logits, self.largest, self.temperature)
        return self._weights

    def total(self) -> int:
        """Sum of the weights (>= 2**42)."""
        return int(self.weights().sum())

    def keep_min_p(self, min_p: float) -> None:
        """Keep candidates at least `min_p` (in (0, 1]) times as probable as the first one."""
        # Compared as logits, so that it holds for tokens that have no weight, too.
        cutoff = float(self.largest) + self.temperature * math.log(min_p)
        self._keep(np.flatnonzero(self.logits >= np.float32(max(cutoff, -_FLOAT32_MAX))), self.ordered)

    def keep_top_k(self, k: int) -> None:
        """Keep the first k (>= 1) candidates."""
        if k < len(self.logits):
            self._keep(np.arange(k) if self.ordered else top_positions(self.logits, k), True)

    def keep_top_p(self, top_p: float) -> None:
        """Keep the fewest first candidates whose probabilities reach `top_p` (in (0, 1))."""
        numerator, denominator = top_p.as_integer_ratio()
        self._keep(self._first_to_reach(-(-numerator * self.total() // denominator)), True)

    def pick(self, u: float) -> int:
        """The first id in candidate order whose cumulative probability exceeds u (in [0, 1))."""
        numerator, denominator = u.as_integer_ratio()
        place = int(self._first_to_reach(numerator * self.total() // denominator + 1)[-1])
        return place if self.ids is None else int(self.ids[place])

    def first(self) -> int:
        """The most probable id, the lowest of equals."""
        return self._first

    def _keep(self, places: IdArray, ordered: bool) -> None:
        self.ids = places if self.ids is None else self.ids[places]
        self.logits = self.logits[places]
        self.ordered = ordered
        self._owned = True
        if self._weights is not None:
            self._weights = self._weights[places]

    def _first_to_reach(self, target: int) -> IdArray:
        """The fewest first places whose weights add up to the target (in 1 … total), in candidate order."""
        order = np.arange(len(self.logits)) if self.ordered else ordered_positions(self.logits)
        return order[: int(self.weights()[order].cumsum().searchsorted(target)) + 1]


def usable_temperature(temperature: float) -> float:
    """At most the largest float32: a masked logit over an infinite divisor would be NaN."""
    return min(temperature, _FLOAT32_MAX)
