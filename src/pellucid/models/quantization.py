"""Quantisation of float weights: which tensor becomes which type, and one matrix at a time made into blocks.

The rule, for `pellucid quantize` and for `--quantization` alike:

- Matrices in F32, F16 or BF16 become the type asked for. Blocks that a file already has stay as they are: to round
  twice helps nobody.
- The embedding and the head become Q8_0: every token passes through them, and they are read once a token.
- Routers, embeddings of positions, norms, biases and other vectors stay as they are.
- Rows that do not divide into blocks of 256 take the type of as many bits with blocks of 32 (Q4_K: Q4_1, Q5_K: Q5_1,
  Q6_K: Q8_0); rows that do not divide by 32 stay as they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pellucid.config import QUANTIZATIONS, Quantization
from pellucid.errors import InvalidParameterError, ModelFileError, shown
from pellucid.formats.block_types import BF16, BLOCK_TYPES_BY_NAME, F16, F32, Q4_1, Q5_1, Q8_0, BlockType
from pellucid.formats.dequantize import dequantize
from pellucid.formats.quantize import quantize
from pellucid.models.architectures.base import TensorNames
from pellucid.models.sources import StoredTensor, TensorSource, pages

_FLOATS = (F32, F16, BF16)
_SMALLER = {"Q4_K": Q4_1, "Q5_K": Q5_1, "Q6_K": Q8_0}
_CHUNK = 1 << 20
"""Numbers quantised at a time."""


def block_type_of(quantization: str, field: str = "quantization") -> BlockType:
    """Raises `InvalidParameterError`, naming the field, for a name that is none of `QUANTIZATIONS`."""
    if quantization not in QUANTIZATIONS:
        raise InvalidParameterError(
            field, f"{field} is {shown(quantization)}, but must be one of {', '.join(QUANTIZATIONS)}"
        )
    return BLOCK_TYPES_BY_NAME[quantization.upper()]


class Quantizer:
    """The rule for one family's tensors."""

    def __init__(self, quantization: Quantization, names: TensorNames) -> None:
        self._type = block_type_of(quantization)
        self._whole = {names.embedding, names.head}
        kept = [names.position_embedding, names.token_type_embedding]
        if names.experts is not None:
            kept.append(names.experts.router.name)
        self._kept = re.compile("|".join(_pattern(name) for name in kept if name is not None) or r"(?!)")

    def type_of(self, name: str, tensor: StoredTensor) -> BlockType:
        """The type that a tensor becomes; `name` as the family calls it, without what it ends in."""
        if tensor.type not in _FLOATS or len(tensor.shape) < 2 or self._kept.fullmatch(name) or name.endswith("bias"):
            return tensor.type  # the biases of all experts stand in one tensor of two dimensions
        wanted = Q8_0 if name in self._whole else self._type
        columns = tensor.shape[-1]
        if columns % wanted.block_size:
            wanted = _SMALLER.get(wanted.name, wanted)
        return tensor.type if columns % wanted.block_size else wanted

    def quantized(self, name: str, tensor: StoredTensor) -> StoredTensor:
        """The tensor in its type. Raises `ModelFileError` where it holds numbers that have no blocks."""
        kind = self.type_of(name, tensor)
        if kind is tensor.type:
            return tensor
        data = pages(kind.nbytes(tensor.shape))
        for start, blocks in quantized_chunks(tensor, kind):
            data[start : start + len(blocks)] = blocks
        return replace(tensor, type=kind, data=data, mapped=True)

    def planned(self, source: TensorSource) -> TensorSource:
        """The tensors with the types they will have, for sums of bytes; their data is still the file's."""
        return TensorSource(
            source.label,
            {
                name: replace(tensor, type=self.type_of(name.removesuffix(".weight"), tensor))
                for name, tensor in source.items()
            },
        )

    def num_bytes(self, source: TensorSource) -> int:
        """Bytes of all tensors of a file once they are quantised."""
        return sum(t.type.nbytes(t.shape) for t in self.planned(source).tensors if math.prod(t.shape))


def quantized_chunks(tensor: StoredTensor, kind: BlockType) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """(offset, blocks) of a float tensor in another type, some rows at a time, in several threads.

    The source's pages are dropped as they have been read. Raises `ModelFileError`.
    """
    from concurrent.futures import ThreadPoolExecutor

    columns = tensor.shape[-1]
    rows = math.prod(tensor.shape[:-1])
    step = max(1, _CHUNK // columns)
    row_bytes = columns * tensor.type.type_size

    def chunk(start: int) -> npt.NDArray[np.uint8]:
        count = min(step, rows - start)
        data = tensor.data[start * row_bytes : (start + count) * row_bytes]
        values = dequantize(data, tensor.type, (count, columns))
        try:
            return quantize(values, kind)
        except InvalidParameterError as error:
            raise ModelFileError(f"tensor {tensor.name} can not be quantised: {error}") from None

    starts = range(0, rows, step)
    out_bytes = kind.nbytes((1, columns))
    with ThreadPoolExecutor(_threads()) as pool:
        for group in range(0, len(starts), _threads()):
            some = starts[group : group + _threads()]
            made = list(pool.map(chunk, some))
            tensor.release()
            for start, blocks in zip(some, made, strict=True):
                yield start * out_bytes, blocks


def _threads() -> int:
    from pellucid.kernels.dispatch import usable_cores

    return min(16, usable_cores())


def _pattern(name: str) -> str:
    return r"\d+".join(re.escape(part) for part in re.split(r"\{[ie]\}", name))
