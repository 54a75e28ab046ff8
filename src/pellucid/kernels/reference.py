"""Each operation in NumPy float32: slow, short, and the definition the compiled twin is held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from pellucid.config import Activation
from pellucid.formats.block_types import BlockType
from pellucid.formats.dequantize import dequantize
from pellucid.forward_batch import ForwardBatch
from pellucid.kernels import kv_codes
from pellucid.kernels.backend import AttentionParams, Float32Array, LayerCache, Matrix, Step, WeightPart
from pellucid.kv_cache.storage import KVLayer


@dataclass(frozen=True, slots=True)
class ReferenceMatrix:
    """The matrix as plain float32 numbers."""

    weights: Float32Array

    @property
    def rows(self) -> int:
        return int(self.weights.shape[0])

    @property
    def columns(self) -> int:
        return int(self.weights.shape[1])

    @property
    def packed_bytes(self) -> int:
        return self.weights.nbytes


@dataclass(frozen=True, slots=True)
class ReferenceCache:
    layer: KVLayer


@dataclass(slots=True)
class ReferenceStep:
    batch: ForwardBatch
    nonfinite: npt.NDArray[np.bool_]

    def renew(self, batch: ForwardBatch) -> None:
        self.batch = batch
        self.nonfinite[:] = False


def rms_norm(x: Float32Array, weight: Float32Array, eps: float) -> Float32Array:
    """x / sqrt(mean(x²) + eps) · weight over the last axis."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    return cast(Float32Array, x / np.sqrt(mean_square + np.float32(eps)) * weight)


def layer_norm(x: Float32Array, weight: Float32Array, bias: Float32Array | None, eps: float) -> Float32Array:
    """(x − mean) / sqrt(variance + eps) · weight + bias over the last axis."""
    centred = x - np.mean(x, axis=-1, keepdims=True, dtype=np.float32)
    variance = np.mean(np.square(centred), axis=-1, keepdims=True, dtype=np.float32)
    scaled = centred / np.sqrt(variance + np.float32(eps)) * weight
    return cast(Float32Array, scaled if bias is None else scaled + bias)


def silu(x: Float32Array) -> Float32Array:
    """x · sigmoid(x) (Ramachandran et al. 2017)."""
    with np.errstate(over="ignore"):  # e^(−x) may be infinite; the quotient is then 0, as it should be
        return cast(Float32Array, x / (np.float32(1) + np.exp(-x)))


def gelu_tanh(x: Float32Array) -> Float32Array:
    """0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) (Hendrycks and Gimpel 2016)."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return cast(Float32Array, np.float32(0.5) * x * (np.float32(1) + np.tanh(inner)))


def gelu(x: Float32Array) -> Float32Array:
    """x · Φ(x), with the normal distribution function by erf (Hendrycks and Gimpel 2016)."""
    return cast(Float32Array, np.float32(0.5) * x * (np.float32(1) + _erf(x * np.float32(2**-0.5))))


def _erf(x: Float32Array) -> Float32Array:
    from math import erf

    return np.vectorize(erf, otypes=[np.float32])(x)  # type: ignore[no-any-return]


def relu(x: Float32Array) -> Float32Array:
    """max(x, 0)."""
    return np.maximum(x, np.float32(0))


def swiglu_clamped(gate: Float32Array, up: Float32Array) -> Float32Array:
    """gate · sigmoid(1.702 gate) · (up + 1), both bounded by 7 (OpenAI 2025, gpt-oss)."""
    gate, up = np.minimum(gate, np.float32(7)), np.clip(up, np.float32(-7), np.float32(7))
    with np.errstate(over="ignore"):
        opened = gate / (np.float32(1) + np.exp(np.float32(-1.702) * gate))
    return cast(Float32Array, opened * (up + np.float32(1)))


ACTIVATIONS: dict[Activation, Callable[[Float32Array], Float32Array]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu": gelu,
    "relu": relu,
}


def gated(gate: Float32Array, up: Float32Array, activation: Activation) -> Float32Array:
    """activation(gate) · up (Shazeer 2020, GLU)."""
    if activation == "swiglu_clamped":
        return swiglu_clamped(gate, up)
    return cast(Float32Array, ACTIVATIONS[activation](gate) * up)


def rotate(x: Float32Array, cosine: Float32Array, sine: Float32Array) -> Float32Array:
    """Turn the pairs (x[i], x[i + pairs]) of each head by their angles; x [T, heads, D], cosine [T, pairs]."""
    pairs = cosine.shape[-1]
    first, second, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    c, s = cosine[:, None, :], sine[:, None, :]
    return np.concatenate([first * c - second * s, second * c + first * s, rest], axis=-1)


def softmax(scores: Float32Array) -> Float32Array:
    """e^x / Σ e^x over the last axis, after subtracting the maximum."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return cast(Float32Array, weights / weights.sum(axis=-1, keepdims=True))


