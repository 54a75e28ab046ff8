"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1), always in its absorbed form.

All heads share one key [rotated part; latent] and one value, the latent. A head's query is taken into the latent's
space by that head's key matrix, and what it attends to is taken out of it by its value matrix. The cache holds the
latent; one arithmetic for one row and for many.
"""

from __future__ import annotations

import numpy as np

from pellucid.config import ModelConfig
from pellucid.kernels.backend import AttentionParams, Backend, Float32Array, LayerCache, Step
from pellucid.models.weights import LatentAttentionWeights, Linear, linear
from pellucid.models.workspace import Workspace


def latent_attention(
    backend: Backend,
    config: ModelConfig,
    workspace: Workspace,
    weights: LatentAttentionWeights,
    normed: Float32Array,
    params: AttentionParams,
    angles: tuple[Float32Array, Float32Array],
    step: Step,
    cache: LayerCache,
) -> Float32Array:
    """What the heads attend to [T, heads · value_dim], before the output matrix; normed [T, d]."""
    latent, heads, count = config.latent, config.num_heads, len(normed)
    assert latent is not None
    query = normed
    if weights.query_down is not None and weights.query_norm is not None:
        query = linear(backend, weights.query_down, normed, step)
        backend.rms_norm(query, weights.query_norm.weight, config.norm_eps, query)
    q = linear(backend, weights.query, query, step).reshape(count, heads, latent.key_dim)
    compressed = linear(backend, weights.key_value_down, normed, step)
    vector = np.ascontiguousarray(compressed[:, : latent.rank])
    backend.rms_norm(vector, weights.key_value_norm.weight, config.norm_eps, vector)

    qkv = workspace.rows("qkv", count)
    end = (heads + 1) * config.head_dim
    per_head = qkv[:, :end].reshape(count, heads + 1, config.head_dim)  # a view: queries, then the key
    for head in range(heads):
        nope = np.ascontiguousarray(q[:, head, : latent.nope_dim])
        per_head[:, head, latent.rope_dim :] = linear(backend, Linear(weights.key_up[head]), nope, step)
    per_head[:, :heads, : latent.rope_dim] = q[:, :, latent.nope_dim :]
    per_head[:, heads, : latent.rope_dim] = compressed[:, latent.rank :]
    per_head[:, heads, latent.rope_dim :] = vector
    qkv[:, end:] = vector
    backend.rotate_and_store(qkv, heads, None, None, config.norm_eps, *angles, step, cache)

    attended = workspace.rows("attended", count)
    backend.attention(qkv, heads, params, step, cache, attended)
    seen = attended.reshape(count, heads, latent.rank)
    out = np.empty((count, heads, latent.value_dim), dtype=np.float32)
    for head in range(heads):
        out[:, head] = linear(backend, Linear(weights.value_up[head]), np.ascontiguousarray(seen[:, head]), step)
    return out.reshape(count, heads * latent.value_dim)
