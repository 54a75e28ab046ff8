"""A model's weights in smaller types, written to a GGUF file that other programs read too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.config import Quantization
from pellucid.errors import InvalidParameterError, UnsupportedModelError
from pellucid.formats.block_types import BlockType
from pellucid.formats.gguf_writer import TensorData, write_gguf
from pellucid.models.model_files import open_model
from pellucid.models.quantization import Quantizer, block_type_of, quantized_chunks
from pellucid.models.sources import StoredTensor

FILE_TYPES: Mapping[str, int] = {
    "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q4_k": 14, "q5_k": 16, "q6_k": 18,
}  # fmt: skip
"""`general.file_type`, llama.cpp's number for what most tensors are (llama.h, enum llama_ftype)."""
_QUANTIZATION_VERSION = 2


def quantize_file(path: str | Path, out: str | Path, quantization: Quantization) -> dict[str, int]:
    """Write the GGUF model at `path` to `out` with its float matrices in `quantization`, by the rule of
    `models.quantization`; returns how many tensors of each type were written.

    A part of one tensor is in memory at a time. Raises `UnsupportedModelError` for a folder, `ModelFileError` for a
    damaged file or where `out` cannot be written, `InvalidParameterError` where it is the file that is read.
    """
    block_type_of(quantization)
    where, target = Path(path), Path(out)
    if where.is_dir():
        raise UnsupportedModelError(
            f"{where} is a folder: only GGUF files are written as GGUF files; the folder itself runs with "
            f"--quantization {quantization}"
        )
    if target.suffix.lower() != ".gguf" or (target.exists() and os.path.samefile(where, target)):
        raise InvalidParameterError("out", f"out is {target}, but must be another file that ends in .gguf")
    with open_model(where) as files:
        quantizer = Quantizer(quantization, files.form.tensors)
        metadata = dict(files.metadata)
        metadata["general.file_type"] = np.uint32(FILE_TYPES[quantization])
        metadata["general.quantization_version"] = np.uint32(_QUANTIZATION_VERSION)
        tensors: dict[str, tuple[tuple[int, ...], BlockType, TensorData]] = {}
        counts: dict[str, int] = {}
        for name, tensor in files.source.items():
            kind = quantizer.type_of(name.removesuffix(".weight"), tensor)
            counts[kind.name] = counts.get(kind.name, 0) + 1
            tensors[name] = (tensor.shape, kind, _pieces(tensor, kind))
        write_gguf(target, metadata, tensors)
    return counts


def _pieces(tensor: StoredTensor, kind: BlockType) -> Callable[[], Iterator[npt.NDArray[Any]]]:
    def pieces() -> Iterator[npt.NDArray[Any]]:
        if kind is tensor.type:
            yield tensor.data
        else:
            yield from (blocks for _, blocks in quantized_chunks(tensor, kind))
        tensor.release()

    return pieces
