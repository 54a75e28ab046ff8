"""The weights of a decoder, block by block, as the loader makes them and the decoder uses them."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from pellucid.kernels.backend import Backend, Float32Array, Matrix, Step


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Norm:
    """RMSNorm, or LayerNorm where there is a bias or the model says so."""

    weight: Float32Array
    bias: Float32Array | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Linear:
    """x · matrixᵀ + bias."""

    matrix: Matrix
    bias: Float32Array | None = None


def linear(backend: Backend, weights: Linear, x: Float32Array, step: Step | None = None) -> Float32Array:
    """x [R, columns] · matrixᵀ + bias, in a new array [R, rows]."""
    out = np.empty((len(x), weights.matrix.rows), dtype=np.float32)
    backend.linear(x, None, 0.0, weights.matrix, out, step, weights.bias)
    return out


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AttentionWeights:
    """Multi-head attention; H query heads, G KV heads of D numbers."""

    qkv: Linear
    """[q; k; v], (H + 2 G) · D rows."""
    output: Linear
    q_norm: Float32Array | None = None
    """[D] for each head, or [H · D] for all together."""
    k_norm: Float32Array | None = None
    sinks: Float32Array | None = None
    """[H] a score that takes part in the softmax and has no value."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LatentAttentionWeights:
    """Multi-head latent attention in its absorbed form: the latent is key and value of every head."""

    query: Linear
    """Of the hidden state, or of the compressed query where there is one."""
    query_down: Linear | None
    query_norm: Norm | None
    key_value_down: Linear
    """[latent; rotated key]."""
    key_value_norm: Norm
    key_up: tuple[Matrix, ...]
    """For each head [rank, nope_dim]: takes its query into the latent's space."""
    value_up: tuple[Matrix, ...]
    """For each head [value_dim, rank]."""
    output: Linear


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MLPWeights:
    gate_up: Linear
    """[gate; up], or one half alone."""
    down: Linear


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExpertsWeights:
    router: Linear
    experts: tuple[MLPWeights, ...]
    score_bias: Float32Array | None = None
    """[experts] added to the scores for choosing only."""
    shared: MLPWeights | None = None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LayerWeights:
    """One block; norms a family does not have are None."""

    attention_norm: Norm | None
    attention: AttentionWeights | LatentAttentionWeights
    post_attention_norm: Norm | None
    mlp_norm: Norm | None
    mlp: MLPWeights | ExpertsWeights
    post_mlp_norm: Norm | None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DecoderWeights:
    """All weights of a decoder; `head` is `embedding` itself where the two are tied."""

    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    final_norm: Norm | None
    head: Matrix
    position_embedding: Matrix | None = None
    embedding_bias: Float32Array | None = None
    """[hidden_size] added to every token's embedding."""
    project_in: Linear | None = None
    project_out: Linear | None = None
    embedding_norm: Norm | None = None

    @property
    def packed_bytes(self) -> int:
        """Bytes the matrices take in memory, each counted once."""
        return sum(matrix.packed_bytes for matrix in _matrices(self, {}).values())


def _matrices(value: Any, found: dict[int, Matrix]) -> dict[int, Matrix]:
    if isinstance(value, tuple):
        for item in value:
            _matrices(item, found)
    elif not isinstance(value, DecoderWeights) and hasattr(value, "packed_bytes"):
        found[id(value)] = value
    elif is_dataclass(value):
        for entry in fields(value):
            _matrices(getattr(value, entry.name), found)
    return found
