"""The decoder: token ids → hidden states → logits, one forward pass for every family.

It is handed a `ForwardBatch` and the cache, and knows nothing of requests, schedules or sampling. What differs
between families is in `ModelConfig` and in which weights there are; what differs between machines is behind `Backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pellucid.config import ModelConfig, RopeConfig
from pellucid.forward_batch import ForwardBatch, ForwardOutput
from pellucid.kernels.backend import AttentionParams, Backend, Float32Array, LayerCache, Step
from pellucid.kv_cache.storage import KVLayer
from pellucid.models.experts import add_experts
from pellucid.models.latent_attention import latent_attention
from pellucid.models.rotary import Angles, RotaryTable, alibi_slopes, sinusoidal_rows
from pellucid.models.weights import (
    AttentionWeights,
    DecoderWeights,
    ExpertsWeights,
    LatentAttentionWeights,
    LayerWeights,
    Linear,
    MLPWeights,
    Norm,
    linear,
)
from pellucid.models.workspace import Workspace
from pellucid.trace.probe import Probe, show

MAX_NOTED_ROWS = 16
"""Steps of so few rows are noted: with more, calls are next to nothing beside the work."""


class KVArrays(Protocol):
    """What the decoder needs of a `KVCacheStorage`."""

    @property
    def layers(self) -> Sequence[KVLayer]: ...


@dataclass(frozen=True, slots=True)
class NotedBlocks:
    """All blocks for one number of rows, noted once: each step writes into the same arrays and runs them again."""

    step: Step
    angles: dict[RopeConfig | None, Angles]
    hidden: Float32Array
    run: Callable[[], object]
    generation: int
    """Of the workspace whose arrays they are."""


class Decoder:
    """A causal transformer with a paged KV cache (Vaswani et al. 2017).

    max_model_len: the longest context in use, which resolves rotary scalings that depend on it.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights, backend: Backend, max_model_len: int = 0) -> None:
        self.config = config
        self.weights = weights
        self.backend = backend
        self._workspace = Workspace(config)
        ropes = {config.layer_rope(layer) for layer in range(config.num_layers)}
        reach = max_model_len or config.context_length
        self._rotary: dict[RopeConfig, RotaryTable] = {
            rope: RotaryTable(rope, reach) for rope in ropes if rope is not None
        }
        self._attention = [self._attention_params(i, layer) for i, layer in enumerate(weights.layers)]
        self._is_notable = _is_notable(config, weights)
        self._noted: dict[int, NotedBlocks] = {}
        """By number of rows."""
        self._bound_kv: KVArrays | None = None
        self._caches: list[LayerCache] = []

    @property
    def activation_bytes(self) -> int:
        """Bytes of the arrays kept between steps."""
        return self._workspace.nbytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights in memory."""
        return self.weights.packed_bytes

    def forward(self, batch: ForwardBatch, kv: KVArrays, probe: Probe | None = None) -> ForwardOutput:
        """Run T rows through all blocks, storing their keys and values.

        Returns the final norm's output [T, hidden_size], valid until the next call, and which rows had a key or
        value that is not finite as stored.
        """
        caches = self._layer_caches(kv)
        if probe is None and self._is_notable and 0 < len(batch.token_ids) <= MAX_NOTED_ROWS:
            return self._forward_noted(batch, caches)
        step = self.backend.step(batch)
        hidden = self._blocks(self._embed(batch), self._angles(batch), step, caches, probe)
        return ForwardOutput(hidden, step.nonfinite)

    def compute_logits(self, hidden: Float32Array) -> Float32Array:
        """LM head: hidden [R, hidden_size] → logits [R, vocab_size], valid until the next call."""
        logits = self._workspace.rows("logits", len(hidden))
        if self.weights.project_out is not None:
            hidden = linear(self.backend, self.weights.project_out, hidden)
        self.backend.linear(hidden, None, 0.0, self.weights.head, logits)
        if self.config.logits_scale != 1.0:
            logits *= np.float32(self.config.logits_scale)
        if self.config.final_softcap is not None:
            cap = np.float32(self.config.final_softcap)
            np.multiply(np.tanh(logits / cap), cap, out=logits)
        return logits

    def attention_params(self, layer: int) -> AttentionParams:
        """What a layer's attention does with its scores."""
        return self._attention[layer]

    def lens(self, residual: Float32Array) -> Float32Array:
        """The logits [R, vocab_size] of the residual [R, hidden_size] of any layer, as if it were the last one's.

        Valid until the next call.
        """
        if self.weights.final_norm is not None:
            residual = self._normalise(residual, self.weights.final_norm, "branch")
        return self.compute_logits(residual)

    def _embed(self, batch: ForwardBatch) -> Float32Array:
        """Token embeddings, and positions where they are added to them."""
        config, weights = self.config, self.weights
        x = self._workspace.rows("residual", len(batch.token_ids))
        if weights.project_in is None:
            self.backend.embed(weights.embedding, batch.token_ids, config.embedding_scale, x)
        else:
            narrow = np.empty((len(x), config.embedding_size), dtype=np.float32)
            self.backend.embed(weights.embedding, batch.token_ids, config.embedding_scale, narrow)
            x[:] = linear(self.backend, weights.project_in, narrow)
        if weights.embedding_bias is not None:
            x += weights.embedding_bias
        if weights.position_embedding is not None:
            rows = self._workspace.rows("branch", len(x))
            self.backend.embed(weights.position_embedding, batch.positions + config.position_offset, 1.0, rows)
            x += rows
        elif config.positions == "sinusoidal":
            x += sinusoidal_rows(batch.positions + config.position_offset, config.hidden_size)
        if weights.embedding_norm is not None:
            x[:] = self._normalise(x, weights.embedding_norm, "branch")
        return x

    def _blocks(
        self,
        x: Float32Array,
        angles: dict[RopeConfig | None, Angles],
        step: Step,
        caches: Sequence[LayerCache],
        probe: Probe | None,
    ) -> Float32Array:
        """All layers on x [T, d], and the final norm's output [T, d]."""
        if probe is not None:
            show(probe, "embedding", x)
        for index, layer in enumerate(self.weights.layers):
            self._block(x, index, layer, angles[self.config.layer_rope(index)], step, caches[index], probe)
            if probe is not None:
                show(probe, f"layers.{index}.residual", x)
        hidden = x
        if self.weights.final_norm is not None:
            hidden = self._normalise(x, self.weights.final_norm, "hidden")
        if probe is not None:
            show(probe, "final_norm", hidden)
        return hidden

    def _angles(self, batch: ForwardBatch) -> dict[RopeConfig | None, Angles]:
        """For each kind of layer; None: layers that rotate nothing."""
        angles: dict[RopeConfig | None, Angles] = {
            rope: table.rows(batch.positions) for rope, table in self._rotary.items()
        }
        angles[None] = (np.empty((len(batch.token_ids), 0), dtype=np.float32),) * 2
        return angles

    def _forward_noted(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> ForwardOutput:
        self._embed(batch)
        noted = self._noted.get(len(batch.token_ids))
        if noted is None or noted.generation != self._workspace.generation:
            noted = self._note(batch, caches)
        noted.step.renew(batch)
        for rope, table in self._rotary.items():
            table.write_rows(batch.positions, noted.angles[rope])
        noted.run()
        return ForwardOutput(noted.hidden, noted.step.nonfinite)

    def _note(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> NotedBlocks:
        rows, step, angles = len(batch.token_ids), self.backend.step(batch), self._angles(batch)
        x, hidden = self._workspace.rows("residual", rows), self._workspace.rows("hidden", rows)
        if self.weights.final_norm is None:
            hidden = x
        run = self.backend.note(lambda: self._blocks(x, angles, step, caches, None))
        noted = self._noted[rows] = NotedBlocks(step, angles, hidden, run, self._workspace.generation)
        return noted

    def _block(
        self,
        x: Float32Array,
        index: int,
        layer: LayerWeights,
        angles: Angles,
        step: Step,
        cache: LayerCache,
        probe: Probe | None,
    ) -> None:
        """One layer, adding to x [T, d]."""
        attention = layer.attention
        attended = self._attend(x, index, layer, angles, step, cache, probe)
        if self.config.block == "parallel":
            assert isinstance(layer.mlp, MLPWeights)
            # Of x as attention saw it; the branches may share one norm.
            gated = self._gated(x, index, layer.mlp_norm or layer.attention_norm, layer.mlp, step, probe)
            self._add(attended, attention.output, layer.post_attention_norm, x, step)
            if probe is not None:
                show(probe, f"layers.{index}.attn.added", x)
            self._add(gated, layer.mlp.down, layer.post_mlp_norm, x, step)
            return
        self._add(attended, attention.output, layer.post_attention_norm, x, step)
        if probe is not None:
            show(probe, f"layers.{index}.attn.added", x)
        after = self.config.block == "post_norm"
        if after and layer.attention_norm is not None:
            x[:] = self._normalise(x, layer.attention_norm, "branch")
            if probe is not None:
                show(probe, f"layers.{index}.mlp.input", x)
        if isinstance(layer.mlp, ExpertsWeights):
            add_experts(self.backend, self.config, self._workspace, layer, x, probe, index)
        else:
            gated = self._gated(x, index, None if after else layer.mlp_norm, layer.mlp, step, probe)
            self._add(gated, layer.mlp.down, layer.post_mlp_norm, x, step)
        if after and layer.mlp_norm is not None:
            if probe is not None:
                show(probe, f"layers.{index}.mlp.added", x)
            x[:] = self._normalise(x, layer.mlp_norm, "branch")

    def _attend(
        self,
        x: Float32Array,
        index: int,
        layer: LayerWeights,
        angles: Angles,
        step: Step,
        cache: LayerCache,
        probe: Probe | None,
    ) -> Float32Array:
        """attention(norm(x)) [T, H · D], before its output matrix."""
        backend, config, attention = self.backend, self.config, layer.attention
        norm = None if config.block == "post_norm" else layer.attention_norm
        params = self._attention[index]
        if isinstance(attention, LatentAttentionWeights):
            normed = x if norm is None else self._normalise(x, norm, "normed")
            seen = latent_attention(backend, config, self._workspace, attention, normed, params, angles, step, cache)
            if probe is not None:
                self._show_heads(probe, index, self._workspace.rows("qkv", len(x)))
            return seen
        qkv = self._linear(x, norm, attention.qkv, "qkv", step)
        q_norm, k_norm = attention.q_norm, attention.k_norm
        if q_norm is not None and k_norm is not None and q_norm.size != config.head_dim:
            self._normalise_whole(qkv, q_norm, k_norm)
            q_norm = k_norm = None
        backend.rotate_and_store(qkv, config.num_heads, q_norm, k_norm, config.norm_eps, *angles, step, cache)
        attended = self._workspace.rows("attended", len(x))
        backend.attention(qkv, config.num_heads, params, step, cache, attended)
        if probe is not None:
            self._show_heads(probe, index, qkv)
            show(probe, f"layers.{index}.attn.out", attended)
        return attended

    def _normalise_whole(self, qkv: Float32Array, q_norm: Float32Array, k_norm: Float32Array) -> None:
        """RMSNorm of all heads of q together, and of k (OLMo 2; OLMo team 2024, section 3.2)."""
        q_end, k_end = len(q_norm), len(q_norm) + len(k_norm)
        for part, weight in ((qkv[:, :q_end], q_norm), (qkv[:, q_end:k_end], k_norm)):
            normed = np.ascontiguousarray(part)
            self.backend.rms_norm(normed, weight, self.config.norm_eps, normed)
            part[:] = normed

    def _gated(
        self, x: Float32Array, index: int, norm: Norm | None, mlp: MLPWeights, step: Step, probe: Probe | None
    ) -> Float32Array:
        """activation(gate · n) · (up · n), or activation(up · n), with n = norm(x): [T, intermediate_size]."""
        backend, config = self.backend, self.config
        gated = self._workspace.rows("gated", len(x))
        if config.gated_mlp and norm is not None and mlp.gate_up.bias is None and config.norm == "rms":
            backend.linear_gated(x, norm.weight, config.norm_eps, mlp.gate_up.matrix, config.activation, gated, step)
        else:
            inner = self._linear(x, norm, mlp.gate_up, "inner", step)
            backend.activate(inner, config.activation, config.gated_mlp, gated)
        if probe is not None:
            show(probe, f"layers.{index}.mlp.gated", gated)
        return gated

    def _linear(self, x: Float32Array, norm: Norm | None, weights: Linear, name: str, step: Step) -> Float32Array:
        """norm(x) · matrixᵀ + bias, in the workspace's array `name`."""
        out = self._workspace.rows(name, len(x))
        if norm is not None and self.config.norm == "layer":
            x, norm = self._normalise(x, norm, "normed"), None
        norm_weight = None if norm is None else norm.weight
        self.backend.linear(x, norm_weight, self.config.norm_eps, weights.matrix, out, step, weights.bias)
        return out

    def _add(
        self, branch_input: Float32Array, weights: Linear, post_norm: Norm | None, x: Float32Array, step: Step
    ) -> None:
        """x += branch_input · matrixᵀ + bias, through the post norm or factor that the family has."""
        if post_norm is None and self.config.residual_scale == 1.0:
            self.backend.linear_add(branch_input, weights.matrix, x, step, weights.bias)
            return
        branch = self._linear(branch_input, None, weights, "branch", step)
        if post_norm is None:
            x += np.float32(self.config.residual_scale) * branch
        else:
            self.backend.rms_norm_add(branch, post_norm.weight, self.config.norm_eps, x)

    def _normalise(self, x: Float32Array, norm: Norm, name: str) -> Float32Array:
        """RMSNorm or LayerNorm of x, in the workspace's array `name`."""
        out = self._workspace.rows(name, len(x))
        if self.config.norm == "rms":
            self.backend.rms_norm(x, norm.weight, self.config.norm_eps, out)
        else:
            self.backend.layer_norm(x, norm.weight, norm.bias, self.config.norm_eps, out)
        return out

    def _attention_params(self, index: int, layer: LayerWeights) -> AttentionParams:
        config, attention = self.config, layer.attention
        return AttentionParams(
            scale=config.attention_scale,
            causal=config.causal,
            window=config.window(index),
            softcap=config.attention_softcap,
            sinks=attention.sinks if isinstance(attention, AttentionWeights) else None,
            slopes=alibi_slopes(config.num_heads) if config.positions == "alibi" else None,
        )

    def _layer_caches(self, kv: KVArrays) -> list[LayerCache]:
        if kv is not self._bound_kv:
            self._caches = [self.backend.layer_cache(layer) for layer in kv.layers]
            self._bound_kv = kv
            self._noted.clear()
        return self._caches

    def _show_heads(self, probe: Probe, index: int, qkv: Float32Array) -> None:
        q_end = self.config.num_heads * self.config.head_dim
        k_end = q_end + self.config.num_kv_heads * self.config.head_dim
        for name, part in (("q", qkv[:, :q_end]), ("k", qkv[:, q_end:k_end]), ("v", qkv[:, k_end:])):
            show(probe, f"layers.{index}.attn.{name}", part)


def _is_notable(config: ModelConfig, weights: DecoderWeights) -> bool:
    """Whether the blocks are calls of the backend alone, with no NumPy between."""
    return config.block != "post_norm" and all(
        isinstance(layer.attention, AttentionWeights)
        and isinstance(layer.mlp, MLPWeights)
        and (layer.attention.q_norm is None or layer.attention.q_norm.size == config.head_dim)
        and (config.residual_scale == 1.0 or None not in (layer.post_attention_norm, layer.post_mlp_norm))
        for layer in weights.layers
    )
