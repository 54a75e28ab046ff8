"""The data of a sampling trace for one token: what each stage left, where the chosen token stood, the draw.

`StageRecorder` is the definition: it looks at all tokens after every stage. `waterfall` gives the same in a few passes
where it can: stages that change logits are run and looked at, and of the filters behind them, which all keep a run of
first candidates, only the candidates at the head are looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pellucid.kernels.backend import SamplingKernels
from pellucid.sampling.candidates import (
    ONE,
    Candidates,
    FloatArray,
    IdArray,
    WeightArray,
    exponents_of,
    usable_temperature,
    weights_of,
)
from pellucid.sampling.draw import draw_counter, uniform
from pellucid.sampling.recorder import StageRecord, StageRecorder, Standing
from pellucid.sampling.stages import move_logits, run_stages
from pellucid.sampling.state import SamplingState

HEAD_SIZE = 256
"""First candidates that are looked at; where a filter keeps more, the definition runs."""
_NO_WEIGHT = np.float32(-1e4)
"""exp of it is 0, times it too: an impossible token's 0 · −∞ would be NaN."""


@dataclass(frozen=True, slots=True)
class Waterfall:
    """How one token was chosen."""

    token_id: int
    records: list[StageRecord]
    """The raw logits, then each stage that ran."""
    logprob_raw: float
    logprob_final: float
    top2_gap: float
    """Raw logit of the first candidate less that of the second; 0 where there is only one."""
    seed: int
    counter: tuple[int, int, int, int]
    u: float | None
    """The number that drew it; None for a greedy choice, which draws nothing."""


class Waterfalls:
    """Makes waterfalls of rows of one vocabulary's size; keeps arrays for it, so one thread uses it at a time."""

    def __init__(self, vocab_size: int, kernels: SamplingKernels | None, num_top: int = 10) -> None:
        """num_top: first candidates that a record names."""
        self.kernels = kernels
        self.num_top = num_top
        is_large = kernels is not None and vocab_size > HEAD_SIZE
        self.scratch = np.empty((3, vocab_size if is_large else 0), dtype=np.float32)
        """Exponents, weights, and the logits before a stage: new arrays of a vocabulary's size are slow to come by."""

    def of(self, logits: FloatArray, state: SamplingState, token_id: int) -> Waterfall:
        """How `token_id` came out of the raw logits [vocab], which the sampler has just drawn from.

        `state` as the sampler saw it: the token is not in its output yet. A user's logits processors run once more.
        """
        records = None
        if self.kernels is not None and len(logits) > HEAD_SIZE:
            records = self.fast(logits, state, token_id, self.kernels)
        if records is None:
            recorder = StageRecorder(token_id, self.num_top)
            run_stages(logits, state, recorder)
            records = recorder.records
        return finished(records, state, token_id)

    def fast(
        self, logits: FloatArray, state: SamplingState, token_id: int, kernels: SamplingKernels
    ) -> list[StageRecord] | None:
        """The records of `run_stages`; None where a filter keeps more than the head."""
        observer = _MovingStages(token_id, self.num_top, kernels, self.scratch)
        move_logits(logits, state, observer)
        records, head = observer.records, observer.head
        params = state.params
        if params.greedy or head is None:
            return records
        if params.temperature != 1.0:
            head.set_temperature(params.temperature)
            records.append(head.record("temperature", params.temperature, records[-1].alive, 0.0))
        for name, parameter, is_on in (
            ("min_p", params.min_p, params.min_p != 0.0),
            ("top_k", params.top_k, params.top_k > 0),
            ("top_p", params.top_p, params.top_p != 1.0),
        ):
            if not is_on:
                continue
            before = head.total
            alive = head.keep(name, parameter, records[-1].alive)
            if alive is None:
                return None
            records.append(head.record(name, parameter, alive, max(0.0, 1.0 - head.total / before)))
        return records


def finished(records: list[StageRecord], state: SamplingState, token_id: int) -> Waterfall:
    """The records of a run of the stages with the draw that followed."""
    raw, last = records[0], records[-1]
    top = raw.top
    return Waterfall(
        token_id=token_id,
        records=records,
        logprob_raw=_logprob(raw),
        logprob_final=_logprob(last),
        top2_gap=top[0].logit - top[1].logit if len(top) > 1 else 0.0,
        seed=state.seed,
        counter=draw_counter(state.sample_index, state.position),
        u=None if state.params.greedy else uniform(state.seed, state.sample_index, state.position),
    )


def _logprob(record: StageRecord) -> float:
    """By the distance from the first candidate: a weight of its own says little of a token that has next to none."""
    if record.chosen is None:
        return -math.inf
    return math.log(record.top[0].probability) - (record.top[0].logit - record.chosen.logit)


