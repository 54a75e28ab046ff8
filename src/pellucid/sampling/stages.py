"""The ordered stages between raw logits and the draw: `STAGES`, as the house plan's sampling order has them.

A stage whose parameter is at its neutral value does not run. Greedy decoding skips the stages that keep the
most probable token where it is. An observer, if there is one, is shown the candidates after every stage that ran.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pellucid.errors import InvalidParameterError, NonFiniteError, one_line
from pellucid.request import LogitsProcessor
from pellucid.sampling.candidates import Candidates, FloatArray
from pellucid.sampling.state import SamplingState


class StageObserver(Protocol):
    """Watches a run of the stages."""

    def on_stage(self, name: str, parameter: Any, candidates: Candidates) -> None:
        """Called with "raw" before the first stage, then after each stage that ran.

        `candidates` goes on to change: copy what you keep, change nothing.
        """
        ...


@dataclass(frozen=True, slots=True)
class Stage:
    """One step from logits to candidates."""

    name: str
    parameter: Callable[[SamplingState], Any]
    """The parameter's value, or None where the stage is neutral and does not run, now or later in this answer."""
    apply: Callable[[Candidates, SamplingState], None]
    moves_logits: bool
    """Whether the most probable token can change; the others are skipped by greedy decoding."""


def _unless(value: float, neutral: float) -> float | None:
    return None if value == neutral else value


def _logit_bias(candidates: Candidates, state: SamplingState) -> None:
    logits = candidates.writable_logits()
    for token_id, bias in state.params.logit_bias.items():
        logits[token_id] += np.float32(bias)


def _allowed_token_ids(candidates: Candidates, state: SamplingState) -> None:
    logits = candidates.writable_logits()
    allowed = state.id_array("allowed", state.params.allowed_token_ids or (), len(logits))
    kept = logits[allowed]
    logits.fill(-np.inf)
    logits[allowed] = kept


def _banned_token_ids(candidates: Candidates, state: SamplingState) -> None:
    logits = candidates.writable_logits()
    logits[state.id_array("banned", state.params.banned_token_ids, len(logits))] = -np.inf


def _min_tokens(candidates: Candidates, state: SamplingState) -> None:
    logits = candidates.writable_logits()
    logits[state.id_array("end", state.end_token_ids, len(logits))] = -np.inf


def _active_min_tokens(state: SamplingState) -> int | None:
    missing = len(state.output_token_ids) < state.params.min_tokens
    if state.constraint is not None and state.constraint.must_end:  # the structure has nothing else to go on with
        return None
    return state.params.min_tokens if missing and state.end_token_ids else None


def _logits_processors(candidates: Candidates, state: SamplingState) -> None:
    logits = candidates.writable_logits()
    for processor in state.logits_processors:
        logits = _processed(processor, list(state.output_token_ids), logits)
    candidates.logits = logits


def _processed(processor: LogitsProcessor, output_token_ids: list[int], logits: FloatArray) -> FloatArray:
    name, shape = getattr(processor, "__name__", type(processor).__name__), logits.shape
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold is reported below
            given = np.asarray(processor(output_token_ids, logits))
            result: FloatArray = given.astype(np.float32, casting="same_kind", copy=False)
    except Exception as error:  # a user's code: its failure is this request's alone
        raise InvalidParameterError(
            "logits_processors", f"logits processor {name} failed with {type(error).__name__}: {one_line(str(error))}"
        ) from error
    if result.shape != shape:
        raise InvalidParameterError(
            "logits_processors",
            f"logits processor {name} gave an array of shape {result.shape}, but must give {shape}",
        )
    top = result[result.argmax()]
    if np.isnan(top) or top == np.inf:
        raise NonFiniteError(f"logits processor {name} gave a logit of {top}, but they must be finite or -inf")
    # The result may be an array the processor keeps: later stages write into their own.
    return result if result is logits and result.flags.writeable else result.copy()


def _structured_outputs(candidates: Candidates, state: SamplingState) -> None:
    """After the user's processors, which so cannot make possible what the structure forbids."""
    if state.constraint is not None:
        state.constraint.apply(candidates.writable_logits())


def _repetition_penalty(candidates: Candidates, state: SamplingState) -> None:
    """Keskar et al., "CTRL", 2019, section 4.1, with negative logits multiplied so that they fall too."""
    logits = candidates.writable_logits()
    ids = state.token_counts().ids
    values = logits[ids]
    # A processor's huge logits may end beyond float32, which the check after this stage reports.
    with np.errstate(over="ignore"):
        penalty = np.float32(state.params.repetition_penalty)
        logits[ids] = np.where(values > 0, values / penalty, values * penalty)


