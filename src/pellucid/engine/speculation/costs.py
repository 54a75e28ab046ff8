"""What a step takes as a function of its rows: a measured shape, corrected by what the engine observes.

Only the choice of how many drafts to verify reads it, and that changes no answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Rows at which the cost is kept; between them it is a straight line, and beyond them the last one goes on."""
SHAPE = (1.0, 1.07, 1.26, 1.32, 1.72, 2.1, 2.95, 3.8, 5.5, 7.2, 10.6, 14.0)
"""The default model on two cores with AVX-512 VNNI, one row being 1 (docs/speculation.md)."""
PRIOR_WEIGHT = 3.0
"""Observations that the shape, scaled by what was seen nearby, counts as at a knot where nothing was seen; less and
less as observations come in."""
FARTHER = 0.25
"""What a knot's observations count for another, for each step between the two: the machine has a shape of its own."""
MEMORY = 0.9
"""What an observation's weight is multiplied by with each later one at its knot."""
ALL_SEEN, THEN_EVERY = 64, 8
"""So many steps are all observed, after them every eighth: keeping up costs less than a thousandth of a step."""
FORGET_AFTER = 50
"""Observations at other knots after which a knot's own count half."""
OUTLIER = 1.5
"""An observation counts as at most so many times the estimate: the machine was busy elsewhere."""


class StepCosts:
    """Seconds of a step of so many rows; until something is seen, in units of a step of one row."""

    def __init__(self) -> None:
        self._mean = [0.0] * len(KNOTS)
        self._weight = [0.0] * len(KNOTS)
        self._seen_at = [0] * len(KNOTS)
        self._num_seen = 0
        self._num_offered = 0
        self._estimates: list[float] = []

    @property
    def is_seen(self) -> bool:
        """Whether a step was observed."""
        return self._num_seen > 0

    def seconds(self, num_rows: int) -> float:
        """The estimate for a step of `num_rows` rows, 1 or more; it never falls with more rows."""
        costs = self._estimates or self._estimate()
        place = min(bisect_left(KNOTS, num_rows), len(KNOTS) - 1)
        if KNOTS[place] == num_rows:
            return costs[place]
        low, high = KNOTS[place - 1], KNOTS[place]
        return costs[place - 1] + (costs[place] - costs[place - 1]) * (num_rows - low) / (high - low)

    def observe(self, num_rows: int, seconds: float) -> None:
        """A step of `num_rows` rows took so long; counts at the nearest knot, scaled to it by the shape."""
        if not 1 <= num_rows <= KNOTS[-1] or seconds <= 0.0:
            return
        self._num_offered += 1
        if self._num_offered > ALL_SEEN and self._num_offered % THEN_EVERY:
            return
        expected = self.seconds(num_rows)
        place = min(range(len(KNOTS)), key=lambda knot: abs(KNOTS[knot] - num_rows))
        first = not self._num_seen
        ratio = seconds / expected if first else min(seconds / expected, OUTLIER)
        at_knot = self.seconds(KNOTS[place]) * ratio
        self._num_seen += 1
        weight = self._weight_now(place) * MEMORY
        self._mean[place] = (self._mean[place] * weight + at_knot) / (weight + 1.0)
        self._weight[place], self._seen_at[place] = weight + 1.0, self._num_seen
        self._estimates = []

    def _weight_now(self, place: int) -> float:
        return float(self._weight[place] * 0.5 ** ((self._num_seen - self._seen_at[place]) / FORGET_AFTER))

    def _estimate(self) -> list[float]:
        weights = [self._weight_now(place) for place in range(len(KNOTS))]
        costs: list[float] = []
        for place, (weight, mean, shape) in enumerate(zip(weights, self._mean, SHAPE, strict=True)):
            prior = PRIOR_WEIGHT * max(0.0, 1.0 - weight * (1.0 - MEMORY))
            cost = (weight * mean + prior * shape * self._scale_at(place, weights)) / (weight + prior)
            costs.append(max(cost, costs[-1] if costs else 0.0))
        self._estimates = costs
        return costs

    def _scale_at(self, place: int, weights: Sequence[float]) -> float:
        """Seconds for one of the shape's units, by what was seen at other knots, the nearer the more."""
        near = [weight * FARTHER ** abs(place - other) for other, weight in enumerate(weights)]
        if len(near) - near.count(0.0) > 1:
            near[place] = 0.0  # counts by itself
        total = sum(near)
        if total == 0.0:
            return 1.0
        return sum(weight * mean / shape for weight, mean, shape in zip(near, self._mean, SHAPE, strict=True)) / total
