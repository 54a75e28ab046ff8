"""Where a model's tensors come from: one view on GGUF files and on safetensors, by name."""

from __future__ import annotations

import dataclasses
import math
import mmap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pellucid.errors import ModelFileError, UnsupportedModelError, shown
from pellucid.formats.block_types import BF16, F16, F32, BlockType
from pellucid.formats.gguf import GGUFFile
from pellucid.kernels.backend import Backend

if TYPE_CHECKING:
    from pellucid.formats.safetensors import SafeTensor

_TYPES: dict[str, BlockType] = {"F32": F32, "F16": F16, "BF16": BF16}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as it lies in the file."""

    name: str
    shape: tuple[int, ...]
    """(rows, columns), NumPy order."""
    type: BlockType
    data: npt.NDArray[np.uint8] = field(repr=False)
    """Blocks of `type`, row after row."""
    mapped: bool
    """`data` is of a mapped file, or of memory that is read once: its pages may be dropped after that."""
    release: Callable[[], None] = field(repr=False, default=lambda: None)

    def part(self, index: int) -> StoredTensor:
        """Entry `index` of the first dimension."""
        size = len(self.data) // self.shape[0]
        return StoredTensor(
            self.name, self.shape[1:], self.type, self.data[index * size : (index + 1) * size], self.mapped
        )

    def first_rows(self, count: int) -> StoredTensor:
        """The first entries of the first dimension."""
        size = len(self.data) // self.shape[0]
        return dataclasses.replace(self, shape=(count, *self.shape[1:]), data=self.data[: count * size])


def _packed_bytes(tensor: StoredTensor, backend: Backend) -> int:
    if len(tensor.shape) < 2:
        return 4 * math.prod(tensor.shape)
    *stacked, rows, columns = tensor.shape
    if not tensor.type.served:
        # 8-bit floats become floats (fp8.py), other codes keep their size.
        return math.prod(tensor.shape) * 4 if tensor.type.name == "F8_E4M3" else len(tensor.data)
    return math.prod(stacked) * backend.packed_bytes(tensor.type, rows, columns)


class _Lasting(dict[str, StoredTensor]):
    """Nothing is gone once it was taken."""

    def pop(self, key: str, default: Any = None) -> Any:
        return self.get(key, default)


class TensorSource:
    """Named tensors; every one is taken once, so that what is left over can be named."""

    def __init__(self, label: str, tensors: Mapping[str, StoredTensor]) -> None:
        self.label = label
        """The file's or folder's name, for errors."""
        self._left = dict(tensors)
        self._all = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._all

    @property
    def left(self) -> Iterable[str]:
        """Names nobody took."""
        return self._left

    @property
    def tensors(self) -> Iterable[StoredTensor]:
        """All of them, taken or not."""
        return self._all.values()

    def items(self) -> Iterable[tuple[str, StoredTensor]]:
        """All of them with their names, without prefixes, taken or not."""
        return self._all.items()

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors in the file."""
        return sum(len(tensor.data) for tensor in self._all.values())

    def packed_bytes(self, backend: Backend) -> int:
        """Bytes that all tensors take once they are loaded: matrices packed, vectors in float32."""
        return sum(_packed_bytes(tensor, backend) for tensor in self._all.values())

    @property
    def main_type(self) -> str:
        """Type in which most of the bytes are."""
        sizes: dict[str, int] = {}
        for tensor in self._all.values():
            sizes[tensor.type.name] = sizes.get(tensor.type.name, 0) + len(tensor.data)
        return max(sizes, key=sizes.__getitem__, default="")

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a tensor that is not taken by asking; None where there is none."""
        tensor = self._all.get(name)
        return None if tensor is None else tensor.shape

    def type_name(self, name: str) -> str | None:
        """The type of a tensor that is not taken by asking; None where there is none."""
        tensor = self._all.get(name)
        return None if tensor is None else tensor.type.name

    def look(self, name: str) -> StoredTensor | None:
        """A tensor, without taking it."""
        return self._all.get(name)

    def with_rows(self, names: Iterable[str], count: int) -> TensorSource:
        """The same tensors, of those named only the first `count` rows."""
        tensors = dict(self._all)
        for name in names:
            if name in tensors:
                tensors[name] = tensors[name].first_rows(count)
        return TensorSource(self.label, tensors)

    def take(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        """The tensor `name`. Raises `ModelFileError` where it is missing or has another shape, and
        `UnsupportedModelError` for a type without kernels."""
        tensor = self._left.pop(name, None)
        if tensor is None:
            raise ModelFileError(f"{self.label}: tensor {name} is missing")
        if tensor.shape != shape:
            raise ModelFileError(f"{self.label}: tensor {name} has shape {tensor.shape}, but must have {shape}")
        if not tensor.type.served:
            raise UnsupportedModelError(
                f"{self.label}: tensor {shown(name)} is of type {tensor.type.name}, which is not supported"
            )
        return tensor

    def lasting(self) -> TensorSource:
        """The same tensors, each of which may be taken more than once."""
        source = TensorSource(self.label, self._all)
        source._left = _Lasting(self._all)
        return source

    def take_codes(self, name: str, shape: tuple[int, ...], *types: str) -> StoredTensor:
        """A tensor of integer codes, of one of these types of safetensors, which mean nothing without their scales.

        Raises `ModelFileError` where it is missing or has another shape or type.
        """
        tensor = self._left.pop(name, None)
        if tensor is None:
            raise ModelFileError(f"{self.label}: tensor {name} is missing")
        if tensor.shape != shape or tensor.type.name not in types:
            raise ModelFileError(
                f"{self.label}: tensor {name} has shape {tensor.shape} and type {tensor.type.name}, but must have "
                f"{shape} and {' or '.join(types)}"
            )
        return tensor


def gguf_source(file: GGUFFile) -> TensorSource:
    """The tensors of an open GGUF file."""
    return TensorSource(
        Path(file.path).name,
        {t.name: StoredTensor(t.name, t.shape, t.type, t.data, True, t.release) for t in file.tensors.values()},
    )


def safetensors_source(label: str, tensors: Mapping[str, SafeTensor], prefixes: tuple[str, ...]) -> TensorSource:
    """The tensors of a safetensors folder, with the first of `prefixes` that a name begins with cut off."""
    from pellucid.formats.safetensors import ITEM_BYTES

    found: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        short = next((name[len(prefix) :] for prefix in prefixes if name.startswith(prefix)), name)
        if short in found:
            raise ModelFileError(f"{label}: tensors {found[short].name} and {name} are the same weight")
        kind = _TYPES.get(tensor.dtype) or BlockType(tensor.dtype, -1, 1, ITEM_BYTES[tensor.dtype], served=False)
        found[short] = StoredTensor(name, tensor.shape, kind, tensor.data, True, tensor.release)
    return TensorSource(label, found)


def array_tensor(name: str, values: npt.NDArray[Any]) -> StoredTensor:
    """Numbers in memory as a float32 tensor."""
    plain = np.ascontiguousarray(values, dtype=np.float32)
    return StoredTensor(name, plain.shape, F32, plain.reshape(-1).view(np.uint8), False)


def pages(nbytes: int) -> npt.NDArray[np.uint8]:
    """Memory whose pages go back to the system one by one as a backend packs them, unlike an array's."""
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