class ReferenceBackend:
    """The operations of `Backend` in NumPy."""

    name = "reference"
    isa = "numpy"
    threads = 1

    def matrix(self, parts: Sequence[WeightPart]) -> Matrix:
        blocks = []
        for part in parts:
            weights = dequantize(part.data, part.type, (part.rows, part.columns))
            blocks.append(weights if part.row_order is None else weights[part.row_order])
        return ReferenceMatrix(blocks[0] if len(blocks) == 1 else np.concatenate(blocks))

    def packed_bytes(self, type: BlockType, rows: int, columns: int) -> int:
        return 4 * rows * columns if type.served else 0

    def layer_cache(self, layer: KVLayer) -> LayerCache:
        return ReferenceCache(layer)

    def step(self, batch: ForwardBatch) -> Step:
        return ReferenceStep(batch, np.zeros(len(batch.token_ids), dtype=np.bool_))

    def note(self, operations: Callable[[], object]) -> Callable[[], object]:
        return operations

    def embed(self, table: Matrix, ids: npt.NDArray[np.int32], scale: float, out: Float32Array) -> None:
        out[:] = _weights(table)[ids] * np.float32(scale)

    def rms_norm(self, x: Float32Array, weight: Float32Array, eps: float, out: Float32Array) -> None:
        out[:] = rms_norm(x, weight, eps)

    def layer_norm(
        self, x: Float32Array, weight: Float32Array, bias: Float32Array | None, eps: float, out: Float32Array
    ) -> None:
        out[:] = layer_norm(x, weight, bias, eps)

    def rms_norm_add(self, x: Float32Array, weight: Float32Array, eps: float, residual: Float32Array) -> None:
        residual += rms_norm(x, weight, eps)

    def linear(
        self,
        x: Float32Array,
        norm: Float32Array | None,
        eps: float,
        matrix: Matrix,
        out: Float32Array,
        step: Step | None = None,
        bias: Float32Array | None = None,
    ) -> None:
        out[:] = (x if norm is None else rms_norm(x, norm, eps)) @ _weights(matrix).T
        if bias is not None:
            out += bias

    def linear_add(
        self,
        x: Float32Array,
        matrix: Matrix,
        residual: Float32Array,
        step: Step | None = None,
        bias: Float32Array | None = None,
    ) -> None:
        residual += x @ _weights(matrix).T
        if bias is not None:
            residual += bias

    def linear_gated(
        self,
        x: Float32Array,
        norm: Float32Array,
        eps: float,
        gate_up: Matrix,
        activation: Activation,
        out: Float32Array,
        step: Step | None = None,
    ) -> None:
        gate, up = np.split(rms_norm(x, norm, eps) @ _weights(gate_up).T, 2, axis=1)
        out[:] = gated(gate, up, activation)

    def activate(self, x: Float32Array, activation: Activation, is_gated: bool, out: Float32Array) -> None:
        if is_gated:
            gate, up = np.split(x, 2, axis=1)
            out[:] = gated(gate, up, activation)
        else:
            out[:] = ACTIVATIONS[activation](x)

    def rotate_and_store(
        self,
        qkv: Float32Array,
        heads: int,
        q_norm: Float32Array | None,
        k_norm: Float32Array | None,
        eps: float,
        cosine: Float32Array,
        sine: Float32Array,
        step: Step,
        cache: LayerCache,
    ) -> None:
        assert isinstance(step, ReferenceStep)
        assert isinstance(cache, ReferenceCache)
        layer = cache.layer
        q, k, v = _heads(qkv, heads, layer)
        q[:] = rotate(q if q_norm is None else rms_norm(q, q_norm, eps), cosine, sine)
        k[:] = rotate(k if k_norm is None else rms_norm(k, k_norm, eps), cosine, sine)
        block, offset = np.divmod(step.batch.slot_mapping, layer.keys.shape[3])
        step.nonfinite[:] |= ~kv_codes.store(layer, block, offset, k, v)

    def attention(
        self,
        qkv: Float32Array,
        heads: int,
        params: AttentionParams,
        step: Step,
        cache: LayerCache,
        out: Float32Array,
    ) -> None:
        assert isinstance(step, ReferenceStep)
        assert isinstance(cache, ReferenceCache)
        batch, layer = step.batch, cache.layer
        kv_heads = layer.keys.shape[1]
        q, _, _ = _heads(qkv, heads, layer)
        result = out.reshape(len(out), heads, layer.value_dim)
        for sequence, length in enumerate(batch.seq_lens):
            rows = slice(batch.query_start_loc[sequence], batch.query_start_loc[sequence + 1])
            blocks = batch.block_table[sequence][: -(-int(length) // layer.keys.shape[3])]
            keys, values = kv_codes.gather(layer, blocks, int(length))
            positions = batch.positions[rows, None]
            distance = positions - np.arange(length)[None, :]
            visible = distance >= 0 if params.causal else np.ones_like(distance, dtype=np.bool_)
            if params.window is not None:
                visible &= distance < params.window
            for head in range(heads):
                kv_head = head // (heads // kv_heads)
                scores = np.float32(params.scale) * (q[rows, head] @ keys[kv_head].T)
                if params.softcap is not None:
                    scores = np.float32(params.softcap) * np.tanh(scores / np.float32(params.softcap))
                if params.slopes is not None:
                    scores = scores - params.slopes[head] * distance.astype(np.float32)
                scores = np.where(visible, scores, np.float32(-np.inf))
                if params.sinks is not None:
                    sink = np.full((len(scores), 1), params.sinks[head], dtype=np.float32)
                    weights = softmax(np.concatenate([scores, sink], axis=1))[:, :-1]
                else:
                    weights = softmax(scores)
                result[rows, head] = weights @ values[kv_head]


def _weights(matrix: Matrix) -> Float32Array:
    assert isinstance(matrix, ReferenceMatrix)
    return matrix.weights


def _heads(qkv: Float32Array, heads: int, layer: KVLayer) -> tuple[Float32Array, Float32Array, Float32Array]:
    """Views of the rows' queries [T, H, D], keys [T, G, D] and values [T, G, Dv]."""
    kv_heads = layer.keys.shape[1]
    q_end, k_end = heads * layer.head_dim, (heads + kv_heads) * layer.head_dim
    q, k, v = qkv[:, :q_end], qkv[:, q_end:k_end], qkv[:, k_end:]
    return q.reshape(len(q), heads, -1), k.reshape(len(k), kv_heads, -1), v.reshape(len(v), kv_heads, -1)
