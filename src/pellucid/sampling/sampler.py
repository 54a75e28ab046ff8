"""One call per token: raw logits and the answer's state in, the chosen id and its raw logprobs out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pellucid.errors import InvalidParameterError, UnsupportedModelError
from pellucid.kernels.backend import RowDraw, SamplingKernels
from pellucid.sampling.candidates import MAX_VOCAB_SIZE, FloatArray, usable_temperature
from pellucid.sampling.draw import uniform
from pellucid.sampling.logprobs import raw_logprobs
from pellucid.sampling.stages import StageObserver, check_raw, move_logits, run_stages, stages_that_move_logits
from pellucid.sampling.state import SamplingState
from pellucid.sampling_params import SamplingParams

__all__ = ["SampledToken", "Sampler", "SamplingState", "check_params_against_vocab"]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The chosen token; the logprobs are those of the raw logits, and None unless `params.logprobs` is set."""

    token_id: int
    logprob: float | None = None
    top_logprobs: list[tuple[int, float, int]] | None = None
    """(id, logprob, rank): the chosen token first, then the most probable ones without it."""


class Sampler:
    """Chooses tokens. Holds no state of any request: see `SamplingState`.

    With `kernels` the filters, the draw and the logprobs are theirs and give the same; without, or when observed, the
    stages run one by one as they are defined. Raises `UnsupportedModelError` for a vocabulary above 2**21.
    """

    def __init__(self, vocab_size: int, kernels: SamplingKernels | None = None) -> None:
        if vocab_size > MAX_VOCAB_SIZE:
            raise UnsupportedModelError(
                f"the model has {vocab_size} tokens, but the sampler takes at most {MAX_VOCAB_SIZE}"
            )
        self.vocab_size = vocab_size
        self.kernels = kernels

    def draw_ahead(self, rows: Sequence[tuple[FloatArray, SamplingState]]) -> list[tuple[int, float] | None]:
        """Tokens of raw logits [vocab_size] that nothing but the parameters has a say in, drawn side by side.

        Each is (id, largest logit) for `sample`, or None where stages change the logits first, or where there are not
        two such rows.
        """
        free = [i for i, (_, state) in enumerate(rows) if not stages_that_move_logits(state)]
        drawn: list[tuple[int, float] | None] = [None] * len(rows)
        if self.kernels is not None and len(free) > 1:
            for i, found in zip(free, self.kernels.draw_rows([_row_draw(*rows[i]) for i in free]), strict=True):
                drawn[i] = found
        return drawn

    def sample(
        self,
        logits: FloatArray,
        request: SamplingState,
        observer: StageObserver | None = None,
        drawn: tuple[int, float] | None = None,
    ) -> SampledToken:
        """The token at `request.position`, a pure function of (logits, params, ids so far, seed, sample_index).

        `logits` are the raw float32 logits [vocab_size], read and not changed. The caller appends the token to
        `request.output_token_ids`. Raises `NonFiniteError` for NaN or +inf, `InvalidParameterError` where the
        parameters leave no token; both are this request's alone. ValueError for another shape or type is a bug of ours.
        `drawn` is what `draw_ahead` found for this row.
        """
        if logits.shape != (self.vocab_size,) or logits.dtype != np.float32:
            raise ValueError(f"logits are {logits.dtype} {logits.shape}, but must be float32 ({self.vocab_size},)")
        if drawn is not None and observer is None:
            token_id, largest = drawn
            check_raw(largest)
        elif self.kernels is None or observer is not None:
            candidates = run_stages(logits, request, observer)
            token_id = candidates.first() if request.params.greedy else candidates.pick(_uniform(request))
        else:
            token_id = _choose(self.kernels, logits, request)
        if request.params.logprobs is None:
            return SampledToken(token_id)
        entries = raw_logprobs(logits, request.params.logprobs, token_id, self.kernels)
        return SampledToken(token_id, entries[0][1], entries)


def _uniform(request: SamplingState) -> float:
    return uniform(request.seed, request.sample_index, request.position)


def _row_draw(logits: FloatArray, request: SamplingState) -> RowDraw:
    params = request.params
    if params.greedy:
        return RowDraw(logits, 0.0, 0.0, 0, 1.0, 0.0)
    temperature = usable_temperature(params.temperature)
    return RowDraw(logits, temperature, params.min_p, max(params.top_k, 0), params.top_p, _uniform(request))


def _choose(kernels: SamplingKernels, logits: FloatArray, request: SamplingState) -> int:
    params = request.params
    if stages_that_move_logits(request):
        candidates = move_logits(logits, request)
        if params.greedy:
            return candidates.first()
        logits = candidates.logits
    elif params.greedy:
        token_id = int(logits.argmax())
        check_raw(logits.item(token_id))
        return token_id
    token_id, largest = kernels.draw(
        logits,
        temperature=usable_temperature(params.temperature),
        min_p=params.min_p,
        top_k=max(params.top_k, 0),
        top_p=params.top_p,
        u=_uniform(request),
    )
    check_raw(largest)
    return token_id


def check_params_against_vocab(params: SamplingParams, vocab_size: int) -> None:
    """Raise `InvalidParameterError` naming the first field that has a token id the model does not have."""
    fields: tuple[tuple[str, Iterable[int]], ...] = (
        ("logit_bias", params.logit_bias),
        ("allowed_token_ids", params.allowed_token_ids or ()),
        ("banned_token_ids", params.banned_token_ids),
        ("stop_token_ids", params.stop_token_ids),
    )
    for name, ids in fields:
        for token_id in ids:
            if token_id >= vocab_size:
                raise InvalidParameterError(
                    name, f"{name} has the token id {token_id}, but must be below the vocabulary's size, {vocab_size}"
                )
    if len(set(params.banned_token_ids)) == vocab_size:
        raise InvalidParameterError(
            "banned_token_ids", f"banned_token_ids has all {vocab_size} ids of the vocabulary: no token is left to draw"
        )
