"""Feed a golden document to one of our decoders, in chunks of any sizes, and compare with what the fixture holds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from golden.fidelity import Fidelity, Float32Array, GoldenDocument, Int32Array, apply_head, row_chunks

from pellucid.config import DEFAULT_KV_CACHE_DTYPE, KVCacheDType, Precision
from pellucid.formats.dequantize import dequantize
from pellucid.formats.gguf import GGUFFile
from pellucid.forward_batch import ForwardBatch
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.models.decoder import Decoder
from pellucid.trace.probe import Probe

BLOCK_SIZE = 16
CHUNK = 128
"""Rows of one forward pass, and rows whose logits are held at a time (128 MiB for 262,144 ids in float32)."""


def load_head(path: Path) -> Float32Array:
    """The tied LM head [vocab, d] as the file's dequantised embedding: 670 MB for Gemma 3."""
    with GGUFFile.open(path) as file:
        tensor = file.tensors["token_embd.weight"]
        return dequantize(tensor.data, tensor.type, tensor.shape)


def chunk_sizes(num_tokens: int, size: int = CHUNK) -> list[int]:
    """Chunks of `size` rows that cover `num_tokens`, the last one shorter."""
    return [rows.stop - rows.start for rows in row_chunks(num_tokens, size)]


class Replay:
    """One sequence run through a decoder with its own KV cache, in blocks scattered over the cache."""

    def __init__(
        self,
        decoder: Decoder,
        max_tokens: int,
        kv_dtype: KVCacheDType = DEFAULT_KV_CACHE_DTYPE,
        precision: Precision = "exact",
    ) -> None:
        config = decoder.config
        blocks = -(-max_tokens // BLOCK_SIZE)
        self.decoder = decoder
        self.kv = KVCacheStorage.for_model(config, blocks, BLOCK_SIZE, kv_dtype)
        self.block_table = np.random.default_rng(0).permutation(blocks).astype(np.int32)
        self.length = 0
        self.precision = precision

    def push(self, token_ids: Int32Array, probe: Probe | None = None) -> Float32Array:
        """Run the next rows of the sequence; returns a copy of the final norm's output [R, d]."""
        positions = np.arange(self.length, self.length + len(token_ids), dtype=np.int32)
        self.length += len(token_ids)
        slots = self.block_table[positions // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
        batch = ForwardBatch(
            token_ids=np.ascontiguousarray(token_ids, dtype=np.int32),
            positions=positions,
            slot_mapping=slots,
            query_start_loc=np.array([0, len(token_ids)], dtype=np.int32),
            seq_lens=np.array([self.length], dtype=np.int32),
            block_table=self.block_table[None, :].copy(),
            fast_rows=np.ones(len(token_ids), dtype=np.bool_) if self.precision == "fast" else None,
        )
        output = self.decoder.forward(batch, self.kv, probe)
        if output.nonfinite.any():
            raise AssertionError(f"keys or values of rows {np.flatnonzero(output.nonfinite)} are not finite")
        return output.hidden.copy()


def replay(
    decoder: Decoder,
    token_ids: Int32Array,
    chunks: Iterable[int],
    kv_dtype: KVCacheDType = DEFAULT_KV_CACHE_DTYPE,
    probe: Probe | None = None,
) -> Float32Array:
    """The final norm's output [T, d] of a whole document, run in chunks of the given sizes.

    A probe sees every chunk; a recorder keeps the last one.
    """
    run = Replay(decoder, len(token_ids), kv_dtype)
    parts = []
    for size in chunks:
        parts.append(run.push(token_ids[run.length : run.length + size], probe))
    if run.length != len(token_ids):
        raise ValueError(f"chunks cover {run.length} tokens, but the document has {len(token_ids)}")
    return np.concatenate(parts)


def compare(
    result: Fidelity, decoder: Decoder, head: Float32Array, document: GoldenDocument, ours: Float32Array, start: int = 0
) -> None:
    """Add the rows `ours` [R, d], positions start …, to `result`: golden head × hidden against our head × hidden."""
    for rows in row_chunks(len(ours), CHUNK):
        golden = document.hidden[start + rows.start : start + rows.stop]
        result.add(apply_head(golden, head), decoder.compute_logits(ours[rows]))