class _MovingStages:
    """Looks at all tokens after the stages that change logits."""

    def __init__(self, token_id: int, num_top: int, kernels: SamplingKernels, scratch: FloatArray) -> None:
        self.records: list[StageRecord] = []
        self.head: _Head | None = None
        """The tokens after the last of them."""
        self._token_id, self._num_top, self._kernels, self._scratch = token_id, num_top, kernels, scratch
        self._before: FloatArray | None = None

    def on_stage(self, name: str, parameter: Any, candidates: Candidates) -> None:
        logits, last = candidates.logits, self.head
        head = self.head = _Head(logits, self._token_id, self._kernels, self._num_top, self._scratch)
        removed = 0.0
        if last is not None and self._before is not None and head.num_possible != last.num_possible:
            gone = np.flatnonzero((logits == -np.inf) & (self._before > -np.inf))
            removed = float(weights_of(self._before[gone], last.largest, 1.0).sum()) / last.total
        self.records.append(head.record(name, parameter, head.num_possible, removed))
        if name == "raw":  # never written to; the others are changed in place
            self._before = logits
        else:
            self._before = self._scratch[2]
            self._before[:] = logits


class _Head:
    """All tokens of one row, of which the first candidates are known one by one."""

    def __init__(
        self, logits: FloatArray, token_id: int, kernels: SamplingKernels, num_top: int, scratch: FloatArray
    ) -> None:
        size = min(HEAD_SIZE, len(logits))
        largest, self.total, self.rank, top = kernels.rank(logits, token_id, size)
        self.largest = np.float32(largest)
        self._logits, self._scratch = logits, scratch
        self._token_id, self._num_top, self._kernels = token_id, num_top, kernels
        self._ids: IdArray = np.array(top, dtype=np.int64)
        self._head = logits[self._ids]
        self.num_possible = len(logits) - int(np.count_nonzero(logits == -np.inf))
        self._size: int | None = None
        """How many first candidates are left; None while all are."""
        self._has_exponents = False
        """Whether `_scratch` has the logits less the largest, divided by the temperature."""
        self._weigh(1.0)

    def set_temperature(self, temperature: float) -> None:
        """Divide the logits, and weigh anew."""
        usable = usable_temperature(temperature)
        with np.errstate(over="ignore"):
            exponents = np.subtract(self._logits, self.largest, out=self._scratch[0])
            exponents /= np.float32(usable)
        self.total = self._kernels.rank(exponents, 0, 0)[1]
        self._has_exponents = True
        self._weigh(usable)

    def _weigh(self, temperature: float) -> None:
        self._temperature = temperature
        self._weights: WeightArray = weights_of(self._head, self.largest, temperature)
        self._ends: WeightArray = self._weights.cumsum()

    def keep(self, name: str, parameter: float, alive: int) -> int | None:
        """Apply a filter to the `alive` first candidates: how many are left, None where that is beyond the head."""
        if name == "min_p":
            cutoff = float(self.largest) + self._temperature * math.log(parameter)
            cutoff = max(cutoff, -float(np.finfo(np.float32).max))
            count = int(np.count_nonzero(self._logits >= np.float32(cutoff)))
        elif name == "top_k":
            count = int(parameter)
        else:
            numerator, denominator = parameter.as_integer_ratio()
            target = -(-numerator * self.total // denominator)
            if int(self._ends[-1]) < target:
                return None
            count = int(self._ends.searchsorted(target)) + 1
        count = min(count, alive)
        if count == alive:
            return alive
        if count > len(self._ids):
            return None
        self._size, self.total = count, int(self._ends[count - 1])
        return count

    def record(self, name: str, parameter: Any, alive: int, mass_removed: float) -> StageRecord:
        shown = min(self._num_top, alive)
        return StageRecord(
            name=name,
            parameter=parameter,
            alive=alive,
            entropy=self._entropy(),
            mass_removed=mass_removed,
            top=[self._standing(place) for place in range(shown)],
            chosen=self._chosen(alive),
        )

    def _standing(self, place: int) -> Standing:
        logit = float(self._head[place]) / self._temperature
        return Standing(int(self._ids[place]), logit, int(self._weights[place]) / self.total, place + 1)

    def _chosen(self, alive: int) -> Standing | None:
        logit = self._logits[self._token_id]
        if self.rank > alive or logit == -np.inf:
            return None
        if self.rank <= len(self._ids):
            return self._standing(self.rank - 1)
        weight = int(weights_of(self._logits[self._token_id, None], self.largest, self._temperature)[0])
        return Standing(self._token_id, float(logit) / self._temperature, weight / self.total, self.rank)

    def _entropy(self) -> float:
        """log Z − Σ p · exponent in nats."""
        if self._size is not None:
            weights = self._weights[: self._size] / ONE
            exponents = exponents_of(self._head[: self._size], self.largest, self._temperature)
            weighted = float((weights * exponents).sum())
        else:
            exponents = self._scratch[0]
            if not self._has_exponents:
                np.subtract(self._logits, self.largest, out=exponents)
            np.maximum(exponents, _NO_WEIGHT, out=exponents)
            dense = np.exp(exponents, out=self._scratch[1])
            # not a dot product: that would wake the BLAS library's threads beside the engine's own
            dense *= exponents
            weighted = float(dense.sum())
        total = self.total / ONE
        return max(0.0, math.log(total) - weighted / total)
