"""Logprobs and ranks of the raw logits: before any stage, so that no sampling parameter changes them."""

from __future__ import annotations

import math

import numpy as np

from pellucid.kernels.backend import SamplingKernels
from pellucid.sampling.candidates import ONE, FloatArray, top_positions, weights_of
from pellucid.sampling.stages import check_raw


def rank_of(logits: FloatArray, token_id: int) -> int:
    """1 for the most probable token of logits [vocab]; ties are ordered by id."""
    value = logits[token_id]
    above = np.count_nonzero(logits > value) + np.count_nonzero(logits[:token_id] == value)
    return 1 + int(above)


def raw_logprobs(
    logits: FloatArray, num: int, token_id: int, kernels: SamplingKernels | None = None
) -> list[tuple[int, float, int]]:
    """(id, logprob, rank) of `token_id` first, then of the `num` most probable ids without it.

    `logits` are the raw float32 logits [vocab] of one position. A logprob is log-softmax, finite or -inf where
    the logit is -inf, for which JSON has no number: who writes JSON puts a floor in. The sum of exponentials is that
    of the draw's whole weights at temperature 1. Raises `NonFiniteError` for NaN, +inf and logits that are all -inf.
    """
    if kernels is not None:
        largest, total, rank, top = kernels.rank(logits, token_id, num)
        check_raw(largest)
    else:
        highest = logits[logits.argmax()]
        largest = float(highest)
        check_raw(largest)
        total = int(weights_of(logits, highest, 1.0).sum())
        rank = rank_of(logits, token_id)
        top = top_positions(logits, num).tolist() if num > 0 else []
    normaliser = largest + math.log(total / ONE)
    entries = [(token_id, float(logits[token_id]) - normaliser, rank)]
    entries += [
        (other, float(logits[other]) - normaliser, place)
        for place, other in enumerate(top, start=1)
        if other != token_id
    ]
    return entries
