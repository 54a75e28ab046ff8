"""Logprobs and ranks of the raw logits: before any stage, so that no sampling parameter changes them."""

from __future__ import annotations

import math

import numpy as np

from pellucid.errors import NonFiniteError
from pellucid.sampling.candidates import FloatArray, top_positions


def log_sum_exp(logits: FloatArray) -> float:
    """log of the sum of exp(logits [vocab]): float32 exponentials, added in float64.

    Raises `NonFiniteError` for NaN, +inf and for logits that are all -inf.
    """
    largest = logits[logits.argmax()]
    if not np.isfinite(largest):
        raise NonFiniteError(f"the model's logits are not finite: the largest is {largest}")
    with np.errstate(over="ignore"):
        exponents = logits - largest
    np.exp(exponents, out=exponents)
    return float(largest) + math.log(float(exponents.sum(dtype=np.float64)))


def rank_of(logits: FloatArray, token_id: int) -> int:
    """1 for the most probable token of logits [vocab]; ties are ordered by id."""
    value = logits[token_id]
    above = np.count_nonzero(logits > value) + np.count_nonzero(logits[:token_id] == value)
    return 1 + int(above)


def raw_logprobs(logits: FloatArray, num: int, token_id: int) -> list[tuple[int, float, int]]:
    """(id, logprob, rank) of `token_id` first, then of the `num` most probable ids without it.

    `logits` are the raw float32 logits [vocab] of one position. A logprob is log-softmax, finite or -inf where
    the logit is -inf, for which JSON has no number: who writes JSON puts a floor in. Raises `NonFiniteError` as
    `log_sum_exp` does.
    """
    normaliser = log_sum_exp(logits)
    entries = [(token_id, float(logits[token_id]) - normaliser, rank_of(logits, token_id))]
    if num > 0:
        top = top_positions(logits, num)
        values = logits[top].tolist()
        entries += [
            (other, value - normaliser, rank)
            for rank, (other, value) in enumerate(zip(top.tolist(), values, strict=True), start=1)
            if other != token_id
        ]
    return entries
