"""The arrays that hold keys and values; the kernels write and read them, nothing else does.

Within a block the keys are transposed: the tokens of a block lie side by side for each number of the head, so
that q · k of a whole block is `head_dim` multiply-adds on a vector of block_size tokens. Values lie as rows.
"""

from __future__ import annotations

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

    __slots__ = ("num_layers", "num_blocks", "num_kv_heads", "head_dim", "block_size", "dtype", "keys", "values")

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
        number = np.dtype(dtype)
        self.keys: list[npt.NDArray[Any]] = [
            np.zeros((num_blocks, num_kv_heads, head_dim, block_size), dtype=number) for _ in range(num_layers)
        ]
        self.values: list[npt.NDArray[Any]] = [
            np.zeros((num_blocks, num_kv_heads, block_size, head_dim), dtype=number) for _ in range(num_layers)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes reserved for keys and values of all layers."""
        per_block = 2 * self.num_kv_heads * self.head_dim * self.block_size * KV_DTYPE_BYTES[self.dtype]
        return self.num_layers * self.num_blocks * per_block
