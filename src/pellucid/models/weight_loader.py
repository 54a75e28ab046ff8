"""Tensors → packed weights: each tensor is taken exactly once, and its shape checked on the way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pellucid.config import LatentConfig, ModelConfig
from pellucid.errors import ModelFileError, UnsupportedModelError, shown
from pellucid.formats.block_types import MXFP4
from pellucid.formats.dequantize import dequantize
from pellucid.formats.repack import MXFP4_GROUP, mxfp4_blocks
from pellucid.kernels.backend import Backend, Float32Array, Matrix, WeightPart
from pellucid.models.architectures.base import ExpertNames, Int32Array, LatentNames, Stored, TensorNames
from pellucid.models.architectures.common import half_split_rows
from pellucid.models.fp8 import FP8 as _FP8
from pellucid.models.fp8 import scaled_fp8
from pellucid.models.sources import StoredTensor, TensorSource, array_tensor
from pellucid.models.weights import (
    AttentionWeights,
    DecoderWeights,
    ExpertsWeights,
    LatentAttentionWeights,
    LayerWeights,
    Linear,
    MLPWeights,
    Norm,
)

if TYPE_CHECKING:
    from pellucid.models.quantization import Quantizer

_WEIGHT, _BIAS = ".weight", ".bias"
CODES, SCALES = "_blocks", "_scales"
"""What the names of MXFP4's two tensors end in (gpt-oss)."""


