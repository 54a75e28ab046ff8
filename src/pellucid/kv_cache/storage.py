"""The arrays that hold keys and values; the kernels write and read them, nothing else does.

Within a block the keys are transposed: the tokens of a block lie side by side for each number of the head, so
that q · k of a whole block is `head_dim` multiply-adds on a vector of block_size tokens. Values lie as rows.
A block's keys and values of all layers are one piece of memory, so that what is in use stays close together.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.config import BLOCK_SIZE, KV_CACHE_DTYPES, KV_DTYPE_BYTES, KVCacheDType
from pellucid.errors import InvalidParameterError

_HUGE_PAGE = 2 << 20


class KVCacheStorage:
    """Keys and values of every layer.

    `keys[layer]` has shape [num_blocks, num_kv_heads, head_dim, block_size],
    `values[layer]` has shape [num_blocks, num_kv_heads, block_size, head_dim]; both are views whose blocks are
    C-contiguous and `block_stride` bytes apart.
    The key of the token in slot `s` is `keys[layer][s // block_size, head, :, s % block_size]`.
    The memory is zeroed by the operating system when first touched: blocks never written cost nothing.
    """

    __slots__ = (
        "_arena",
        "block_size",
        "dtype",
        "head_dim",
        "keys",
        "num_blocks",
        "num_kv_heads",
        "num_layers",
        "values",
    )

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int = BLOCK_SIZE,
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
        per_part = num_kv_heads * head_dim * block_size
        num_bytes = num_blocks * num_layers * 2 * per_part * KV_DTYPE_BYTES[dtype]
        try:
            pages = _huge_pages(num_bytes)
        except (OSError, MemoryError, OverflowError):
            raise InvalidParameterError(
                "kv_cache_memory_bytes",
                f"this process cannot have the {num_bytes} bytes of its KV cache: lower kv_cache_memory_bytes or "
                "max_model_len",
            ) from None
        arena = pages.view(dtype).reshape(num_blocks, num_layers, 2, num_kv_heads, per_part // num_kv_heads)
        key_shape = (num_blocks, num_kv_heads, head_dim, block_size)
        value_shape = (num_blocks, num_kv_heads, block_size, head_dim)
        self._arena = arena
        self.keys: list[npt.NDArray[Any]] = [arena[:, layer, 0].reshape(key_shape) for layer in range(num_layers)]
        self.values: list[npt.NDArray[Any]] = [arena[:, layer, 1].reshape(value_shape) for layer in range(num_layers)]

    @property
    def block_stride(self) -> int:
        """Bytes from one block to the next: keys and values of all layers."""
        return self._arena.strides[0]

    @property
    def nbytes(self) -> int:
        """Bytes reserved for keys and values of all layers."""
        per_block = 2 * self.num_kv_heads * self.head_dim * self.block_size * KV_DTYPE_BYTES[self.dtype]
        return self.num_layers * self.num_blocks * per_block

    def block_bytes(self, block: int) -> memoryview:
        """Keys and values of all layers of one block, as bytes that may be read and written."""
        return memoryview(self._arena[block].reshape(-1).view(np.uint8))

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero the given blocks in every layer, so that no NaN of a failed request outlives it."""
        if blocks:
            self._arena[np.asarray(blocks, dtype=np.int64)] = 0

    def copy_block(self, source: int, target: int) -> None:
        """Copy one block's keys and values in every layer."""
        self._arena[target] = self._arena[source]

    def clear_slots(self, slots: Sequence[int]) -> None:
        """Zero single tokens in every layer: block · block_size + offset each."""
        for block, offset in (divmod(slot, self.block_size) for slot in slots):
            for keys, values in zip(self.keys, self.values, strict=True):
                keys[block, :, :, offset] = 0
                values[block, :, offset] = 0


def _huge_pages(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeroed memory on 2 MiB pages where the system has them, taken as it is touched.

    Attention reads a few kilobytes here and a few there; on 4 KiB pages every one of them would miss the TLB.
    """
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.zeros(num_bytes, dtype=np.uint8)
    pages = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages knows no such advice
            pages.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(pages, dtype=np.uint8)
    start = -array.ctypes.data % _HUGE_PAGE
    return array[start : start + num_bytes]
