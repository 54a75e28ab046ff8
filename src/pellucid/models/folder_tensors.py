"""The tensors of a safetensors folder in a GGUF file's names, order and types, one at a time.

Both forms of a family name the same slots; a slot's rows are brought into our order, then into the file's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pellucid.config import LatentConfig, ModelConfig
from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.formats.block_types import BF16, F16, F32, MXFP4, BlockType
from pellucid.formats.dequantize import dequantize
from pellucid.kernels.backend import Backend, Float32Array
from pellucid.models.architectures.base import ExpertNames, GGUFForm, HFForm, Int32Array, Stored
from pellucid.models.architectures.common import half_split_rows
from pellucid.models.fp8 import SCALES as FP8_SCALES
from pellucid.models.sources import StoredTensor, TensorSource, array_tensor
from pellucid.models.weight_loader import CODES, SCALES, WeightLoader

_WEIGHT, _BIAS = ".weight", ".bias"


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor of the file to be written; `read` gives its numbers, of type `kind`."""

    name: str
    shape: tuple[int, ...]
    kind: BlockType
    read: Callable[[], StoredTensor]

    def outline(self) -> StoredTensor:
        """Its name, shape and type."""
        return StoredTensor(self.name, self.shape, self.kind, np.empty(0, dtype=np.uint8), False)


@dataclass(frozen=True, slots=True)
class _Slot:
    """Rows of one logical matrix in both forms; `rows`: of each part as we want them."""

    given: tuple[Stored, ...]
    wanted: tuple[Stored, ...]
    rows: tuple[int, ...]
    columns: int
    given_orders: tuple[Int32Array | None, ...]
    wanted_orders: tuple[Int32Array | None, ...]
    as_floats: bool = False
    """F32, whatever the folder has."""