class WeightLoader:
    """Takes the tensors of one model.

    interleaved: q and k have their rows in the order of interleaved pairs (llama.cpp's converter for some families).
    norm_offset: added to the weights of RMSNorm (Gemma in safetensors).
    quantizer: makes blocks of float matrices; None: they are packed as they are.
    """

    def __init__(
        self,
        source: TensorSource,
        names: TensorNames,
        config: ModelConfig,
        backend: Backend,
        *,
        interleaved: bool = False,
        norm_offset: float = 0.0,
        quantizer: Quantizer | None = None,
    ) -> None:
        self.source = source
        self.names = names
        self.config = config
        self.backend = backend
        self.interleaved = interleaved
        self.norm_offset = norm_offset
        self.quantizer = quantizer
        self._stacks: dict[str, StoredTensor] = {}

    def load(self) -> DecoderWeights:
        """All weights. Raises `ModelFileError` for a tensor that is missing, unknown or of another shape."""
        config, names = self.config, self.names
        embedding = self._matrix(Stored(names.embedding), config.vocab_size, config.embedding_size)
        layers = tuple(self._layer(i) for i in range(config.num_layers))
        head = embedding
        if not config.tie_word_embeddings:
            head = self._matrix(Stored(names.head), config.vocab_size, config.embedding_size)
        weights = DecoderWeights(
            embedding=embedding,
            layers=layers,
            final_norm=None if config.block == "post_norm" else self._norm(names.final_norm),
            head=head,
            position_embedding=self._positions(),
            embedding_bias=self._embedding_bias(),
            project_in=self._projection(names.project_in, config.hidden_size, config.embedding_size),
            project_out=self._projection(names.project_out, config.embedding_size, config.hidden_size),
            embedding_norm=self._norm(names.embedding_norm),
        )
        self._refuse_unknown(self.source.left)
        return weights

    def _refuse_unknown(self, left: Iterable[str]) -> None:
        """left: tensors that nothing is made of."""
        ignored = [
            *(pattern.replace("{n}", str(self.config.num_layers)) for pattern in self.names.ignored),
            *([re.escape(self.names.head + _WEIGHT)] if self.config.tie_word_embeddings else []),
        ]
        unknown = sorted(n for n in left if not any(re.fullmatch(pattern, n) for pattern in ignored))
        if unknown:
            raise ModelFileError(
                f"{self.source.label}: tensor {shown(unknown[0])} is unknown to architecture {self.config.architecture}"
                + (f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else "")
            )

    def _positions(self) -> Matrix | None:
        if self.names.position_embedding is None:
            return None
        rows = self.config.context_length + self.config.position_offset
        return self._matrix(Stored(self.names.position_embedding), rows, self.config.hidden_size)

    def _embedding_bias(self) -> Float32Array | None:
        name = self.names.token_type_embedding
        shape = None if name is None else self.source.shape(name + _WEIGHT)
        if name is None or shape is None or len(shape) != 2 or shape[0] < 1:
            return None
        return np.ascontiguousarray(self._floats(Stored(name), shape[0], self.config.hidden_size, 0)[0])

    def _projection(self, name: str | None, rows: int, columns: int) -> Linear | None:
        return None if name is None or rows == columns else self._linear((Stored(name),), (rows,), columns)

    def _layer(self, i: int) -> LayerWeights:
        names, config = self.names, self.config
        layer = LayerWeights(
            attention_norm=self._norm(names.attention_norm, i),
            attention=self._attention(i) if names.latent is None else self._latent(names.latent, i),
            post_attention_norm=self._norm(names.post_attention_norm, i),
            mlp_norm=self._norm(names.mlp_norm, i) if self._has_mlp_norm(i) else None,
            mlp=self._mlp(names.gate_up, names.down, config.intermediate_size, i)
            if names.experts is None or config.is_dense(i)
            else self._experts(names.experts, i),
            post_mlp_norm=self._norm(names.post_mlp_norm, i),
        )
        for tensor in self._stacks.values():
            tensor.release()
        self._stacks.clear()
        return layer

    def _has_mlp_norm(self, i: int) -> bool:
        """Parallel branches may share the one norm before them (StableLM)."""
        name = self.names.mlp_norm
        return name is not None and (self.config.block != "parallel" or name.format(i=i) + _WEIGHT in self.source)

    def _attention(self, i: int) -> AttentionWeights:
        names, config = self.names, self.config
        q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        orders = self._rope_orders()
        return AttentionWeights(
            qkv=self._linear(names.qkv, (q_rows, kv_rows, kv_rows), config.hidden_size, i, orders=orders),
            output=self._linear((names.attention_output,), (config.hidden_size,), q_rows, i),
            q_norm=self._head_norm(names.q_norm, config.num_heads, i),
            k_norm=self._head_norm(names.k_norm, config.num_kv_heads, i),
            sinks=None if names.sinks is None else self._vector(names.sinks.format(i=i), config.num_heads),
        )

    def _rope_orders(self) -> tuple[Int32Array | None, ...]:
        """How rows of q, k and v are put into half-split order."""
        config = self.config
        if not self.interleaved:
            return (None, None, None)
        q, k = (
            half_split_rows(heads, config.head_dim, config.rope.dim)
            for heads in (config.num_heads, config.num_kv_heads)
        )
        return (q, k, None)

    def _latent(self, names: LatentNames, i: int) -> LatentAttentionWeights:
        """Queries and the shared key are stored with interleaved pairs; kv_b_proj is taken apart head by head."""
        config, latent = self.config, self.config.latent
        assert latent is not None
        heads, hidden = config.num_heads, config.hidden_size
        head = np.arange(latent.key_dim, dtype=np.int32)
        head[latent.nope_dim :] = latent.nope_dim + half_split_rows(1, latent.rope_dim, latent.rope_dim)
        q_order = (np.arange(heads, dtype=np.int32)[:, None] * np.int32(len(head)) + head[None, :]).reshape(-1)
        k_order = np.arange(latent.rank + latent.rope_dim, dtype=np.int32)
        k_order[latent.rank :] = latent.rank + half_split_rows(1, latent.rope_dim, latent.rope_dim)
        is_compressed = latent.query_rank > 0
        query, columns = (names.query_up, latent.query_rank) if is_compressed else (names.query, hidden)
        key_up, value_up = self._latent_ups(names, latent, i)
        return LatentAttentionWeights(
            query=self._linear((query,), (len(q_order),), columns, i, orders=(q_order,)),
            query_down=self._linear((names.query_down,), (latent.query_rank,), hidden, i) if is_compressed else None,
            query_norm=self._norm(names.query_norm, i, latent.query_rank) if is_compressed else None,
            key_value_down=self._linear((names.key_value_down,), (len(k_order),), hidden, i, orders=(k_order,)),
            key_value_norm=self._required_norm(names.key_value_norm, i, latent.rank),
            key_up=self._per_head(names.key_value_up, key_up),
            value_up=self._per_head(names.key_value_up, value_up),
            output=self._linear((self.names.attention_output,), (hidden,), heads * latent.value_dim, i),
        )

    def _latent_ups(self, names: LatentNames, latent: LatentConfig, i: int) -> tuple[StoredTensor, StoredTensor]:
        """Keys' [heads, rank, nope_dim] and values' [heads, value_dim, rank], from one tensor or two."""
        heads, together = self.config.num_heads, latent.nope_dim + latent.value_dim
        if names.key_up is None or names.value_up is None or names.key_up.format(i=i) not in self.source:
            up = self._stored(names.key_value_up, heads * together, latent.rank, i, None)
            parts = _keys_and_values(up, heads, latent)
            up.release()
            return parts
        return (
            self.source.take(names.key_up.format(i=i), (heads, latent.rank, latent.nope_dim)),
            self.source.take(names.value_up.format(i=i), (heads, latent.value_dim, latent.rank)),
        )

    def _per_head(self, name: Stored, tensor: StoredTensor) -> tuple[Matrix, ...]:
        """A matrix of each head; tensor [heads, rows, columns]."""
        if self.quantizer is not None:
            tensor = self.quantizer.quantized(name.name, tensor)
        heads, rows, columns = tensor.shape
        parts = [WeightPart(tensor.name, tensor.part(h).data, tensor.type, rows, columns) for h in range(heads)]
        matrices = tuple(self.backend.matrix([part]) for part in parts)
        tensor.release()
        return matrices

    def _mlp(
        self, gate_up: tuple[Stored, ...], down: Stored, inner: int, i: int, expert: int | None = None
    ) -> MLPWeights:
        hidden = self.config.hidden_size
        rows = (inner, inner) if self.config.gated_mlp else (inner,)
        return MLPWeights(
            self._linear(gate_up, rows, hidden, i, expert=expert),
            self._linear((down,), (hidden,), inner, i, expert=expert),
        )

    def _experts(self, names: ExpertNames, i: int) -> ExpertsWeights:
        experts = self.config.experts
        assert experts is not None
        shared = None
        if names.shared_down is not None and experts.shared_intermediate_size:
            shared = self._mlp(names.shared_gate_up, names.shared_down, experts.shared_intermediate_size, i)
        return ExpertsWeights(
            router=self._linear((names.router,), (experts.num_experts,), self.config.hidden_size, i),
            experts=tuple(
                self._mlp(names.gate_up, names.down, experts.intermediate_size, i, expert)
                for expert in range(experts.num_experts)
            ),
            score_bias=None
            if names.score_bias is None or names.score_bias.format(i=i) not in self.source
            else self._vector(names.score_bias.format(i=i), experts.num_experts),
            shared=shared,
        )

    def _linear(
        self,
        parts: tuple[Stored, ...],
        rows: tuple[int, ...],
        columns: int,
        i: int = 0,
        *,
        orders: Sequence[Int32Array | None] = (),
        expert: int | None = None,
    ) -> Linear:
        """One matrix of the parts, one below the other, with their biases.

        rows: of each part as we want it; a single part holds them all. orders: for each of `rows`.
        """
        if len(parts) == 1 and len(rows) > 1:
            rows, orders = (sum(rows),), ()
        tensors: list[StoredTensor] = []
        weight_parts: list[WeightPart] = []
        biases: list[Float32Array | None] = []
        for place, (part, count) in enumerate(zip(parts, rows, strict=True)):
            order = part.order(self.config) if part.order is not None else (orders[place] if orders else None)
            tensor = self._stored(part, count, columns, i, expert)
            if self.quantizer is not None:
                tensor = self.quantizer.quantized(part.name.format(i=i, e=expert), tensor)
            tensors.append(tensor)
            weight_parts.append(
                WeightPart(tensor.name, tensor.data, tensor.type, count, columns, order, mapped=tensor.mapped)
            )
            bias = self._bias(part, count, i, expert)
            biases.append(bias if bias is None or order is None else bias[order])
        matrix = self.backend.matrix(weight_parts)
        for tensor in tensors:
            tensor.release()
        return Linear(matrix, _joined(biases, rows))

    def _matrix(self, part: Stored, rows: int, columns: int) -> Matrix:
        return self._linear((part,), (rows,), columns).matrix

    def _stored(self, part: Stored, rows: int, columns: int, i: int, expert: int | None) -> StoredTensor:
        """The part's numbers as [rows, columns]."""
        name = part.name.format(i=i, e=expert) + part.suffix
        if part.stacked and name + CODES in self.source:
            return self._mxfp4(name, rows, columns, expert)
        if self.source.type_name(name) == _FP8:
            return scaled_fp8(self.source, name, rows, columns)
        shape = (columns, rows) if part.transposed else (rows, columns)
        tensor = self._slice(name, shape, expert) if part.stacked else self.source.take(name, shape)
        return _transposed(tensor) if part.transposed else tensor

    def _mxfp4(self, name: str, rows: int, columns: int, expert: int | None) -> StoredTensor:
        """One expert of codes and scales (gpt-oss), which are stored row by row whatever the floats would be."""
        experts = self.config.experts
        assert experts is not None
        assert expert is not None
        if name not in self._stacks:
            self._stacks[name] = self.source.take_codes(
                name + CODES, (experts.num_experts, rows, columns // MXFP4_GROUP, MXFP4_GROUP // 2), "U8"
            )
            self._stacks[name + SCALES] = self.source.take_codes(
                name + SCALES, (experts.num_experts, rows, columns // MXFP4_GROUP), "U8"
            )
        codes, scales = self._stacks[name].part(expert), self._stacks[name + SCALES].part(expert)
        data = mxfp4_blocks(codes.data.reshape(-1, MXFP4_GROUP // 2), scales.data)
        return StoredTensor(name, (rows, columns), MXFP4, data, False)

    def _slice(self, name: str, shape: tuple[int, ...], expert: int | None) -> StoredTensor:
        experts = self.config.experts
        assert experts is not None
        assert expert is not None
        if name not in self._stacks:
            self._stacks[name] = self.source.take(name, (experts.num_experts, *shape))
        return self._stacks[name].part(expert)

    def _bias(self, part: Stored, rows: int, i: int, expert: int | None) -> Float32Array | None:
        name = part.name.format(i=i, e=expert) + part.bias_suffix
        if name not in self.source:
            return None
        tensor = self._slice(name, (rows,), expert) if part.stacked else self.source.take(name, (rows,))
        return np.ascontiguousarray(dequantize(tensor.data, tensor.type, tensor.shape))

    def _floats(self, part: Stored, rows: int, columns: int, i: int) -> Float32Array:
        tensor = self._stored(part, rows, columns, i, None)
        return dequantize(tensor.data, tensor.type, tensor.shape)

    def _vector(self, name: str, length: int) -> Float32Array:
        tensor = self.source.take(name, (length,))
        return np.ascontiguousarray(dequantize(tensor.data, tensor.type, tensor.shape))

    def _norm(self, name: str | None, i: int = 0, length: int | None = None) -> Norm | None:
        return None if name is None else self._required_norm(name, i, length or self.config.hidden_size)

    def _required_norm(self, name: str, i: int, length: int) -> Norm:
        base = name.format(i=i)
        weight = self._vector(base + _WEIGHT, length) + np.float32(self.norm_offset)
        return Norm(weight, self._vector(base + _BIAS, length) if base + _BIAS in self.source else None)

    def _head_norm(self, name: str | None, heads: int, i: int) -> Float32Array | None:
        """[head_dim], or [heads · head_dim], as the file has it."""
        if name is None:
            return None
        full = name.format(i=i) + _WEIGHT
        whole = (heads * self.config.head_dim,)
        length = whole[0] if self.source.shape(full) == whole else self.config.head_dim
        return self._vector(full, length) + np.float32(self.norm_offset)


def _joined(biases: list[Float32Array | None], rows: tuple[int, ...]) -> Float32Array | None:
    if all(bias is None for bias in biases):
        return None
    return np.concatenate(
        [np.zeros(count, dtype=np.float32) if bias is None else bias for bias, count in zip(biases, rows, strict=True)]
    )


def _keys_and_values(up: StoredTensor, heads: int, latent: LatentConfig) -> tuple[StoredTensor, StoredTensor]:
    """kv_b_proj taken apart; floats keep their type, blocks along the rank end where keys are turned."""
    if up.type.block_size != 1:
        up = array_tensor(up.name, dequantize(up.data, up.type, up.shape))
    numbers = up.data.view(f"u{up.type.type_size}").reshape(heads, -1, latent.rank)
    found = []
    for part in (numbers[:, : latent.nope_dim].swapaxes(1, 2), numbers[:, latent.nope_dim :]):
        data = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
        found.append(StoredTensor(up.name, part.shape, up.type, data, False))
    return found[0], found[1]


def _transposed(tensor: StoredTensor) -> StoredTensor:
    """[columns, rows] as [rows, columns]; only plain numbers can be turned."""
    if tensor.type.block_size != 1:
        raise UnsupportedModelError(f"tensor {tensor.name} is stored transposed, which {tensor.type.name} cannot be")
    numbers = tensor.data.view(f"u{tensor.type.type_size}").reshape(tensor.shape)
    turned = np.ascontiguousarray(numbers.T)
    return StoredTensor(
        tensor.name, turned.shape, tensor.type, turned.reshape(-1).view(np.uint8), False, tensor.release
    )
