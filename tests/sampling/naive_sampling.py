"""The sampling order written the slow, obvious way: float64, a full sort, Python loops. Shares no code with Pellucid.

Penalties and biases are in float32, because logits are: with float64 there, other tokens would be tied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pellucid.sampling_params import SamplingParams


def naive_logits(
    logits: np.ndarray,
    params: SamplingParams,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    end_ids: Sequence[int] = (),
) -> list[float]:
    """The logits after bias, masks and penalties."""
    f32 = np.float32
    x = [f32(v) for v in logits]
    for i, bias in params.logit_bias.items():
        x[i] = x[i] + f32(bias)
    for i in range(len(x)):
        allowed = params.allowed_token_ids is None or i in params.allowed_token_ids
        ended = len(output) < params.min_tokens and i in end_ids
        if not allowed or i in params.banned_token_ids or ended:
            x[i] = f32(-math.inf)
    for i in set(prompt) | set(output):
        penalty = f32(params.repetition_penalty)
        x[i] = x[i] / penalty if x[i] > 0 else x[i] * penalty
    for i in set(output):
        x[i] = x[i] - f32(params.frequency_penalty) * f32(list(output).count(i))
        x[i] = x[i] - f32(params.presence_penalty)
    return [float(v) for v in x]


def naive_distribution(logits: Sequence[float], params: SamplingParams) -> tuple[list[int], list[float], float]:
    """(ids in candidate order, their final probabilities, distance to the nearest boundary) after the filters.

    The distance says how near a comparison was to going the other way: below about 1e-5, float32 may decide otherwise.
    """
    largest = max(logits)
    order = sorted((i for i in range(len(logits)) if logits[i] > -math.inf), key=lambda i: (-logits[i], i))
    weight = {i: math.exp((logits[i] - largest) / params.temperature) for i in order}
    distance = 1.0
    if params.min_p > 0:
        distance = min(distance, *(abs(weight[i] / params.min_p - 1) if i != order[0] else 1.0 for i in order))
        order = [i for i in order if weight[i] >= params.min_p]
    if params.top_k > 0:
        order = order[: params.top_k]
    total = math.fsum(weight[i] for i in order)
    if params.top_p < 1:
        cumulative, kept = 0.0, []
        for i in order:
            kept.append(i)
            cumulative += weight[i] / total
            distance = min(distance, abs(cumulative - params.top_p))
            if cumulative >= params.top_p:
                break
        order = kept
        total = math.fsum(weight[i] for i in order)
    return order, [weight[i] / total for i in order], distance


def naive_pick(order: Sequence[int], probabilities: Sequence[float], u: float) -> tuple[int, float]:
    """(the first id whose cumulative probability exceeds u, distance of u to the nearest boundary)."""
    cumulative, chosen, distance = 0.0, None, 1.0
    for i, p in zip(order, probabilities, strict=True):
        cumulative += p
        if p > 0:
            distance = min(distance, abs(cumulative - u))
        if chosen is None and cumulative > u:
            chosen = i
    return (order[-1] if chosen is None else chosen), distance


def chi_square_z(observed: Sequence[int], probabilities: Sequence[float]) -> float:
    """Pearson's chi-square as a standard normal score (Wilson, Hilferty, PNAS 17, 1931); cells below 8 are merged."""
    draws = sum(observed)
    cells: list[tuple[float, float]] = []
    rest_observed = rest_expected = 0.0
    for count, p in zip(observed, probabilities, strict=True):
        if p * draws >= 8:
            cells.append((count, p * draws))
        else:
            rest_observed, rest_expected = rest_observed + count, rest_expected + p * draws
    if rest_expected >= 8:
        cells.append((rest_observed, rest_expected))
    else:
        assert rest_observed < 60, "far too many draws of improbable tokens"
    statistic = sum((count - expected) ** 2 / expected for count, expected in cells)
    freedom = len(cells) - 1
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
