"""The decoder: token ids → hidden states → logits, one forward pass for every family.

It is handed a `ForwardBatch` and the cache, and knows nothing of requests, schedules or sampling. What differs
between families is in `ModelConfig`; what differs between machines is behind `Backend`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pellucid.config import ModelConfig, RopeConfig
from pellucid.forward_batch import ForwardBatch, ForwardOutput
from pellucid.kernels.backend import Backend, Float32Array, LayerCache, Matrix, Step
from pellucid.models.rotary import RotaryTable
from pellucid.trace.probe import Probe


class KVArrays(Protocol):
    """What the decoder needs of a `KVCacheStorage`."""

    @property
    def keys(self) -> list[npt.NDArray[Any]]: ...
    @property
    def values(self) -> list[npt.NDArray[Any]]: ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One block's weights; norms are float32 vectors, optional ones None where the family has none."""

    attention_norm: Float32Array
    qkv: Matrix
    """[q; k; v], (H + 2 G) · D rows."""
    q_norm: Float32Array | None
    k_norm: Float32Array | None
    attention_output: Matrix
    post_attention_norm: Float32Array | None
    mlp_norm: Float32Array
    gate_up: Matrix
    """[gate; up], 2 · intermediate_size rows."""
    down: Matrix
    post_mlp_norm: Float32Array | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder; `head` is `embedding` itself where the two are tied."""

    embedding: Matrix
    layers: tuple[LayerWeights, ...]
    final_norm: Float32Array
    head: Matrix

    @property
    def packed_bytes(self) -> int:
        """Bytes the matrices take in memory, each counted once."""
        matrices: dict[int, Matrix] = {id(m): m for m in (self.embedding, self.head)}
        for layer in self.layers:
            for m in (layer.qkv, layer.attention_output, layer.gate_up, layer.down):
                matrices[id(m)] = m
        return sum(m.packed_bytes for m in matrices.values())


class _Workspace:
    """Activations of one step, kept between steps and grown when a step is larger."""

    def __init__(self, config: ModelConfig) -> None:
        heads = config.num_heads * config.head_dim
        self._widths = {
            "residual": config.hidden_size,
            "qkv": heads + 2 * config.num_kv_heads * config.head_dim,
            "attended": heads,
            "gated": config.intermediate_size,
            "branch": config.hidden_size,
            "hidden": config.hidden_size,
            "logits": config.vocab_size,
        }
        self._buffers: dict[str, Float32Array] = {}

    def rows(self, name: str, count: int) -> Float32Array:
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < count:
            buffer = self._buffers[name] = np.empty((count, self._widths[name]), dtype=np.float32)
        return buffer[:count]


class Decoder:
    """A causal transformer with a paged KV cache (Vaswani et al. 2017; pre-norm, RMSNorm, RoPE, GQA, gated MLP)."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, backend: Backend) -> None:
        self.config = config
        self.weights = weights
        self.backend = backend
        self._workspace = _Workspace(config)
        self._rotary: dict[RopeConfig, RotaryTable] = {}
        for layer in range(config.num_layers):
            self._rotary.setdefault(config.layer_rope(layer), RotaryTable(config.layer_rope(layer)))
        self._bound_kv: KVArrays | None = None
        self._caches: list[LayerCache] = []

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights in memory."""
        return self.weights.packed_bytes

    def forward(self, batch: ForwardBatch, kv: KVArrays, probe: Probe | None = None) -> ForwardOutput:
        """Run T rows through all blocks, storing their keys and values.

        Returns the final norm's output [T, hidden_size], valid until the next call, and which rows had a key or
        value that is not finite as stored.
        """
        backend, config, count = self.backend, self.config, len(batch.token_ids)
        caches, step = self._layer_caches(kv), backend.step(batch)
        angles = {rope: table.rows(batch.positions) for rope, table in self._rotary.items()}
        x = self._workspace.rows("residual", count)
        backend.embed(self.weights.embedding, batch.token_ids, config.embedding_scale, x)
        if probe is not None:
            _show(probe, "embedding", x)
        for index, layer in enumerate(self.weights.layers):
            cosine, sine = angles[config.layer_rope(index)]
            self._attention_block(x, index, layer, cosine, sine, step, caches[index], probe)
            self._mlp_block(x, index, layer, probe)
            if probe is not None:
                _show(probe, f"layers.{index}.residual", x)
        hidden = self._workspace.rows("hidden", count)
        backend.rms_norm(x, self.weights.final_norm, config.norm_eps, hidden)
        if probe is not None:
            _show(probe, "final_norm", hidden)
        return ForwardOutput(hidden, step.nonfinite)

    def compute_logits(self, hidden: Float32Array) -> Float32Array:
        """LM head: hidden [R, hidden_size] → logits [R, vocab_size], valid until the next call."""
        logits = self._workspace.rows("logits", len(hidden))
        self.backend.linear(hidden, None, 0.0, self.weights.head, logits)
        return logits

    def _attention_block(
        self,
        x: Float32Array,
        index: int,
        layer: LayerWeights,
        cosine: Float32Array,
        sine: Float32Array,
        step: Step,
        cache: LayerCache,
        probe: Probe | None,
    ) -> None:
        """x += [post norm of] attention(norm(x))."""
        backend, config = self.backend, self.config
        qkv = self._workspace.rows("qkv", len(x))
        attended = self._workspace.rows("attended", len(x))
        backend.linear(x, layer.attention_norm, config.norm_eps, layer.qkv, qkv)
        backend.rotate_and_store(
            qkv, config.num_heads, layer.q_norm, layer.k_norm, config.norm_eps, cosine, sine, step, cache
        )
        backend.attention(qkv, config.num_heads, config.window(index), config.attention_scale, step, cache, attended)
        if probe is not None:
            self._show_heads(probe, index, qkv)
            _show(probe, f"layers.{index}.attn.out", attended)
        self._add(attended, layer.attention_output, layer.post_attention_norm, x)

    def _mlp_block(self, x: Float32Array, index: int, layer: LayerWeights, probe: Probe | None) -> None:
        """x += [post norm of] down(activation(gate(norm(x))) · up(norm(x)))."""
        gated = self._workspace.rows("gated", len(x))
        self.backend.linear_gated(x, layer.mlp_norm, self.config.norm_eps, layer.gate_up, self.config.activation, gated)
        if probe is not None:
            _show(probe, f"layers.{index}.mlp.gated", gated)
        self._add(gated, layer.down, layer.post_mlp_norm, x)

    def _add(self, branch_input: Float32Array, matrix: Matrix, post_norm: Float32Array | None, x: Float32Array) -> None:
        """x += branch_input · matrixᵀ, through the post norm where the family has one."""
        if post_norm is None:
            self.backend.linear_add(branch_input, matrix, x)
            return
        branch = self._workspace.rows("branch", len(x))
        self.backend.linear(branch_input, None, 0.0, matrix, branch)
        self.backend.rms_norm_add(branch, post_norm, self.config.norm_eps, x)

    def _layer_caches(self, kv: KVArrays) -> list[LayerCache]:
        if kv is not self._bound_kv:
            self._caches = [self.backend.layer_cache(k, v) for k, v in zip(kv.keys, kv.values, strict=True)]
            self._bound_kv = kv
        return self._caches

    def _show_heads(self, probe: Probe, index: int, qkv: Float32Array) -> None:
        q_end = self.config.num_heads * self.config.head_dim
        k_end = q_end + self.config.num_kv_heads * self.config.head_dim
        for name, part in (("q", qkv[:, :q_end]), ("k", qkv[:, q_end:k_end]), ("v", qkv[:, k_end:])):
            _show(probe, f"layers.{index}.attn.{name}", part)


def _show(probe: Probe, name: str, tensor: Float32Array) -> None:
    if probe.wants(name):
        probe.record(name, tensor)
