"""The table of GGML tensor types: how many elements one block holds, and how many bytes it takes.

A quantised row is a run of blocks; each block holds `block_size` consecutive elements and the scales they
share. Plain number types are blocks of one element. Ids and sizes are those of `ggml_type` in ggml.h.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockType:
    """One GGML tensor type."""

    name: str
    """ggml's own name, such as "Q4_1"."""
    ggml_id: int
    """The number that stands for it in a GGUF file."""
    block_size: int
    """Elements in one block."""
    type_size: int
    """Bytes of one block."""
    served: bool = True
    """Whether `dequantize` knows it; the others are listed so that an error can name them."""

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor of this shape (NumPy order).

        Raises ValueError where the last dimension is no multiple of `block_size`: rows hold whole blocks.
        """
        if (shape[-1] if shape else 1) % self.block_size:
            raise ValueError(
                f"the rows of shape {tuple(shape)} do not divide into {self.name} blocks of {self.block_size} elements"
            )
        return math.prod(shape) // self.block_size * self.type_size


F32 = BlockType("F32", 0, 1, 4)
F16 = BlockType("F16", 1, 1, 2)
Q4_0 = BlockType("Q4_0", 2, 32, 18)
Q4_1 = BlockType("Q4_1", 3, 32, 20)
Q5_0 = BlockType("Q5_0", 6, 32, 22)
Q5_1 = BlockType("Q5_1", 7, 32, 24)
Q8_0 = BlockType("Q8_0", 8, 32, 34)
Q2_K = BlockType("Q2_K", 10, 256, 84)
Q3_K = BlockType("Q3_K", 11, 256, 110)
Q4_K = BlockType("Q4_K", 12, 256, 144)
Q5_K = BlockType("Q5_K", 13, 256, 176)
Q6_K = BlockType("Q6_K", 14, 256, 210)
IQ4_NL = BlockType("IQ4_NL", 20, 32, 18)
IQ4_XS = BlockType("IQ4_XS", 23, 256, 136)
BF16 = BlockType("BF16", 30, 1, 2)
MXFP4 = BlockType("MXFP4", 39, 32, 17)

_SERVED = (F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16, MXFP4)

_NAMED_ONLY = (
    BlockType("Q8_1", 9, 32, 36, served=False),
    BlockType("Q8_K", 15, 256, 292, served=False),
    BlockType("IQ2_XXS", 16, 256, 66, served=False),
    BlockType("IQ2_XS", 17, 256, 74, served=False),
    BlockType("IQ3_XXS", 18, 256, 98, served=False),
    BlockType("IQ1_S", 19, 256, 50, served=False),
    BlockType("IQ3_S", 21, 256, 110, served=False),
    BlockType("IQ2_S", 22, 256, 82, served=False),
    BlockType("I8", 24, 1, 1, served=False),
    BlockType("I16", 25, 1, 2, served=False),
    BlockType("I32", 26, 1, 4, served=False),
    BlockType("I64", 27, 1, 8, served=False),
    BlockType("F64", 28, 1, 8, served=False),
    BlockType("IQ1_M", 29, 256, 56, served=False),
    # 31-33 and 36-38 were repacked layouts that ggml has since removed.
    BlockType("Q4_0_4_4", 31, 32, 18, served=False),
    BlockType("Q4_0_4_8", 32, 32, 18, served=False),
    BlockType("Q4_0_8_8", 33, 32, 18, served=False),
    BlockType("TQ1_0", 34, 256, 54, served=False),
    BlockType("TQ2_0", 35, 256, 66, served=False),
    BlockType("IQ4_NL_4_4", 36, 32, 18, served=False),
    BlockType("IQ4_NL_4_8", 37, 32, 18, served=False),
    BlockType("IQ4_NL_8_8", 38, 32, 18, served=False),
    BlockType("NVFP4", 40, 64, 36, served=False),
    BlockType("Q1_0", 41, 128, 18, served=False),
)

CHUNK_ELEMENTS = 1 << 18
"""Elements expanded or packed at a time, so that intermediates stay in the cache and small beside the result."""

BLOCK_TYPES: dict[int, BlockType] = {t.ggml_id: t for t in (*_SERVED, *_NAMED_ONLY)}
"""Every known type by its GGML id."""

BLOCK_TYPES_BY_NAME: dict[str, BlockType] = {t.name: t for t in BLOCK_TYPES.values()}
"""Every known type by its name."""
