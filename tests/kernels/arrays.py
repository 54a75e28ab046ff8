"""Random weights and steps for the kernel tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pellucid.formats.block_types import BLOCK_TYPES_BY_NAME, BlockType
from pellucid.formats.dequantize import dequantize
from pellucid.forward_batch import ForwardBatch
from pellucid.kernels.backend import Matrix, Step, WeightPart
from pellucid.kernels.native import NativeBackend

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


def plain(part: WeightPart) -> np.ndarray:
    """The part's numbers in float32, rows in their final order."""
    weights = dequantize(part.data, part.type, (part.rows, part.columns))
    return weights if part.row_order is None else weights[part.row_order]


@dataclass(frozen=True)
class Attention:
    """A cache with several sequences in scattered blocks, and one step's rows."""

    keys: np.ndarray
    values: np.ndarray
    batch: ForwardBatch
    qkv: np.ndarray
    heads: int
    kv_heads: int
    head_dim: int


def random_attention(
    rng: np.random.Generator,
    spans: list[tuple[int, int]],
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: str = "float16",
) -> Attention:
    """Sequences given as (tokens already cached, rows of this step); unused cache entries are NaN."""
    max_blocks = max(-(-(cached + rows) // 16) for cached, rows in spans)
    num_blocks = sum(-(-(cached + rows) // 16) for cached, rows in spans) + 3
    keys = np.full((num_blocks, kv_heads, head_dim, 16), np.nan, dtype=dtype)
    values = np.full((num_blocks, kv_heads, 16, head_dim), np.nan, dtype=dtype)
    order = rng.permutation(num_blocks)
    table = np.zeros((len(spans), max_blocks), dtype=np.int32)
    positions, slots, starts, lengths = [], [], [0], []
    used = 0
    for i, (cached, rows) in enumerate(spans):
        total = cached + rows
        blocks = order[used : used + -(-total // 16)]
        used += len(blocks)
        table[i, : len(blocks)] = blocks
        for t in range(cached):
            keys[blocks[t // 16], :, :, t % 16] = rng.standard_normal((kv_heads, head_dim))
            values[blocks[t // 16], :, t % 16] = rng.standard_normal((kv_heads, head_dim))
        positions += range(cached, total)
        slots += [int(blocks[t // 16]) * 16 + t % 16 for t in range(cached, total)]
        starts.append(starts[-1] + rows)
        lengths.append(total)
    count = starts[-1]
    qkv = rng.standard_normal((count, (heads + 2 * kv_heads) * head_dim)).astype(np.float32)
    batch = ForwardBatch(
        token_ids=np.zeros(count, dtype=np.int32),
        positions=np.array(positions, dtype=np.int32),
        slot_mapping=np.array(slots, dtype=np.int64),
        query_start_loc=np.array(starts, dtype=np.int32),
        seq_lens=np.array(lengths, dtype=np.int32),
        block_table=table,
    )
    return Attention(keys, values, batch, qkv, heads, kv_heads, head_dim)


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
    positions = np.arange(count, dtype=np.int32)
    batch = ForwardBatch(
        token_ids=np.zeros(count, dtype=np.int32),
        positions=positions,
        slot_mapping=positions.astype(np.int64),
        query_start_loc=np.array([0, count], dtype=np.int32),
        seq_lens=np.array([count], dtype=np.int32),
        block_table=np.arange(-(-count // 16), dtype=np.int32)[None, :].copy(),
        fast_rows=fast_rows,
    )
    return backend.step(batch)
