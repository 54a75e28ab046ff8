"""The data of a sampling trace for one token: what each stage left, where the chosen token stood, the draw.

`StageRecorder` is the definition: it looks at all tokens after every stage. `Waterfalls` gives the same, and takes
little of the time between two tokens: stages that change logits are run and each result is surveyed in a few passes; of
the filters behind them, which all keep a run of first candidates, only those candidates are looked at. What can be
worked out from that is worked out when somebody reads it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pellucid.kernels.backend import RowSurvey, SamplingKernels
from pellucid.sampling.candidates import ONE, Candidates, FloatArray, exponents_of, usable_temperature, weights_of
from pellucid.sampling.draw import draw_counter, uniform
from pellucid.sampling.recorder import StageRecord, StageRecorder, Standing
from pellucid.sampling.stages import move_logits, run_stages, stages_that_move_logits
from pellucid.sampling.state import SamplingState
from pellucid.sampling_params import SamplingParams

HEAD_SIZES = (128, 4096)
"""First candidates that are looked at; where a filter keeps more than the last, the definition runs."""
_LOWEST = -float(np.finfo(np.float32).max)


class Waterfall:
    """How one token was chosen. Its records are made when they are asked for."""

    __slots__ = ("_drawn_at", "_make", "_records", "counter", "seed", "token_id")

    def __init__(self, state: SamplingState, token_id: int, make: Callable[[], list[StageRecord]] | None) -> None:
        """`state` as the sampler saw it: the token is not in its output yet. Without `make`, `settle` is to come."""
        self.token_id = token_id
        self.seed = state.seed
        self.counter = draw_counter(state.sample_index, state.position)
        self._drawn_at = None if state.params.greedy else (state.seed, state.sample_index, state.position)
        self._make = make
        self._records: list[StageRecord] = []

    def settle(self, make: Callable[[], list[StageRecord]]) -> None:
        """`make` gives the records when they are asked for."""
        self._make = make

    @property
    def u(self) -> float | None:
        """The number that drew it; None for a greedy choice, which draws nothing."""
        return None if self._drawn_at is None else uniform(*self._drawn_at)

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


_Row = tuple[Waterfall, FloatArray, SamplingState]
"""A row to survey."""


class Waterfalls:
    """Makes waterfalls."""

    def __init__(self, kernels: SamplingKernels | None, num_top: int = 10) -> None:
        """num_top: first candidates that a record names."""
        self.kernels = kernels
        self.num_top = num_top
        self._pending: list[_Row] = []
        """Rows that are still to be surveyed …"""
        self._running: list[_Row] = []
        """… those being surveyed …"""
        self._surveys: Callable[[], list[RowSurvey]] | None = None
        """… and what waits for them."""
        self._ahead: dict[int, Waterfall] = {}
        """Of rows drawn side by side, by the identity of their state."""

    def ahead(self, rows: Sequence[tuple[FloatArray, SamplingState, int]]) -> None:
        """Begin to survey rows, each with its token, whose logits no stage changes; `later` gives their waterfalls."""
        for logits, state, token_id in rows:
            waterfall = self._ahead[id(state)] = Waterfall(state, token_id, None)
            self._pending.append((waterfall, logits, state))
        self._begin()

    def later(self, logits: FloatArray, state: SamplingState, token_id: int) -> Waterfall:
        """As `of`, but rows whose logits no stage changes are surveyed beside what the caller does until `settle`."""
        waterfall = self._ahead.pop(id(state), None)
        if waterfall is not None:
            return waterfall
        if self.kernels is None or stages_that_move_logits(state):
            return self.of(logits, state, token_id)
        waterfall = Waterfall(state, token_id, None)
        self._pending.append((waterfall, logits, state))
        self._begin()
        return waterfall

    def settle(self) -> None:
        """Wait for the surveys. To be called while their logits are still there."""
        while self._surveys is not None:
            self._finish(self._surveys())
            self._begin()
        self._ahead.clear()

    def _begin(self) -> None:
        """Survey what waits, unless something else is being surveyed."""
        if self._surveys is None and self._pending and self.kernels is not None:
            self._running, self._pending = self._pending, []
            rows = [(logits, one.token_id, _temperature(state)) for one, logits, state in self._running]
            self._surveys = self.kernels.start_surveys(rows, HEAD_SIZES[0])

    def _finish(self, surveys: list[RowSurvey]) -> None:
        assert self.kernels is not None
        for (waterfall, logits, state), survey in zip(self._running, surveys, strict=True):
            token_id = waterfall.token_id
            if _is_enough(survey, state.params):
                waterfall.settle(self._late_maker(survey, logits.item(token_id), state.params, token_id))
            else:
                looks = self._looks(survey, logits, state, token_id, self.kernels)
                waterfall.settle(self._record_maker(looks, logits, state, token_id))
        self._running, self._surveys = [], None

    def _late_maker(
        self, survey: RowSurvey, chosen: float, params: SamplingParams, token_id: int
    ) -> Callable[[], list[StageRecord]]:
        """From a survey that has all that the filters leave."""

        def make() -> list[StageRecord]:
            looks = [Look("raw", None, survey, 1.0, survey.possible, 0.0, chosen)]
            if not params.greedy:
                looks = _filtered(looks, survey, None, chosen, params) or looks
            return [look.record(token_id, self.num_top) for look in looks]

        return make

    def forget(self) -> None:
        """Let go of what waits: its step has failed."""
        self._surveys = None
        self._pending.clear()
        self._running.clear()
        self._ahead.clear()

    def of(self, logits: FloatArray, state: SamplingState, token_id: int) -> Waterfall:
        """How `token_id` came out of the raw logits [vocab], which the sampler has just drawn from.

        `state` as the sampler saw it. A user's logits processors run once more.
        """
        looks = None
        if self.kernels is not None:
            looks = self.quick(logits, state, token_id, self.kernels)
        return Waterfall(state, token_id, self._record_maker(looks, logits, state, token_id))

    def _record_maker(
        self, looks: list[Look] | None, logits: FloatArray, state: SamplingState, token_id: int
    ) -> Callable[[], list[StageRecord]]:
        """From the looks, or by the definition, which runs now, where there are none."""
        if looks is not None:
            return lambda: [look.record(token_id, self.num_top) for look in looks]
        recorder = StageRecorder(token_id, self.num_top)
        run_stages(logits, state, recorder)
        return lambda: recorder.records

    def quick(
        self, logits: FloatArray, state: SamplingState, token_id: int, kernels: SamplingKernels
    ) -> list[Look] | None:
        """A look at the tokens after each stage of `run_stages`; None where a filter keeps too many to be looked at."""
        temperature, size = _temperature(state), HEAD_SIZES[0]
        if not stages_that_move_logits(state):
            survey = kernels.survey(logits, token_id, temperature, size)
            return self._looks(survey, logits, state, token_id, kernels)
        observer = _MovingStages(token_id, kernels)
        logits = move_logits(logits, state, observer).logits
        survey = observer.looks[-1].survey
        if temperature != 1.0:
            survey = kernels.survey(logits, token_id, temperature, size)
        return self._all_looks(observer.looks, survey, logits, state, token_id, kernels)

    def _looks(
        self, survey: RowSurvey, logits: FloatArray, state: SamplingState, token_id: int, kernels: SamplingKernels
    ) -> list[Look] | None:
        """Where no stage changes logits."""
        raw = Look("raw", None, survey, 1.0, survey.possible, 0.0, logits.item(token_id))
        return self._all_looks([raw], survey, logits, state, token_id, kernels)

    def _all_looks(
        self,
        looks: list[Look],
        survey: RowSurvey,
        logits: FloatArray,
        state: SamplingState,
        token_id: int,
        kernels: SamplingKernels,
    ) -> list[Look] | None:
        """`looks` and those behind temperature and filters."""
        if state.params.greedy:
            return looks
        chosen = logits.item(token_id)
        found = _filtered(looks, survey, logits, chosen, state.params)
        if found is None:
            larger = kernels.survey(logits, token_id, _temperature(state), HEAD_SIZES[-1])
            found = _filtered(looks, larger, logits, chosen, state.params)
        return found


def _temperature(state: SamplingState) -> float:
    return 1.0 if state.params.greedy else usable_temperature(state.params.temperature)


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


def _is_enough(survey: RowSurvey, params: SamplingParams) -> bool:
    """Whether the survey has every candidate that the filters leave, so that the logits are not needed any more."""
    if params.greedy:
        return True
    if params.min_p != 0.0:
        return False
    known = len(survey.ends) // 8
    if params.top_k > 0:
        return params.top_k <= known
    return (
        params.top_p == 1.0
        or survey.possible <= known
        or (int.from_bytes(survey.ends[-8:], sys.byteorder) >= _share(params.top_p, survey.weight))
    )


def _share(top_p: float, total: int) -> int:
    """The least weight that is top_p of the total."""
    numerator, denominator = float(top_p).as_integer_ratio()
    return -(-numerator * total // denominator)


def _filtered(
    looks: list[Look], survey: RowSurvey, logits: FloatArray | None, chosen: float, params: SamplingParams
) -> list[Look] | None:
    """`looks` and those after temperature and filters; None where a filter keeps more tokens than the survey has.

    `logits` are needed for min_p only.
    """
    temperature = usable_temperature(params.temperature)
    found = list(looks)
    alive, total = survey.possible, survey.weight
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
            assert logits is not None
            count = int(np.count_nonzero(logits >= np.float32(cutoff)))
        elif name == "top_k":
            count = int(parameter)
        else:
            count = int(ends.searchsorted(np.uint64(_share(parameter, total)))) + 1
        before = total
        if count < alive:
            if count > len(ends):
                return None
            alive, total = count, int(ends[count - 1])
        found.append(Look(name, parameter, survey, temperature, alive, max(0.0, 1.0 - total / before), chosen, total))
    return found
