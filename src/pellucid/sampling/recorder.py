"""An observer that notes what every stage did to the candidates: the data of a sampling trace.

It runs after the token is known (the draw is a pure function, so a second run of the stages shows the same), which
is why it can say at each stage where the chosen token stood.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.sampling.candidates import Candidates, FloatArray, top_positions


@dataclass(frozen=True, slots=True)
class Standing:
    """One token among the candidates after a stage."""

    token_id: int
    logit: float
    """Divided by the temperature once that stage has run."""
    probability: float
    rank: int
    """1 for the first candidate."""


@dataclass(frozen=True, slots=True)
class StageRecord:
    """The candidates after one stage."""

    name: str
    parameter: Any
    alive: int
    """How many tokens can still be drawn."""
    entropy: float
    """Of their probabilities, in nats."""
    mass_removed: float
    """Probability before the stage of the tokens that it made impossible."""
    top: list[Standing]
    chosen: Standing | None
    """None once the token that was asked about is impossible."""


class StageRecorder:
    """Collects a `StageRecord` for the raw logits and for each stage that ran, in `records`."""

    def __init__(self, chosen: int | None = None, num_top: int = 10) -> None:
        self.chosen = chosen
        self.num_top = num_top
        self.records: list[StageRecord] = []
        self._before: npt.NDArray[np.float64] | None = None
        self._alive_before = 0

    def on_stage(self, name: str, parameter: Any, candidates: Candidates) -> None:
        """See `StageObserver`; reads the candidates and leaves their cached weights as they are."""
        exponents = candidates.exponents().astype(np.float64)
        weights = np.exp(exponents)
        total = float(weights.sum())
        probabilities = weights / total
        alive = candidates.logits > -np.inf
        num_alive = int(np.count_nonzero(alive))
        # log Z - sum(p * exponent), where an impossible token's 0 * -inf counts as 0.
        entropy = math.log(total) - float(probabilities @ np.maximum(exponents, -1e6))
        ids = np.arange(len(probabilities)) if candidates.ids is None else candidates.ids
        places = top_positions(candidates.logits, min(self.num_top, num_alive))
        self.records.append(
            StageRecord(
                name=name,
                parameter=parameter,
                alive=num_alive,
                entropy=max(entropy, 0.0),
                mass_removed=self._mass_removed(ids[alive], num_alive),
                top=[
                    self._standing(candidates, ids, probabilities, int(place), rank)
                    for rank, place in enumerate(places, start=1)
                ],
                chosen=self._chosen(candidates, ids, probabilities),
            )
        )
        self._alive_before = num_alive
        if candidates.ids is None:
            self._before = probabilities
        elif self._before is not None:
            self._before = np.zeros_like(self._before)
            self._before[ids] = probabilities

    def _mass_removed(self, alive_ids: npt.NDArray[np.int64], num_alive: int) -> float:
        if self._before is None or num_alive == self._alive_before:
            return 0.0
        return max(0.0, 1.0 - float(self._before[alive_ids].sum()))

    def _chosen(
        self, candidates: Candidates, ids: npt.NDArray[np.int64], probabilities: npt.NDArray[np.float64]
    ) -> Standing | None:
        if self.chosen is None:
            return None
        found = np.flatnonzero(ids == self.chosen)
        logits: FloatArray = candidates.logits
        if len(found) == 0 or logits[found[0]] == -np.inf:
            return None
        place = int(found[0])
        tied_before = (logits == logits[place]) & (ids < self.chosen)
        rank = 1 + int(np.count_nonzero(logits > logits[place]) + np.count_nonzero(tied_before))
        return self._standing(candidates, ids, probabilities, place, rank)

    @staticmethod
    def _standing(
        candidates: Candidates,
        ids: npt.NDArray[np.int64],
        probabilities: npt.NDArray[np.float64],
        place: int,
        rank: int,
    ) -> Standing:
        logit = float(candidates.logits[place]) / candidates.temperature
        return Standing(int(ids[place]), logit, float(probabilities[place]), rank)
