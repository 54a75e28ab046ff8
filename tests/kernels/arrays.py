"""Random weights and steps for the kernel tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pellucid.formats.block_types import BLOCK_TYPES_BY_NAME, BlockType
from pellucid.formats.dequantize import dequantize
from pellucid.forward_batch import ForwardBatch, SequencePart, batch_of
from pellucid.kernels import kv_codes
from pellucid.kernels.backend import Matrix, Step, WeightPart
from pellucid.kernels.native import NativeBackend
from pellucid.kv_cache.storage import KVCacheStorage, KVLayer

SERVED_TYPES = [t for t in BLOCK_TYPES_BY_NAME.values() if t.served]

# Where the half-precision scales (and minima) of a block stand, so that random blocks can be given sane ones.
_HALF_FIELDS = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip


def random_part(
    rng: np.random.Generator, block_type: BlockType, rows: int, columns: int, row_order: np.ndarray | None = None
) -> WeightPart:
    """A matrix of random bits with scales of ordinary size."""
    if block_type.name in ("F32", "F16", "BF16"):
        values = rng.standard_normal((rows, columns)).astype(np.float32)
        if block_type.name == "F16":
            data = values.astype(np.float16).view(np.uint8)
        elif block_type.name == "BF16":
            data = np.ascontiguousarray((values.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8)
        else:
            data = values.view(np.uint8)
        return WeightPart("w", data.reshape(-1), block_type, rows, columns, row_order)
    blocks = rng.integers(0, 256, (rows * columns // block_type.block_size, block_type.type_size), dtype=np.uint8)
    for at in _HALF_FIELDS.get(block_type.name, ()):
        scales = (rng.uniform(0.001, 0.1, len(blocks)) * rng.choice([-1, 1], len(blocks))).astype(np.float16)
        blocks[:, at : at + 2] = scales[:, None].view(np.uint8)
    if block_type.name == "MXFP4":
        blocks[:, 0] = rng.integers(118, 126, len(blocks))
    return WeightPart("w", blocks.reshape(-1), block_type, rows, columns, row_order)


def with_codes(part: WeightPart, filling: int) -> WeightPart:
    """The same with all bytes of its blocks `filling`, but for the scales that are floats."""
    blocks = part.data.reshape(-1, part.type.type_size).copy()
    kept = [byte for at in _HALF_FIELDS.get(part.type.name, ()) for byte in (at, at + 1)]
    kept += [0] if part.type.name == "MXFP4" else []
    scales = blocks[:, kept]
    blocks[:] = filling
    blocks[:, kept] = scales
    return replace(part, data=blocks.reshape(-1))


def plain(part: WeightPart) -> np.ndarray:
    """The part's numbers in float32, rows in their final order."""
    weights = dequantize(part.data, part.type, (part.rows, part.columns))
    return weights if part.row_order is None else weights[part.row_order]


@dataclass(frozen=True)
class Attention:
    """A cache with several sequences in scattered blocks, and one step's rows."""

    storage: KVCacheStorage
    batch: ForwardBatch
    qkv: np.ndarray
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int

    def fresh_layer(self) -> KVLayer:
        """The cache as it was before this step, in memory of its own."""
        old = self.storage
        new = KVCacheStorage(
            1, old.num_blocks, old.num_kv_heads, old.head_dim, dtype=old.dtype, value_dim=old.value_dim
        )
        for to, given in zip(arrays_of(new.layers[0]), arrays_of(old.layers[0]), strict=True):
            to[:] = given
        return new.layers[0]


def arrays_of(layer: KVLayer) -> list[np.ndarray]:
    return [a for a in (layer.keys, layer.values, layer.scales, layer.factors) if a is not None]


def random_attention(
    rng: np.random.Generator,
    spans: list[tuple[int, int]],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: str = "float16",
    value_dim: int | None = None,
) -> Attention:
    """Sequences given as (tokens already cached, rows of this step); what is unused in the cache is NaN, or codes that
    mean nothing with scales that are NaN."""
    max_blocks = max(-(-(cached + rows) // 16) for cached, rows in spans)
    num_blocks = sum(-(-(cached + rows) // 16) for cached, rows in spans) + 3
    storage = KVCacheStorage(1, num_blocks, kv_heads, head_dim, dtype=dtype, value_dim=value_dim)  # type: ignore[arg-type]
    layer, value_dim = storage.layers[0], storage.value_dim
    for array in arrays_of(layer):
        if np.issubdtype(array.dtype, np.floating):
            array[:] = np.nan
        else:
            array[:] = rng.integers(np.iinfo(array.dtype).min, np.iinfo(array.dtype).max, array.shape, endpoint=True)
    order = rng.permutation(num_blocks)
    table = np.zeros((len(spans), max_blocks), dtype=np.int32)
    positions, slots, starts, lengths = [], [], [0], []
    used = 0
    for i, (cached, rows) in enumerate(spans):
        total = cached + rows
        blocks = order[used : used + -(-total // 16)]
        used += len(blocks)
        table[i, : len(blocks)] = blocks
        if cached:
            k = rng.standard_normal((cached, kv_heads, head_dim)).astype(np.float32)
            v = rng.standard_normal((cached, kv_heads, value_dim)).astype(np.float32)
            at = np.arange(cached)
            assert kv_codes.store(layer, blocks[at // 16], at % 16, k, v).all()
        positions += range(cached, total)
        slots += [int(blocks[t // 16]) * 16 + t % 16 for t in range(cached, total)]
        starts.append(starts[-1] + rows)
        lengths.append(total)
    count = starts[-1]
    width = (heads + kv_heads) * head_dim + kv_heads * value_dim
    qkv = rng.standard_normal((count, width)).astype(np.float32)
    batch = ForwardBatch(
        token_ids=np.zeros(count, dtype=np.int32),
        positions=np.array(positions, dtype=np.int32),
        slot_mapping=np.array(slots, dtype=np.int64),
        query_start_loc=np.array(starts, dtype=np.int32),
        seq_lens=np.array(lengths, dtype=np.int32),
        block_table=table,
    )
    return Attention(storage, batch, qkv, heads, kv_heads, head_dim, value_dim)


def block_type(name: str) -> BlockType:
    return BLOCK_TYPES_BY_NAME[name]


def linear(backend: NativeBackend, x: np.ndarray, matrix: Matrix, rows: int, step: Step | None = None) -> np.ndarray:
    """x · matrixᵀ in a new array [T, rows]."""
    out = np.full((len(x), rows), np.nan, dtype=np.float32)
    backend.linear(x, None, 0.0, matrix, out, step)
    return out


def fast_step(backend: NativeBackend, fast_rows: np.ndarray) -> Step:
    """One sequence's step whose rows may be fast where it says so."""
    count = len(fast_rows)
    batch = batch_of([SequencePart([0] * count, 0, range(-(-count // 16)))], 16)
    return backend.step(replace(batch, fast_rows=fast_rows))
