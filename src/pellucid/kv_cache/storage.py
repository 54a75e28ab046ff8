"""The arrays that hold keys and values; the kernels write and read them, nothing else does.

Within a block the keys are transposed: the tokens of a block lie side by side for each number of the head, so
that q · k of a whole block is `head_dim` multiply-adds on a vector of block_size tokens. Values lie as rows.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.config import KV_CACHE_DTYPES, KV_DTYPE_BYTES, KVCacheDType
from pellucid.errors import InvalidParameterError


class KVCacheStorage:
    """Keys and values of every layer.

    `keys[layer]` has shape [num_blocks, num_kv_heads, head_dim, block_size],
    `values[layer]` has shape [num_blocks, num_kv_heads, block_size, head_dim]; both C-contiguous.
    The key of the token in slot `s` is `keys[layer][s // block_size, head, :, s % block_size]`.
    The memory is zeroed by the operating system when first touched: blocks never written cost nothing.
    """

    __slots__ = ("block_size", "dtype", "head_dim", "keys", "num_blocks", "num_kv_heads", "num_layers", "values")

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int = 16,
        dtype: KVCacheDType = "float16",
    ) -> None:
        if dtype not in KV_CACHE_DTYPES:
            raise InvalidParameterError(
                "kv_cache_dtype", f"kv_cache_dtype is {dtype!r}, but must be one of {', '.join(KV_CACHE_DTYPES)}"
            )
        self.num_layers = num_layers
        self.num_blocks = num_blocks
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.block_size = block_size
        self.dtype: KVCacheDType = dtype
        per_layer = num_blocks * num_kv_heads * head_dim * block_size
        pages = _zero_pages(2 * num_layers * per_layer * KV_DTYPE_BYTES[dtype])
        arena = pages.view(dtype).reshape(2 * num_layers, per_layer)
        self.keys: list[npt.NDArray[Any]] = [
            arena[2 * layer].reshape(num_blocks, num_kv_heads, head_dim, block_size) for layer in range(num_layers)
        ]
        self.values: list[npt.NDArray[Any]] = [
            arena[2 * layer + 1].reshape(num_blocks, num_kv_heads, block_size, head_dim) for layer in range(num_layers)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes reserved for keys and values of all layers."""
        per_block = 2 * self.num_kv_heads * self.head_dim * self.block_size * KV_DTYPE_BYTES[self.dtype]
        return self.num_layers * self.num_blocks * per_block

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero the given blocks in every layer, so that no NaN of a failed request outlives it."""
        if blocks:
            index = np.asarray(blocks, dtype=np.int64)
            for layer in range(self.num_layers):
                self.keys[layer][index] = 0
                self.values[layer][index] = 0


def _zero_pages(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeroed memory that appears in small pages as it is touched.

    NumPy's own allocations ask for 2 MiB pages: with two arrays a layer the first token would cost 4 MiB a layer.
    """
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.zeros(num_bytes, dtype=np.uint8)
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages knows no such advice
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype=np.uint8)
