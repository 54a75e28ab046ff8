"""Pairs of a model and a draft model made of one model: no published ones with one vocabulary are at hand.

A target in floats, as models are published, drafted for by its own weights in 4 bits; or by its first layers alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from pellucid.config import Quantization
from pellucid.formats.block_types import F16, F32
from pellucid.formats.dequantize import dequantize
from pellucid.formats.gguf import GGUFFile, GGUFTensor
from pellucid.formats.gguf_writer import write_gguf
from pellucid.models.quantized_file import quantize_file


def in_floats(path: Path, out: Path) -> Path:
    """The model with its matrices in F16."""

    def pieces(tensor: GGUFTensor) -> Callable[[], list[np.ndarray]]:
        return lambda: [dequantize(tensor.data, tensor.type, tensor.shape).astype(np.float16)]

    with GGUFFile.open(path) as file:
        tensors = {
            name: (tensor.shape, tensor.type, tensor.data)
            if tensor.type is F32
            else (tensor.shape, F16, pieces(tensor))
            for name, tensor in file.tensors.items()
        }
        write_gguf(out, {**file.metadata, "general.file_type": 1}, tensors)
    return out


def in_blocks(path: Path, out: Path, quantization: Quantization) -> Path:
    """A model of floats in a smaller type, by `pellucid quantize`."""
    quantize_file(path, out, quantization)
    return out


def first_layers(path: Path, out: Path, count: int) -> Path:
    """The model's first layers with its head."""
    with GGUFFile.open(path) as file:
        key = f"{file.metadata['general.architecture']}.block_count"
        if not 1 <= count < file.metadata[key]:
            raise SystemExit(f"a draft of the first layers has 1 to {file.metadata[key] - 1} of them, not {count}")
        kept = {
            name: (tensor.shape, tensor.type, tensor.data)
            for name, tensor in file.tensors.items()
            if not name.startswith("blk.") or int(name.split(".")[1]) < count
        }
        write_gguf(out, {**file.metadata, key: count}, kept)
    return out
