"""A model's weights in smaller types, written to a GGUF file that other programs read too."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.config import Quantization
from pellucid.errors import InvalidParameterError, ModelFileError
from pellucid.formats.block_types import BlockType
from pellucid.formats.gguf_split import part_paths
from pellucid.formats.gguf_writer import TensorData, write_gguf
from pellucid.models.architectures.base import TensorNames
from pellucid.models.folder_tensors import FolderTensors, PlannedTensor
from pellucid.models.gguf_keys import gguf_form, gguf_keys
from pellucid.models.model_files import ModelFiles, open_model
from pellucid.models.quantization import Quantizer, block_type_of, quantized_chunks
from pellucid.models.sources import StoredTensor, array_tensor

FILE_TYPES: Mapping[str, int] = {
    "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q4_k": 14, "q5_k": 16, "q6_k": 18,
}  # fmt: skip
"""`general.file_type`, llama.cpp's number for what most tensors are (llama.h, enum llama_ftype)."""
_QUANTIZATION_VERSION = 2


def quantize_file(path: str | Path, out: str | Path, quantization: Quantization) -> dict[str, int]:
    """Write the model at `path`, a GGUF file or a folder of safetensors, to the GGUF file `out` with its float matrices
    in `quantization`, by the rule of `models.quantization`; returns how many tensors of each type were written.

    A part of one tensor is in memory at a time, of a folder one tensor. Raises `UnsupportedModelError` for a folder
    that GGUF cannot say, `ModelFileError` for a damaged file or where `out` cannot be written, `InvalidParameterError`
    where it is the file that is read.
    """
    block_type_of(quantization)
    where = Path(path)
    target = _target(where, Path(out))
    with open_model(where) as files:
        if where.is_dir():
            metadata, planned, names = _of_folder(files)
        else:
            metadata, names = dict(files.metadata), files.form.tensors
            planned = [_as_it_is(name, tensor) for name, tensor in files.source.items()]
        quantizer = Quantizer(quantization, names)
        metadata["general.file_type"] = np.uint32(FILE_TYPES[quantization])
        metadata["general.quantization_version"] = np.uint32(_QUANTIZATION_VERSION)
        tensors: dict[str, tuple[tuple[int, ...], BlockType, TensorData]] = {}
        counts: dict[str, int] = {}
        for tensor in planned:
            kind = quantizer.type_of(tensor.name.removesuffix(".weight"), tensor.outline())
            counts[kind.name] = counts.get(kind.name, 0) + 1
            tensors[tensor.name] = (tensor.shape, kind, _pieces(tensor, kind))
        _check_space(target, sum(kind.nbytes(shape) for shape, kind, _ in tensors.values()))
        write_gguf(target, metadata, tensors)
    return counts


def _target(where: Path, out: Path) -> Path:
    """The file that `out` names, through links. Refused before any work: what could not be written at its end, and
    what is read."""
    wrong = InvalidParameterError("out", f"out is {out}, but must be another file that ends in .gguf")
    if out.suffix.lower() != ".gguf":
        raise wrong
    try:
        target = out.resolve()
        if target.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if not target.exists():
            return target
        if not target.is_file():
            raise InvalidParameterError("out", f"out is {out}, which is there already and is no file")
        read = [part for part in part_paths(where) if part.exists()]
        if any(os.path.samefile(part, target) for part in read):
            raise wrong
    except (OSError, RuntimeError) as error:  # Path.resolve's own error for links in a circle
        reason = error.strerror if isinstance(error, OSError) else os.strerror(errno.ELOOP)
        raise ModelFileError(f"{out} cannot be written: {reason}") from None
    return target


def _check_space(target: Path, needed: int) -> None:
    with suppress(OSError):  # write_gguf names what is wrong with the folder
        free = shutil.disk_usage(target.parent).free
        if free < needed:
            raise ModelFileError(f"{target} cannot be written: it takes {needed} bytes, but {free} are free there")


def _of_folder(files: ModelFiles) -> tuple[dict[str, Any], list[PlannedTensor], TensorNames]:
    """Metadata and tensors by which a GGUF file says what the folder does."""
    from pellucid.kernels.dispatch import make_backend
    from pellucid.models.architectures.base import HFForm
    from pellucid.tokenizer.gguf_keys import tokenizer_keys

    assert isinstance(files.form, HFForm)
    cut = files.without_padding()
    form = gguf_form(cut.config)
    metadata, factors = gguf_keys(cut.config, form)
    planned = FolderTensors(cut.source, files.form, form, cut.config, make_backend("reference")).planned()
    for name, values in factors.items():
        tensor = array_tensor(name, values)
        planned.append(PlannedTensor(name, tensor.shape, tensor.type, partial(_same, tensor)))
    metadata |= tokenizer_keys(files.path)
    if metadata["tokenizer.ggml.model"] != "llama":
        # By such a name llama.cpp looks for Phi-3's own tokens, and refuses a file without them (Phi-4 mini).
        metadata["general.name"] = re.sub("phi-?3", "phi", metadata["general.name"], flags=re.IGNORECASE)
    return metadata, planned, form.tensors


def _as_it_is(name: str, tensor: StoredTensor) -> PlannedTensor:
    return PlannedTensor(name, tensor.shape, tensor.type, partial(_same, tensor))


def _same(tensor: StoredTensor) -> StoredTensor:
    return tensor


def _pieces(planned: PlannedTensor, kind: BlockType) -> Callable[[], Iterator[npt.NDArray[Any]]]:
    def pieces() -> Iterator[npt.NDArray[Any]]:
        tensor = planned.read()
        if kind is tensor.type:
            yield tensor.data
        else:
            yield from (blocks for _, blocks in quantized_chunks(tensor, kind))
        tensor.release()

    return pieces