class FolderTensors(WeightLoader):
    """Reads what a `WeightLoader` reads, and packs nothing."""

    def __init__(
        self, source: TensorSource, form: HFForm, wanted: GGUFForm, config: ModelConfig, backend: Backend
    ) -> None:
        super().__init__(
            source.lasting(),
            form.tensors,
            config,
            backend,
            interleaved=form.interleaved_rope_rows,
            norm_offset=form.norm_offset,
        )
        self._wanted = wanted.tensors
        self._is_wanted_interleaved = wanted.interleaved_rope_rows
        self._used: set[str] = set()

    def planned(self) -> list[PlannedTensor]:
        """All tensors of the file in its order; nothing is read yet.

        Raises `ModelFileError` for a tensor of the folder that is missing or unknown, `UnsupportedModelError` for what
        the file has no name for.
        """
        found = [*self._planned_outside(), *(one for i in range(self.config.num_layers) for one in self._layer_of(i))]
        self._refuse_unknown(name for name, _ in self.source.items() if name not in self._used)
        return found

    def _planned_outside(self) -> Iterator[PlannedTensor]:
        """The tensors that belong to no layer."""
        config, given, wanted = self.config, self.names, self._wanted
        yield from self._table(given.embedding, wanted.embedding, config.vocab_size, config.embedding_size)
        if not config.tie_word_embeddings:
            yield from self._table(given.head, wanted.head, config.vocab_size, config.embedding_size)
        if given.position_embedding is not None:
            rows = config.context_length + config.position_offset
            yield from self._table(given.position_embedding, wanted.position_embedding, rows, config.hidden_size, True)
        kinds = None if given.token_type_embedding is None else self.source.shape(given.token_type_embedding + _WEIGHT)
        if kinds is not None:
            yield from self._table(
                given.token_type_embedding, wanted.token_type_embedding, kinds[0], config.hidden_size, True
            )
        yield from self._planned_norm(given.embedding_norm, wanted.embedding_norm)
        yield from self._planned_norm(given.final_norm, wanted.final_norm)

    def _layer_of(self, i: int) -> Iterator[PlannedTensor]:
        config, given, wanted = self.config, self.names, self._wanted
        heads = {"q_norm": config.num_heads, "k_norm": config.num_kv_heads}
        for name in ("attention_norm", "mlp_norm", "post_attention_norm", "post_mlp_norm"):
            if name != "mlp_norm" or self._has_mlp_norm(i):
                yield from self._planned_norm(getattr(given, name), getattr(wanted, name), i)
        for name, count in heads.items():
            yield from self._planned_head_norm(getattr(given, name), getattr(wanted, name), count, i)
        if given.sinks is not None:
            yield self._planned_vector(given.sinks, wanted.sinks, config.num_heads, i)
        if config.latent is None:
            q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
            rows = (q_rows, kv_rows, kv_rows)
            wanted_orders = self._half_split() if self._is_wanted_interleaved else (None, None, None)
            yield from self._matrices(
                _Slot(given.qkv, wanted.qkv, rows, config.hidden_size, self._rope_orders(), wanted_orders), i
            )
        else:
            q_rows = config.num_heads * config.latent.value_dim
            yield from self._planned_latent(config.latent, i)
        yield from self._plain((given.attention_output,), (wanted.attention_output,), (config.hidden_size,), q_rows, i)
        if given.experts is not None and not config.is_dense(i):
            if wanted.experts is None:
                raise UnsupportedModelError(f"{config.architecture}: its experts have no names in GGUF files")
            yield from self._planned_experts(given.experts, wanted.experts, i)
            return
        inner = (config.intermediate_size,) * (2 if config.gated_mlp else 1)
        yield from self._plain(given.gate_up, wanted.gate_up, inner, config.hidden_size, i)
        yield from self._plain((given.down,), (wanted.down,), (config.hidden_size,), config.intermediate_size, i)

    def _planned_latent(self, latent: LatentConfig, i: int) -> Iterator[PlannedTensor]:
        """Both forms have the rows of queries and of the shared key in the order of interleaved pairs."""
        given, wanted, config = self.names.latent, self._wanted.latent, self.config
        assert given is not None
        if wanted is None or wanted.key_up is None or wanted.value_up is None:
            raise UnsupportedModelError(f"{config.architecture}: its latent attention has no names in GGUF files")
        hidden, heads = config.hidden_size, config.num_heads
        q_rows = (heads * latent.key_dim,)
        if latent.query_rank:
            yield from self._plain((given.query_down,), (wanted.query_down,), (latent.query_rank,), hidden, i)
            yield from self._planned_norm(given.query_norm, wanted.query_norm, i, latent.query_rank)
            yield from self._plain((given.query_up,), (wanted.query_up,), q_rows, latent.query_rank, i)
        else:
            yield from self._plain((given.query,), (wanted.query,), q_rows, hidden, i)
        down_rows = (latent.rank + latent.rope_dim,)
        yield from self._plain((given.key_value_down,), (wanted.key_value_down,), down_rows, hidden, i)
        yield from self._planned_norm(given.key_value_norm, wanted.key_value_norm, i, latent.rank)
        up = given.key_value_up
        self._use(up.name.format(i=i) + up.suffix)
        kind = self._kind(_Slot((up,), (), (), latent.rank, (None,), ()), i, None)
        for place, (name, shape) in enumerate(
            (
                (wanted.key_up, (heads, latent.rank, latent.nope_dim)),
                (wanted.value_up, (heads, latent.value_dim, latent.rank)),
            )
        ):

            def read(place: int = place) -> StoredTensor:
                tensor = self._latent_ups(given, latent, i)[place]
                return dataclasses.replace(tensor, type=kind, data=_in_type(tensor, kind))

            yield PlannedTensor(name.format(i=i), shape, kind, read)

    def _planned_experts(self, given: ExpertNames, wanted: ExpertNames, i: int) -> Iterator[PlannedTensor]:
        experts, hidden = self.config.experts, self.config.hidden_size
        assert experts is not None
        none = (None,)
        router = _Slot((given.router,), (wanted.router,), (experts.num_experts,), hidden, none, none, as_floats=True)
        yield from self._matrices(router, i)
        inner = experts.intermediate_size
        for parts, names, rows, columns in (
            (given.gate_up, wanted.gate_up, (inner, inner), hidden),
            ((given.down,), (wanted.down,), (hidden,), inner),
        ):
            orders = (None,) * len(rows)
            slot = _Slot(parts, names, rows, columns, orders, orders)
            for place, name in enumerate(names):
                yield from self._stacked_matrix(slot, place, name, experts.num_experts, i)
        if given.score_bias is not None and given.score_bias.format(i=i) in self.source:
            yield self._planned_vector(given.score_bias, wanted.score_bias, experts.num_experts, i)
        if given.shared_down is not None and wanted.shared_down is not None and experts.shared_intermediate_size:
            inner = experts.shared_intermediate_size
            yield from self._plain(given.shared_gate_up, wanted.shared_gate_up, (inner, inner), hidden, i)
            yield from self._plain((given.shared_down,), (wanted.shared_down,), (hidden,), inner, i)

    def _stacked_matrix(self, slot: _Slot, place: int, name: Stored, count: int, i: int) -> Iterator[PlannedTensor]:
        """All experts' rows in one tensor, and their biases."""
        kind = self._kind(slot, i, 0)
        for expert in range(count):
            self._use_parts(slot, i, expert)
        has_bias = any(part.name.format(i=i, e=0) + part.bias_suffix in self.source for part in slot.given)

        def read() -> StoredTensor:
            parts = [self._rows_of(slot, place, kind, i, expert) for expert in range(count)]
            self._forget_stacks()
            return dataclasses.replace(parts[0], shape=shape, data=np.concatenate([part.data for part in parts]))

        def bias() -> StoredTensor:
            biases = np.stack([self._bias_of(slot, place, i, expert) for expert in range(count)])
            self._forget_stacks()
            return array_tensor("bias", biases)

        shape = (count, self._size(slot, place), slot.columns)
        yield PlannedTensor(name.name.format(i=i) + name.suffix, shape, kind, read)
        if has_bias:
            yield PlannedTensor(name.name.format(i=i) + name.bias_suffix, shape[:2], F32, bias)

    def _plain(
        self, given: tuple[Stored, ...], wanted: tuple[Stored, ...], rows: tuple[int, ...], columns: int, i: int
    ) -> Iterator[PlannedTensor]:
        orders = (None,) * len(rows)
        yield from self._matrices(_Slot(given, wanted, rows, columns, orders, orders), i)

    def _table(
        self, given: str | None, wanted: str | None, rows: int, columns: int, as_floats: bool = False
    ) -> Iterator[PlannedTensor]:
        if given is None or wanted is None:
            raise UnsupportedModelError(f"{self.config.architecture}: {given} has no name in GGUF files")
        slot = _Slot((Stored(given),), (Stored(wanted),), (rows,), columns, (None,), (None,), as_floats)
        yield from self._matrices(slot, 0)

    def _matrices(self, slot: _Slot, i: int) -> Iterator[PlannedTensor]:
        """The slot's parts in the file, and their biases."""
        kind = self._kind(slot, i, None)
        self._use_parts(slot, i, None)
        has_bias = any(part.name.format(i=i) + part.bias_suffix in self.source for part in slot.given)
        for place, part in enumerate(slot.wanted):

            def read(place: int = place) -> StoredTensor:
                return self._rows_of(slot, place, kind, i, None)

            def bias(place: int = place) -> StoredTensor:
                return array_tensor("bias", self._bias_of(slot, place, i, None))

            rows = self._size(slot, place)
            yield PlannedTensor(part.name.format(i=i) + part.suffix, (rows, slot.columns), kind, read)
            if has_bias:
                yield PlannedTensor(part.name.format(i=i) + part.bias_suffix, (rows,), F32, bias)

    def _kind(self, slot: _Slot, i: int, expert: int | None) -> BlockType:
        """The type of the slot's numbers: the folder's where all parts have it, else F32."""
        names = [part.name.format(i=i, e=expert) + part.suffix for part in slot.given]
        if all(name + CODES in self.source for name in names):
            return MXFP4
        kinds = {found for name in names if (found := self.source.type_name(name)) is not None}
        plain = {kind.name: kind for kind in (F16, BF16)}
        return plain.get(kinds.pop(), F32) if len(kinds) == 1 and not slot.as_floats else F32

    def _use_parts(self, slot: _Slot, i: int, expert: int | None) -> None:
        """Note that the tensors of the slot will be read. Raises `ModelFileError` where one is missing."""
        for part in slot.given:
            base = part.name.format(i=i, e=expert)
            self._use(base + part.suffix)
            self._used.add(base + part.bias_suffix)

    def _use(self, name: str) -> None:
        if name + CODES in self.source:
            self._used |= {name + CODES, name + SCALES}
            return
        if name not in self.source:
            raise ModelFileError(f"{self.source.label}: tensor {name} is missing")
        self._used |= {name, name + FP8_SCALES}

    def _size(self, slot: _Slot, place: int) -> int:
        return slot.rows[place] if len(slot.wanted) == len(slot.rows) else sum(slot.rows)

    def _sources(self, slot: _Slot, place: int) -> list[tuple[Stored, int, Int32Array | None, int, int]]:
        """(part, its rows, our order of them, first, last) of the folder that make up a part of the file."""
        counts = slot.rows if len(slot.given) == len(slot.rows) else (sum(slot.rows),)
        orders = slot.given_orders if len(slot.given) == len(slot.rows) else (None,)
        start = sum(slot.rows[:place]) if len(slot.wanted) == len(slot.rows) else 0
        stop = start + self._size(slot, place)
        found, at = [], 0
        for part, count, order in zip(slot.given, counts, orders, strict=True):
            first, last = max(start, at), min(stop, at + count)
            if first < last:
                own = part.order(self.config) if part.order is not None else order
                found.append((part, count, own, first - at, last - at))
            at += count
        return found

    def _wanted_rows(self, slot: _Slot, place: int) -> Int32Array | None:
        """Which of our rows is row i of the file."""
        part = slot.wanted[place]
        if part.order is not None:
            order: Int32Array | None = part.order(self.config)
        elif len(slot.wanted) == len(slot.rows):
            order = slot.wanted_orders[place]
        else:
            order = _joined_orders(slot.wanted_orders, slot.rows)
        return None if order is None else np.argsort(order).astype(np.int32)

    def _rows_of(self, slot: _Slot, place: int, kind: BlockType, i: int, expert: int | None) -> StoredTensor:
        pieces: list[npt.NDArray[np.uint8]] = []
        read: list[StoredTensor] = []
        for part, count, own, first, last in self._sources(slot, place):
            read.append(self._stored(part, count, slot.columns, i, expert))
            given = _in_type(read[-1], kind).reshape(count, -1)
            pieces.append(given[first:last] if own is None else given[own[first:last]])
        order = self._wanted_rows(slot, place)
        rows = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        data = np.ascontiguousarray(rows if order is None else rows[order]).reshape(-1)
        outline = StoredTensor(slot.wanted[place].name, (self._size(slot, place), slot.columns), kind, data, False)
        if np.shares_memory(data, read[0].data):
            return dataclasses.replace(outline, mapped=read[0].mapped, release=read[0].release)
        for tensor in read:
            tensor.release()
        return outline

    def _bias_of(self, slot: _Slot, place: int, i: int, expert: int | None) -> Float32Array:
        pieces: list[Float32Array] = []
        for part, count, order, first, last in self._sources(slot, place):
            bias = self._bias(part, count, i, expert)
            whole = np.zeros(count, dtype=np.float32) if bias is None else bias
            pieces.append((whole if order is None else whole[order])[first:last])
        joined = np.concatenate(pieces)
        order = self._wanted_rows(slot, place)
        return joined if order is None else joined[order]

    def _planned_vector(self, given: str, wanted: str | None, length: int, i: int) -> PlannedTensor:
        """Whole tensor names."""
        if wanted is None:
            raise UnsupportedModelError(f"{self.config.architecture}: the tensor {given} has no name in GGUF files")
        name = given.format(i=i)
        self._use(name)
        return PlannedTensor(wanted.format(i=i), (length,), F32, lambda: array_tensor(name, self._vector(name, length)))

    def _planned_norm(
        self, given: str | None, wanted: str | None, i: int = 0, length: int | None = None
    ) -> Iterator[PlannedTensor]:
        if given is None:
            return
        if wanted is None:
            raise UnsupportedModelError(f"{self.config.architecture}: the norm {given} has no name in GGUF files")
        size = length or self.config.hidden_size
        self._use(given.format(i=i) + _WEIGHT)

        def weight() -> StoredTensor:
            return array_tensor("norm", self._required_norm(given, i, size).weight)

        def bias() -> StoredTensor:
            found = self._required_norm(given, i, size).bias
            assert found is not None
            return array_tensor("norm", found)

        yield PlannedTensor(wanted.format(i=i) + _WEIGHT, (size,), F32, weight)
        if given.format(i=i) + _BIAS in self.source:
            self._used.add(given.format(i=i) + _BIAS)
            yield PlannedTensor(wanted.format(i=i) + _BIAS, (size,), F32, bias)

    def _planned_head_norm(self, given: str | None, wanted: str | None, heads: int, i: int) -> Iterator[PlannedTensor]:
        if given is None:
            return
        if wanted is None:
            raise UnsupportedModelError(f"{self.config.architecture}: the norm {given} has no name in GGUF files")
        self._use(given.format(i=i) + _WEIGHT)
        shape = self.source.shape(given.format(i=i) + _WEIGHT) or (self.config.head_dim,)

        def read() -> StoredTensor:
            found = self._head_norm(given, heads, i)
            assert found is not None
            return array_tensor("norm", found)

        yield PlannedTensor(wanted.format(i=i) + _WEIGHT, shape, F32, read)

    def _half_split(self) -> tuple[Int32Array | None, ...]:
        c = self.config
        q, k = (half_split_rows(heads, c.head_dim, c.rope.dim) for heads in (c.num_heads, c.num_kv_heads))
        return (q, k, None)

    def _forget_stacks(self) -> None:
        for tensor in self._stacks.values():
            tensor.release()
        self._stacks.clear()


def _joined_orders(orders: Sequence[Int32Array | None], rows: Sequence[int]) -> Int32Array | None:
    """Orders of parts as one of all their rows; None where none has any."""
    if all(order is None for order in orders):
        return None
    parts, at = [], 0
    for order, count in zip(orders, rows, strict=True):
        parts.append(at + (np.arange(count, dtype=np.int32) if order is None else order))
        at += count
    return np.concatenate(parts)


def _in_type(tensor: StoredTensor, kind: BlockType) -> npt.NDArray[np.uint8]:
    """The bytes of the tensor's numbers as `kind`."""
    if tensor.type is kind:
        return tensor.data
    values = dequantize(tensor.data, tensor.type, tensor.shape)
    if kind is not F32:
        raise AssertionError(f"{tensor.name} is {tensor.type.name}, not {kind.name}")
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
