"""The data of a sampling trace for one token: what each stage left, where the chosen token stood, the draw.

`StageRecorder` is the definition: it looks at all tokens after every stage. `Waterfalls` gives the same, and takes
little of the time between two tokens: stages that change logits are run and each result is surveyed in a few passes; of
the filters behind them, which all keep a run of first candidates, only those candidates are looked at. What can be
worked out from that is worked out when somebody reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pellucid.kernels.backend import RowSurvey, SamplingKernels
from pellucid.sampling.candidates import ONE, Candidates, FloatArray, exponents_of, usable_temperature, weights_of
from pellucid.sampling.draw import draw_counter, uniform
from pellucid.sampling.recorder import StageRecord, StageRecorder, Standing
from pellucid.sampling.stages import move_logits, run_stages, stages_that_move_logits
from pellucid.sampling.state import SamplingState

HEAD_SIZES = (128, 4096)
"""First candidates that are looked at; where a filter keeps more than the last, the definition runs."""
_LOWEST = -float(np.finfo(np.float32).max)


class Waterfall:
    """How one token was chosen. Its records are made when they are asked for."""

    __slots__ = ("_make", "_records", "counter", "seed", "token_id", "u")

    def __init__(self, state: SamplingState, token_id: int, make: Callable[[], list[StageRecord]]) -> None:
        """`state` as the sampler saw it: the token is not in its output yet."""
        self.token_id = token_id
        self.seed = state.seed
        self.counter = draw_counter(state.sample_index, state.position)
        self.u = None if state.params.greedy else uniform(state.seed, state.sample_index, state.position)
        """The number that drew it; None for a greedy choice, which draws nothing."""
        self._make: Callable[[], list[StageRecord]] | None = make
        self._records: list[StageRecord] = []

    @property
    def records(self) -> list[StageRecord]:
        """The raw logits, then each stage that ran."""
        if self._make is not None:
            self._records, self._make = self._make(), None
        return self._records

    @property
    def logprob_raw(self) -> float:
        """Under the raw logits."""
        return _logprob(self.records[0])

    @property
    def logprob_final(self) -> float:
        """Under what it was drawn from."""
        return _logprob(self.records[-1])

    @property
    def top2_gap(self) -> float:
        """Raw logit of the first candidate less that of the second; 0 where there is only one."""
        top = self.records[0].top
        return top[0].logit - top[1].logit if len(top) > 1 else 0.0


def _logprob(record: StageRecord) -> float:
    """By the distance from the first candidate: a weight of its own says little of a token that has next to none."""
    if record.chosen is None:
        return -math.inf
    return math.log(record.top[0].probability) - (record.top[0].logit - record.chosen.logit)


class Waterfalls:
    """Makes waterfalls."""

    def __init__(self, kernels: SamplingKernels | None, num_top: int = 10) -> None:
        """num_top: first candidates that a record names."""
        self.kernels = kernels
        self.num_top = num_top

    def of(self, logits: FloatArray, state: SamplingState, token_id: int) -> Waterfall:
        """How `token_id` came out of the raw logits [vocab], which the sampler has just drawn from.

        `state` as the sampler saw it. A user's logits processors run once more.
        """
        looks = None
        if self.kernels is not None:
            looks = self.quick(logits, state, token_id, self.kernels)
        if looks is not None:
            return Waterfall(state, token_id, lambda: [look.record(token_id, self.num_top) for look in looks])
        recorder = StageRecorder(token_id, self.num_top)
        run_stages(logits, state, recorder)
        return Waterfall(state, token_id, lambda: recorder.records)

    def quick(
        self, logits: FloatArray, state: SamplingState, token_id: int, kernels: SamplingKernels
    ) -> list[Look] | None:
        """A look at the tokens after each stage of `run_stages`; None where a filter keeps too many to be looked at."""
        params = state.params
        temperature = 1.0 if params.greedy else usable_temperature(params.temperature)
        size = HEAD_SIZES[0]
        if stages_that_move_logits(state):
            observer = _MovingStages(token_id, kernels)
            logits = move_logits(logits, state, observer).logits
            looks = observer.looks
            survey = looks[-1].survey
            if temperature != 1.0:
                survey = kernels.survey(logits, token_id, temperature, size)
        else:
            survey = kernels.survey(logits, token_id, temperature, size)
            looks = [Look("raw", None, survey, 1.0, survey.possible, 0.0, logits.item(token_id))]
        if params.greedy:
            return looks
        found = _filtered(looks, survey, logits, state, token_id)
        if found is None:
            found = _filtered(
                looks, kernels.survey(logits, token_id, temperature, HEAD_SIZES[-1]), logits, state, token_id
            )
        return found


@dataclass(slots=True)
class Look:
    """What is known of the tokens after one stage."""

    name: str
    parameter: Any
    survey: RowSurvey
    temperature: float
    """1 for a look at the raw weights of a survey at another one."""
    alive: int
    """How many first candidates are left."""
    mass_removed: float
    chosen_logit: float
    total: int | None = None
    """The weight of those that are left, where a filter has run."""

    def record(self, token_id: int, num_top: int) -> StageRecord:
        """Worked out."""
        survey = self.survey
        ids = np.frombuffer(survey.ids, dtype=np.int32)
        logits: FloatArray = np.frombuffer(survey.logits, dtype=np.float32)
        is_raw = self.total is None and self.name != "temperature"
        total = self.total or (survey.raw_weight if is_raw else survey.weight)
        largest = np.float32(survey.largest)
        temperature = 1.0 if is_raw else self.temperature
        shown = min(num_top, self.alive, len(ids))
        weights = weights_of(logits[:shown], largest, temperature).tolist()

        def standing(one: int, logit: float, weight: int, rank: int) -> Standing:
            return Standing(one, logit / temperature, weight / total, rank)

        top = [standing(int(ids[i]), float(logits[i]), weights[i], i + 1) for i in range(shown)]
        chosen = None
        if survey.rank <= self.alive and self.chosen_logit > -math.inf:
            own = weights_of(np.array([self.chosen_logit], dtype=np.float32), largest, temperature)
            chosen = standing(token_id, self.chosen_logit, int(own[0]), survey.rank)
        entropy = self._entropy(logits, total, largest, temperature, is_raw)
        return StageRecord(self.name, self.parameter, self.alive, entropy, self.mass_removed, top, chosen)

    def _entropy(self, logits: FloatArray, total: int, largest: np.float32, temperature: float, is_raw: bool) -> float:
        """log Z − Σ p · exponent in nats."""
        if self.total is None or self.alive == self.survey.possible:
            moment = self.survey.raw_moment if is_raw else self.survey.moment
        else:
            left = logits[: self.alive]
            weights = weights_of(left, largest, temperature) / ONE
            moment = -float((weights * exponents_of(left, largest, temperature)).sum())
        normaliser = total / ONE
        return max(0.0, math.log(normaliser) + moment / normaliser)


class _MovingStages:
    """Surveys all tokens after each stage that changes logits."""

    def __init__(self, token_id: int, kernels: SamplingKernels) -> None:
        self.looks: list[Look] = []
        self._token_id, self._kernels = token_id, kernels
        self._before: FloatArray | None = None

    def on_stage(self, name: str, parameter: Any, candidates: Candidates) -> None:
        logits = candidates.logits
        survey = self._kernels.survey(logits, self._token_id, 1.0, HEAD_SIZES[0])
        removed = 0.0
        if self._before is not None and survey.possible != self.looks[-1].survey.possible:
            last = self.looks[-1].survey
            gone = self._before[(logits == -np.inf) & (self._before > -np.inf)]
            removed = float(weights_of(gone, np.float32(last.largest), 1.0).sum()) / last.raw_weight
        chosen = logits.item(self._token_id)
        self.looks.append(Look(name, parameter, survey, 1.0, survey.possible, removed, chosen))
        self._before = logits if name == "raw" else logits.copy()  # the raw ones are never written to


def _filtered(
    looks: list[Look], survey: RowSurvey, logits: FloatArray, state: SamplingState, token_id: int
) -> list[Look] | None:
    """`looks` and those after temperature and filters; None where a filter keeps more tokens than the survey has."""
    params = state.params
    temperature = usable_temperature(params.temperature)
    found = list(looks)
    alive, total, chosen = survey.possible, survey.weight, logits.item(token_id)
    if params.temperature != 1.0:
        found.append(Look("temperature", params.temperature, survey, temperature, alive, 0.0, chosen))
    if params.min_p == 0.0 and params.top_k <= 0 and params.top_p == 1.0:
        return found
    ends = np.frombuffer(survey.ends, dtype=np.uint64)
    for name, parameter, is_on in (
        ("min_p", params.min_p, params.min_p != 0.0),
        ("top_k", params.top_k, params.top_k > 0),
        ("top_p", params.top_p, params.top_p != 1.0),
    ):
        if not is_on:
            continue
        if name == "min_p":
            cutoff = max(survey.largest + temperature * math.log(parameter), _LOWEST)
            count = int(np.count_nonzero(logits >= np.float32(cutoff)))
        elif name == "top_k":
            count = int(parameter)
        else:
            numerator, denominator = float(parameter).as_integer_ratio()
            target = -(-numerator * total // denominator)
            count = int(ends.searchsorted(np.uint64(target))) + 1
        before = total
        if count < alive:
            if count > len(ends):
                return None
            alive, total = count, int(ends[count - 1])
        found.append(Look(name, parameter, survey, temperature, alive, max(0.0, 1.0 - total / before), chosen, total))
    return found