def _frequency_penalty(candidates: Candidates, state: SamplingState) -> None:
    logits = candidates.writable_logits()
    counts = state.token_counts()
    logits[counts.ids] -= np.float32(state.params.frequency_penalty) * counts.output_counts


def _presence_penalty(candidates: Candidates, state: SamplingState) -> None:
    logits = candidates.writable_logits()
    counts = state.token_counts()
    logits[counts.ids[counts.output_counts > 0]] -= np.float32(state.params.presence_penalty)


STAGES: tuple[Stage, ...] = (
    Stage("logit_bias", lambda s: s.params.logit_bias or None, _logit_bias, True),
    Stage("allowed_token_ids", lambda s: s.params.allowed_token_ids, _allowed_token_ids, True),
    Stage("banned_token_ids", lambda s: s.params.banned_token_ids or None, _banned_token_ids, True),
    Stage("min_tokens", _active_min_tokens, _min_tokens, True),
    Stage("logits_processors", lambda s: s.logits_processors or None, _logits_processors, True),
    Stage("structured_outputs", lambda s: s.constraint and s.constraint.kind, _structured_outputs, True),
    Stage("repetition_penalty", lambda s: _unless(s.params.repetition_penalty, 1.0), _repetition_penalty, True),
    Stage("frequency_penalty", lambda s: _unless(s.params.frequency_penalty, 0.0), _frequency_penalty, True),
    Stage("presence_penalty", lambda s: _unless(s.params.presence_penalty, 0.0), _presence_penalty, True),
    Stage(
        "temperature",
        lambda s: _unless(s.params.temperature, 1.0),
        lambda c, s: c.set_temperature(s.params.temperature),
        False,
    ),
    Stage("min_p", lambda s: _unless(s.params.min_p, 0.0), lambda c, s: c.keep_min_p(s.params.min_p), False),
    Stage(
        "top_k",
        lambda s: s.params.top_k if s.params.top_k > 0 else None,
        lambda c, s: c.keep_top_k(s.params.top_k),
        False,
    ),
    Stage("top_p", lambda s: _unless(s.params.top_p, 1.0), lambda c, s: c.keep_top_p(s.params.top_p), False),
)
"""All stages in their order; the draw follows the last one."""


_MASKING = ("allowed_token_ids", "banned_token_ids", "min_tokens", "logits_processors", "structured_outputs")


def run_stages(logits: FloatArray, state: SamplingState, observer: StageObserver | None = None) -> Candidates:
    """The candidates that are left after every stage, and their weights.

    `logits` are float32 [vocab], read and not changed. Raises `NonFiniteError` for NaN and +inf, and
    `InvalidParameterError` where the parameters leave no token that can be drawn.
    """
    candidates = move_logits(logits, state, observer)
    if state.params.greedy:
        return candidates
    for stage in STAGES:
        parameter = None if stage.moves_logits else stage.parameter(state)
        if parameter is not None:
            stage.apply(candidates, state)
            if observer is not None:
                observer.on_stage(stage.name, parameter, candidates)
    return candidates


def stages_that_move_logits(state: SamplingState) -> tuple[Stage, ...]:
    """Those that change this answer's logits, now or earlier; looked up once for an answer."""
    if state.moving_stages is None:
        state.moving_stages = tuple(s for s in STAGES if s.moves_logits and s.parameter(state) is not None)
    return state.moving_stages


def move_logits(logits: FloatArray, state: SamplingState, observer: StageObserver | None = None) -> Candidates:
    """All tokens, after the stages that change logits; raises as `run_stages`."""
    candidates = Candidates(logits)
    check_raw(float(candidates.largest))
    if observer is not None:
        observer.on_stage("raw", None, candidates)
    moved = False
    for stage in stages_that_move_logits(state):
        parameter = stage.parameter(state)
        if parameter is None:
            continue
        stage.apply(candidates, state)
        moved = True
        if observer is not None:
            _check_moved(candidates, state)
            observer.on_stage(stage.name, parameter, candidates)
    if moved:
        _check_moved(candidates, state)
    return candidates


def check_raw(largest: float) -> None:
    """Raise `NonFiniteError` unless the model's largest logit is finite."""
    if not math.isfinite(largest):
        raise NonFiniteError(f"the model's logits are not finite: the largest is {largest}")


def _check_moved(candidates: Candidates, state: SamplingState) -> None:
    candidates.logits_changed()
    largest = float(candidates.largest)
    if largest == -np.inf:
        running = [stage.name for stage in STAGES if stage.moves_logits and stage.parameter(state) is not None]
        masking = [name for name in running if name in _MASKING] or running
        names = ", ".join(masking)
        raise InvalidParameterError(masking[0], f"no token can be drawn: {names} make every one impossible")
    if not np.isfinite(largest):
        raise NonFiniteError(f"the penalties or biases of this request made a logit {largest}")
