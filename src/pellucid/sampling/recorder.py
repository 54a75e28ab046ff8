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

from pellucid.sampling.candidates import Candidates, FloatArray, IdArray, top_positions


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
        self._before: FloatArray | None = None
        self._total_before = 1.0
        self._alive_before = 0

    def on_stage(self, name: str, parameter: Any, candidates: Candidates) -> None:
        """See `StageObserver`; reads the candidates and leaves their cached weights as they are."""
        alive = candidates.logits > -np.inf
        num_alive = int(np.count_nonzero(alive))
        exponents = candidates.exponents()
        weights = np.exp(exponents)
        total = float(weights.sum(dtype=np.float64))
        places = top_positions(candidates.logits, min(self.num_top, num_alive)).tolist()
        self.records.append(
            StageRecord(
                name=name,
                parameter=parameter,
                alive=num_alive,
                entropy=_entropy(weights, exponents, total),
                mass_removed=self._mass_removed(candidates, alive, num_alive),
                top=[_standing(candidates, weights, total, place, rank) for rank, place in enumerate(places, start=1)],
                chosen=self._chosen(candidates, weights, total),
            )
        )
        self._alive_before = num_alive
        self._total_before = total
        if candidates.ids is None:
            self._before = weights
        elif self._before is not None:
            self._before = np.zeros_like(self._before)
            self._before[candidates.ids] = weights

    def _mass_removed(self, candidates: Candidates, alive: npt.NDArray[np.bool_], num_alive: int) -> float:
        if self._before is None or num_alive == self._alive_before:
            return 0.0
        kept = self._before * alive if candidates.ids is None else self._before[candidates.ids] * alive
        return max(0.0, 1.0 - float(kept.sum(dtype=np.float64)) / self._total_before)

    def _chosen(self, candidates: Candidates, weights: FloatArray, total: float) -> Standing | None:
        if self.chosen is None:
            return None
        place = self.chosen if candidates.ids is None else _place_of(self.chosen, candidates.ids)
        logits = candidates.logits
        if place is None or logits[place] == -np.inf:
            return None
        tied = np.flatnonzero(logits == logits[place])
        tied_ids = tied if candidates.ids is None else candidates.ids[tied]
        rank = 1 + int(np.count_nonzero(logits > logits[place]) + np.count_nonzero(tied_ids < self.chosen))
        return _standing(candidates, weights, total, place, rank)


def _place_of(token_id: int, ids: IdArray) -> int | None:
    found = np.flatnonzero(ids == token_id)
    return int(found[0]) if len(found) else None


def _entropy(weights: FloatArray, exponents: FloatArray, total: float) -> float:
    """log Z - sum(p * exponent) in nats; an impossible token's 0 * -inf counts as 0. Overwrites `exponents`."""
    np.maximum(exponents, np.float32(-1e6), out=exponents)
    # Not a dot product: that would wake the BLAS library's threads beside the engine's own.
    exponents *= weights
    return max(0.0, math.log(total) - float(exponents.sum(dtype=np.float64)) / total)


def _standing(candidates: Candidates, weights: FloatArray, total: float, place: int, rank: int) -> Standing:
    token_id = place if candidates.ids is None else int(candidates.ids[place])
    logit = float(candidates.logits[place]) / candidates.temperature
    return Standing(token_id, logit, float(weights[place]) / total, rank)
