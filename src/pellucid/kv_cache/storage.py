"""The arrays that hold keys and values; the kernels write and read them, nothing else does.

Within a block the keys are transposed: the tokens of a block lie side by side for each number of the head, so
that q · k of a whole block is a multiply-add on a vector of block_size tokens for each number. Values lie as rows.
Integers lie in pairs, as the processors' 16-bit products take them (docs/decisions/032). A block's keys and values of
all layers are one piece of memory, so that what is in use stays close together.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.config import (
    BLOCK_SIZE,
    DEFAULT_KV_CACHE_DTYPE,
    KV_CACHE_DTYPES,
    KV_FACTOR_GROUP,
    KVCacheDType,
    ModelConfig,
)
from pellucid.errors import InvalidParameterError

_HUGE_PAGE = 2 << 20
_ITEM: dict[KVCacheDType, str] = {
    "int16": "int16",
    "float16": "float16",
    "float32": "float32",
    "int8": "int8",
    "int4": "uint8",
}


@dataclass(frozen=True, slots=True)
class KVLayer:
    """Keys and values of one layer: B blocks of S tokens, G KV heads, heads of D (values Dv) numbers.

    | dtype | keys | values |
    |---|---|---|
    | float16, float32 | [B, G, D, S] | [B, G, S, Dv] |
    | int16, int8 | [B, G, D / 2, S, 2]: numbers 2i and 2i + 1 | [B, G, S / 2, Dv, 2]: tokens 2i and 2i + 1 |
    | int4 (two in a uint8) | [B, G, D / 2, S]: number 2i low, 2i + 1 high | [B, G, S, Dv / 2] |

    Of int4 values, byte 16c + i holds numbers 32c + i (low) and 32c + 16 + i (high); where only 16 numbers are left,
    8 bytes hold i and i + 8. What belongs to a block is C-contiguous; blocks are equally far apart in all arrays.
    """

    dtype: KVCacheDType
    keys: npt.NDArray[Any]
    values: npt.NDArray[Any]
    scales: npt.NDArray[np.float32] | None = None
    """[B, G, 2, S] what a code of a token's key and value is worth; integers only."""
    factors: npt.NDArray[np.uint8] | None = None
    """[B, G, (D + Dv) / 16, S] … times this, for each 16 numbers of the key, then of the value; int4 only."""

    @property
    def head_dim(self) -> int:
        """Numbers in a key."""
        return int(self.keys.shape[2]) * (1 if self.dtype.startswith("float") else 2)

    @property
    def value_dim(self) -> int:
        """Numbers in a value."""
        return int(self.values.shape[3]) * (2 if self.dtype == "int4" else 1)

    def clear_token(self, block: int, offset: int) -> None:
        """Zero one token's key and value."""
        self.keys[block, :, :, offset] = 0
        if self.scales is None or self.factors is not None:
            self.values[block, :, offset] = 0
        else:
            self.values[block, :, offset // 2, :, offset % 2] = 0
        if self.scales is not None:
            self.scales[block, :, :, offset] = 0
        if self.factors is not None:
            self.factors[block, :, :, offset] = 0


class KVCacheStorage:
    """Keys and values of every layer.

    The memory is zeroed by the operating system when first touched: blocks never written cost nothing.
    """

    __slots__ = (
        "_arena",
        "block_size",
        "dtype",
        "head_dim",
        "layers",
        "num_blocks",
        "num_kv_heads",
        "num_layers",
        "value_dim",
    )

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int = BLOCK_SIZE,
        dtype: KVCacheDType = DEFAULT_KV_CACHE_DTYPE,
        value_dim: int | None = None,
    ) -> None:
        """`value_dim` is head_dim when None. Raises `InvalidParameterError` for an unknown type, one that does not fit
        heads of this size, or more memory than the process can have."""
        self.num_layers = num_layers
        self.num_blocks = num_blocks
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.value_dim = head_dim if value_dim is None else value_dim
        self.block_size = block_size
        self.dtype: KVCacheDType = dtype
        self._check()
        parts = self._parts()
        layer_bytes = sum(_size(shape, item) for shape, item in parts.values())
        num_bytes = num_blocks * num_layers * layer_bytes
        try:
            pages = _huge_pages(num_bytes)
        except (OSError, MemoryError, OverflowError):
            raise InvalidParameterError(
                "kv_cache_memory_bytes",
                f"this process cannot have the {num_bytes} bytes of its KV cache: lower kv_cache_memory_bytes or "
                "max_model_len",
            ) from None
        self._arena = pages.reshape(num_blocks, num_layers, layer_bytes)
        self.layers: tuple[KVLayer, ...] = tuple(self._layer(layer, parts) for layer in range(num_layers))

    @classmethod
    def for_model(
        cls,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = BLOCK_SIZE,
        dtype: KVCacheDType = DEFAULT_KV_CACHE_DTYPE,
    ) -> KVCacheStorage:
        """What a model of this configuration needs."""
        return cls(
            config.num_layers, num_blocks, config.num_kv_heads, config.head_dim, block_size, dtype, config.kv_value_dim
        )

    @property
    def block_stride(self) -> int:
        """Bytes from one block to the next: keys and values of all layers."""
        return self._arena.strides[0]

    @property
    def nbytes(self) -> int:
        """Bytes reserved for keys and values of all layers."""
        return self._arena.nbytes

    def block_bytes(self, block: int) -> memoryview:
        """Keys and values of all layers of one block, as bytes that may be read and written."""
        return memoryview(self._arena[block].reshape(-1))

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
            for layer in self.layers:
                layer.clear_token(block, offset)

    def _check(self) -> None:
        if self.dtype not in KV_CACHE_DTYPES:
            raise InvalidParameterError(
                "kv_cache_dtype", f"kv_cache_dtype is {self.dtype!r}, but must be one of {', '.join(KV_CACHE_DTYPES)}"
            )
        multiple = KV_FACTOR_GROUP if self.dtype == "int4" else 1 if self.dtype.startswith("float") else 2
        for dim in (self.head_dim, self.value_dim):
            if dim % multiple:
                raise InvalidParameterError(
                    "kv_cache_dtype",
                    f"kv_cache_dtype is {self.dtype}, but needs heads of a multiple of {multiple} numbers, and this "
                    f"model's have {dim}: take float16",
                )

    def _parts(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """What a block of a layer consists of, in order: field of `KVLayer` → shape and type."""
        heads, size, dim, value_dim = self.num_kv_heads, self.block_size, self.head_dim, self.value_dim
        item = _ITEM[self.dtype]
        if self.dtype.startswith("float"):
            return {"keys": ((heads, dim, size), item), "values": ((heads, size, value_dim), item)}
        scales = ((heads, 2, size), "float32")
        if self.dtype == "int4":
            return {
                "keys": ((heads, dim // 2, size), item),
                "values": ((heads, size, value_dim // 2), item),
                "scales": scales,
                "factors": ((heads, (dim + value_dim) // KV_FACTOR_GROUP, size), "uint8"),
            }
        return {
            "keys": ((heads, dim // 2, size, 2), item),
            "values": ((heads, size // 2, value_dim, 2), item),
            "scales": scales,
        }

    def _layer(self, layer: int, parts: dict[str, tuple[tuple[int, ...], str]]) -> KVLayer:
        arrays: dict[str, npt.NDArray[Any]] = {}
        begin = 0
        for name, (shape, item) in parts.items():
            end = begin + _size(shape, item)
            arrays[name] = self._arena[:, layer, begin:end].view(item).reshape(self.num_blocks, *shape)
            begin = end
        return KVLayer(self.dtype, **arrays)


def _size(shape: tuple[int, ...], item: str) -> int:
    count = np.dtype(item).itemsize
    for length in shape:
        count *= length
    return count


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
