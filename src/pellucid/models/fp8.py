"""8-bit float weights with a scale for each block of 128 × 128 (DeepSeek-V3), made into floats as they are loaded."""

from __future__ import annotations

from typing import Final

import numpy as np

from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.formats.block_types import BF16, F32
from pellucid.formats.dequantize import dequantize
from pellucid.formats.repack import FP8_BLOCK, are_powers_of_two, fp8_values
from pellucid.models.sources import StoredTensor, TensorSource, pages

FP8: Final = "F8_E4M3"
SCALES: Final = "_scale_inv"
"""What is added to a tensor's name for its scales'."""


def scaled_fp8(source: TensorSource, name: str, rows: int, columns: int) -> StoredTensor:
    """The tensor `name` times its scales: bfloat16 where that is exact (scales that are powers of two), else float32.

    Raises `UnsupportedModelError` where the scales are not `name` + "_scale_inv", `ModelFileError` for other shapes and
    scales that are not finite.
    """
    from pellucid.formats.quantize import quantize  # some milliseconds of a start; few files have FP8

    scale_name = name + SCALES
    if scale_name not in source:
        raise UnsupportedModelError(
            f"{source.label}: tensor {name} is of type {FP8}, which is supported with scales of 128 × 128 blocks only: "
            f"{scale_name} is missing"
        )
    codes = source.take_codes(name, (rows, columns), FP8)
    stored = source.take(scale_name, (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)))
    scales = dequantize(stored.data, stored.type, stored.shape)
    if not np.isfinite(scales).all():
        raise ModelFileError(f"{source.label}: tensor {scale_name} has a scale that is not finite")
    kind = BF16 if are_powers_of_two(scales) else F32
    data = pages(kind.nbytes((rows, columns)))
    row_bytes = columns * kind.type_size
    for i in range(len(scales)):
        first, last = i * FP8_BLOCK, min((i + 1) * FP8_BLOCK, rows)
        part = codes.data[first * columns : last * columns].reshape(last - first, columns)
        data[first * row_bytes : last * row_bytes] = quantize(fp8_values(part, scales[i : i + 1]), kind)
    return StoredTensor(name, (rows, columns), kind, data, True, codes.release)
