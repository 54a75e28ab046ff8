"""A mixture of experts: which experts a token goes through, and only those (Shazeer et al. 2017).

Each token's sum runs over its experts in ascending order of their ids, so its bits do not depend on what else is in
the batch.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from pellucid.config import ExpertsConfig, ModelConfig
from pellucid.kernels.backend import Backend, Float32Array
from pellucid.models.weights import ExpertsWeights, LayerWeights, MLPWeights, linear
from pellucid.models.workspace import Workspace
from pellucid.trace.probe import Probe, show

Int64Array = npt.NDArray[np.int64]


def add_experts(
    backend: Backend,
    config: ModelConfig,
    workspace: Workspace,
    layer: LayerWeights,
    x: Float32Array,
    probe: Probe | None = None,
    index: int = 0,
) -> None:
    """x [T, d] += the chosen experts' outputs, weighted, and the shared expert's. index: the layer's, for the probe."""
    weights, experts = layer.mlp, config.experts
    assert isinstance(weights, ExpertsWeights)
    assert experts is not None
    normed = x
    if layer.mlp_norm is not None:
        normed = workspace.rows("normed", len(x))
        backend.rms_norm(x, layer.mlp_norm.weight, config.norm_eps, normed)
    scores = workspace.rows("router", len(x))
    backend.linear(normed, None, 0.0, weights.router.matrix, scores)
    if weights.router.bias is not None:
        scores += weights.router.bias
    chosen, shares = choose_experts(scores, experts, weights.score_bias)
    if probe is not None:
        for name, tensor in (("router", scores), ("ids", chosen), ("weights", shares)):
            show(probe, f"layers.{index}.moe.{name}", tensor)
    mixed = workspace.rows("mixed", len(x))
    mixed[:] = 0.0
    for expert in np.unique(chosen):
        rows, slots = np.nonzero(chosen == expert)
        output = _mlp(backend, config, weights.experts[int(expert)], np.ascontiguousarray(normed[rows]))
        mixed[rows] += shares[rows, slots, None] * output
    if weights.shared is not None:
        mixed += _mlp(backend, config, weights.shared, normed)
    if layer.post_mlp_norm is not None:
        backend.rms_norm_add(mixed, layer.post_mlp_norm.weight, config.norm_eps, x)
    else:
        x += mixed if config.residual_scale == 1.0 else np.float32(config.residual_scale) * mixed


def choose_experts(
    logits: Float32Array, experts: ExpertsConfig, score_bias: Float32Array | None = None
) -> tuple[Int64Array, Float32Array]:
    """The experts of each token and their weights, [T, num_chosen] both; equal scores go to the lower id.

    logits: [T, num_experts] of the router.
    """
    if experts.scores == "sigmoid":
        scores = np.float32(1) / (np.float32(1) + np.exp(-logits))
    elif experts.scores == "softmax":
        scores = _softmax(logits)
    else:
        scores = logits
    judged = scores if score_bias is None else scores + score_bias
    chosen = _best(_in_best_groups(judged, experts), experts.num_chosen)
    shares = np.take_along_axis(scores, chosen, axis=1)
    if experts.scores == "softmax_of_chosen":
        shares = _softmax(shares)
    if experts.normalize:
        shares = shares / (shares.sum(axis=1, keepdims=True) + np.float32(1e-20))
    return chosen, cast(Float32Array, shares * np.float32(experts.scale))


def _in_best_groups(scores: Float32Array, experts: ExpertsConfig) -> Float32Array:
    """Scores with those outside the best groups at −infinity (DeepSeek-V2, section 2.1.2)."""
    if experts.num_groups == 1:
        return scores
    groups = scores.reshape(len(scores), experts.num_groups, -1)
    if experts.group_score == "max":
        value = groups.max(axis=2)
    else:
        value = np.sort(groups, axis=2)[:, :, -2:].sum(axis=2)
    kept = np.zeros(value.shape, dtype=np.bool_)
    np.put_along_axis(kept, _best(value, experts.num_chosen_groups), True, axis=1)
    return np.where(kept[:, :, None], groups, np.float32(-np.inf)).reshape(scores.shape)


def _best(values: Float32Array, count: int) -> Int64Array:
    """Indices of the `count` largest of each row, the largest first."""
    return np.argsort(-values, axis=1, kind="stable")[:, :count]


def _softmax(values: Float32Array) -> Float32Array:
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    return cast(Float32Array, weights / weights.sum(axis=1, keepdims=True))


def _mlp(backend: Backend, config: ModelConfig, weights: MLPWeights, x: Float32Array) -> Float32Array:
    """down · (activation(gate · x) · (up · x)) [R, d]."""
    inner = linear(backend, weights.gate_up, x)
    gated = np.empty((len(x), inner.shape[1] // 2), dtype=np.float32)
    backend.activate(inner, config.activation, True, gated)
    return linear(backend, weights.down, gated)
