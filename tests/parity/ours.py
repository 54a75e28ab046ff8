"""Our own answers for the small models: in one step, in chunks, token by token."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np

from pellucid.forward_batch import ForwardBatch
from pellucid.kernels.dispatch import make_backend
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.models.decoder import Decoder
from pellucid.models.loading import load_model

NUM_BLOCKS = 16


def load_ours(path: Path, backend: str, max_model_len: int | None = None) -> Decoder:
    made = make_backend("native", 2) if backend == "native" else make_backend("reference")
    return load_model(path, made, max_model_len=max_model_len)


def storage(model: Decoder) -> KVCacheStorage:
    c = model.config
    return KVCacheStorage.for_model(c, NUM_BLOCKS, dtype="float32")


def batch(token_ids: list[int], start: int) -> ForwardBatch:
    """Rows of one sequence that begin at position `start`; its blocks are the cache's, in order."""
    count = len(token_ids)
    positions = np.arange(start, start + count, dtype=np.int32)
    return ForwardBatch(
        np.array(token_ids, dtype=np.int32),
        positions,
        positions.astype(np.int64),
        np.array([0, count], dtype=np.int32),
        np.array([start + count], dtype=np.int32),
        np.arange(NUM_BLOCKS, dtype=np.int32)[None, :],
    )


def logits(model: Decoder, token_ids: list[int], cuts: list[int] | None = None) -> np.ndarray:
    """[T, vocab]; cuts: positions at which a new step begins, none by default."""
    kv = storage(model)
    bounds = [0, *(cuts or []), len(token_ids)]
    return np.concatenate(
        [model.compute_logits(model.forward(batch(token_ids[a:b], a), kv).hidden).copy() for a, b in pairwise(bounds)]
    )


def hidden(model: Decoder, token_ids: list[int]) -> np.ndarray:
    """[T, hidden_size] of the whole text at once."""
    return np.asarray(model.forward(batch(token_ids, 0), storage(model)).hidden).copy()


def one_by_one(token_ids: list[int]) -> list[int]:
    """Cuts that leave one token to a step."""
    return list(range(1, len(token_ids)))
