"""The GGUF reader: a memory-mapped file becomes metadata and tensor views; it does not know what keys mean.

Layout of a file (the GGUF specification in ggml's docs/gguf.md; all numbers little-endian):

    "GGUF" · uint32 version · uint64 tensor_count · uint64 kv_count
    kv_count ×     string key · uint32 value type · value
    tensor_count × string name · uint32 n_dims · n_dims × uint64 · uint32 tensor type · uint64 offset
    padding to `general.alignment` (32 when absent), then the tensors' bytes; offsets count from here

A string is a uint64 length and that many bytes of UTF-8; an array is a uint32 type, a uint64 count, the values.

The file is untrusted. Every count, length and offset is compared with the bytes the file really has before
anything is allocated for it, and tensors may not overlap, so memory is bounded by the file's size.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from pellucid.errors import ModelFileError
from pellucid.formats.block_types import BLOCK_TYPES, BlockType
from pellucid.formats.gguf_strings import FEW, LEAST_BYTES, MOST_BYTES, cut_strings

MAGIC: Final = b"GGUF"
SUPPORTED_VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
ALIGNMENT_KEY: Final = "general.alignment"

MAX_DIMS: Final = 4
"""ggml's own limit (GGML_MAX_DIMS)."""
MAX_NAME_BYTES: Final = 65535
"""The specification's limit on keys; used for tensor names too."""
MAX_ARRAY_DEPTH: Final = 4
"""Arrays of arrays are allowed by the specification, unused in practice, and must not exhaust the stack."""

TYPE_BOOL: Final = 7
TYPE_STRING: Final = 8
TYPE_ARRAY: Final = 9

SCALAR_FORMATS: Final[dict[int, str]] = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    TYPE_BOOL: "<B",
    10: "<Q",
    11: "<q",
    12: "<d",
}
"""Value type id to struct format: uint8 int8 uint16 int16 uint32 int32 float32 bool uint64 int64 float64."""

ARRAY_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    TYPE_BOOL: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
"""Value type id to the dtype of an array of it."""

_SCALARS: Final = {type_id: struct.Struct(text) for type_id, text in SCALAR_FORMATS.items()}
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")

# The least bytes one entry can take: they bound the counts by the file's size.
_MIN_KV_BYTES: Final = 8 + 4 + 1
_MIN_TENSOR_BYTES: Final = 8 + 4 + 4 + 8
_MIN_ARRAY_BYTES: Final = 4 + 8
_MIN_STRING_BYTES: Final = 8

_OTHER_FORMATS: Final = (
    (b"PK\x03\x04", "a zip archive (such as a PyTorch checkpoint)"),
    (b"\x80\x02", "a Python pickle (such as a PyTorch checkpoint)"),
    (b"\x89HDF", "an HDF5 file"),
    (b"lmgg", "a GGML file from before GGUF"),
    (b"fmgg", "a GGML file from before GGUF"),
    (b"tjgg", "a GGML file from before GGUF"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file it points to"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"<", "an HTML or XML page"),
)


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor of the file, as bytes that are read from disk when they are first touched."""

    name: str
    shape: tuple[int, ...]
    """NumPy order, (rows, columns): the reverse of ggml's `ne`."""
    type: BlockType
    data: npt.NDArray[np.uint8] = field(repr=False)
    """[nbytes] read-only view on the mapped file."""
    offset: int
    """Where `data` starts in the file, in bytes."""
    mapping: mmap.mmap = field(repr=False, compare=False)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return len(self.data)

    def release(self) -> None:
        """Let the system drop the tensor's pages from this process, as after packing a copy of them.

        `data` stays valid: touching it reads the file again. Does nothing where the system has no such call.
        """
        _drop_pages(self.mapping, self.offset, self.offset + self.nbytes)


def _drop_pages(mapping: mmap.mmap, start: int, end: int) -> None:
    """The whole pages between two places; they are read again where they are touched."""
    advise = getattr(mmap, "MADV_DONTNEED", None)
    start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    end = end // mmap.PAGESIZE * mmap.PAGESIZE
    if advise is not None and end > start:
        # Only advice: a system that refuses it costs memory, not correctness.
        with suppress(OSError):
            mapping.madvise(advise, start, end - start)


class GGUFFile:
    """An open GGUF file. The header is read on opening, tensor bytes only when they are touched.

    The tensors' views keep the mapping alive, so closing the file while they are in use is safe. As with
    every memory-mapped file, another program must not shorten the file meanwhile.
    """

    def __init__(
        self,
        path: Path,
        version: int,
        metadata: dict[str, Any],
        tensors: dict[str, GGUFTensor],
        *,
        alignment: int,
        data_offset: int,
        file_size: int,
    ) -> None:
        self.path = path
        self.version = version
        self.metadata = metadata
        """Key to value: numbers, bools and strings as Python's own, numeric arrays as NumPy arrays, arrays of
        strings as list[str] (bytes that are no UTF-8 kept as surrogate escapes), nested arrays as lists."""
        self.tensors = tensors
        """Name to tensor, in the file's order."""
        self.alignment = alignment
        self.data_offset = data_offset
        """Where the tensor data starts, in bytes."""
        self.file_size = file_size

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """Map a file and read its header.

        Raises ModelFileError, naming the file and the key or tensor, where the file is missing, unreadable,
        cut short, no GGUF file of version 2 or 3, or contradicts itself.
        """
        where = Path(path)
        return _Reader(where, _map_file(where)).read_file()

    def close(self) -> None:
        """Forget the tensors; the mapping goes when the last view of it does. `metadata` stays."""
        self.tensors = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _map_file(path: Path) -> mmap.mmap:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise ModelFileError(f"{path} is a folder, but a GGUF file is needed: name the .gguf file inside it")
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{path} is not a regular file, but a GGUF file is needed")
        if status.st_size == 0:
            raise ModelFileError(f"{path} is empty, not a GGUF file: fetch it again")
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelFileError(f"{path} does not exist: check the path of the model file") from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        # A path with a NUL, or a file emptied between stat and mmap.
        raise ModelFileError(f"{str(path)!r} cannot be read: {error}") from None


def _shown(name: str) -> str:
    """A name from the file as an error message may show it: quoted, escaped, not endless."""
    return ascii(name if len(name) <= 80 else name[:80] + "...")


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    """What the header says of a tensor; the data's start is known only after the last of them."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    offset: int
    """Bytes from the start of the tensor data."""
    nbytes: int


class _Reader:
    """A cursor over the header."""

    def __init__(self, path: Path, mapping: mmap.mmap) -> None:
        self.path = path
        self.mapping = mapping
        self.size = len(mapping)
        self.position = 0

    def read_file(self) -> GGUFFile:
        version, tensor_count, kv_count = self.read_preamble()
        metadata = self.read_metadata(kv_count)
        alignment = self.check_alignment(metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT))
        infos = [self.read_tensor_info(index, tensor_count, alignment) for index in range(tensor_count)]
        data_offset = -(-self.position // alignment) * alignment
        _drop_pages(self.mapping, 0, self.position)  # a vocabulary's texts take megabytes there, and are copied
        return GGUFFile(
            self.path,
            version,
            metadata,
            self.place_tensors(infos, data_offset),
            alignment=alignment,
            data_offset=data_offset,
            file_size=self.size,
        )

    # Errors

    def damaged(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.path} is damaged: {problem}; fetch it again")

    def cut_short(self, what: str, end: int) -> ModelFileError:
        return ModelFileError(
            f"{self.path} is cut short or damaged: {what} needs bytes to {end:,}, the file has {self.size:,}; "
            "fetch it again"
        )

    def need(self, count: int, what: str) -> int:
        """Claim the next `count` bytes, and return where they start."""
        start = self.position
        if count > self.size - start:
            raise self.cut_short(what, start + count)
        self.position = start + count
        return start

    def need_room(self, count: int, bytes_each: int, what: str) -> None:
        """Refuse a count whose entries cannot fit into the rest of the file, before anything is allocated."""
        if count * bytes_each > self.size - self.position:
            raise self.cut_short(what, self.position + count * bytes_each)

    # Plain values

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.mapping, self.need(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.mapping, self.need(8, what))[0]
        return value

    def name(self, what: str) -> str:
        """A key or tensor name: strict UTF-8 of bounded length."""
        length = self.u64(what)
        if length > MAX_NAME_BYTES:
            raise self.damaged(f"{what} is {length:,} bytes long, at most {MAX_NAME_BYTES:,} are allowed")
        start = self.need(length, what)
        try:
            return self.mapping[start : start + length].decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"{what} is not UTF-8") from None

    # Header

    def read_preamble(self) -> tuple[int, int, int]:
        """Returns (version, tensor_count, kv_count)."""
        if self.mapping[:4] != MAGIC:
            raise self.not_gguf()
        self.need(4, "the header")
        version = self.u32("the header")
        if version & 0xFFFF == 0:
            raise ModelFileError(
                f"{self.path} is a big-endian GGUF file, but only little-endian ones are supported: convert it"
            )
        if version not in SUPPORTED_VERSIONS:
            raise ModelFileError(
                f"{self.path} is GGUF version {version}, but only versions 2 and 3 are supported: "
                "convert the model again with current tools"
            )
        tensor_count, kv_count = self.u64("the header"), self.u64("the header")
        self.need_room(kv_count, _MIN_KV_BYTES, f"kv_count {kv_count:,}")
        self.need_room(tensor_count, _MIN_TENSOR_BYTES, f"tensor_count {tensor_count:,}")
        return version, tensor_count, kv_count

    def not_gguf(self) -> ModelFileError:
        head = self.mapping[:32]
        if len(head) < 4 and MAGIC.startswith(head):
            return self.cut_short("the header", 24)
        kind = next((kind for start, kind in _OTHER_FORMATS if head.lstrip().startswith(start)), None)
        if kind is None and head[8:9] == b"{":
            kind = "a safetensors file"
        looks = f"looks like {kind}" if kind else "does not start with the bytes GGUF"
        return ModelFileError(f"{self.path} is not a GGUF file, it {looks}: give a .gguf file")

    def read_metadata(self, kv_count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for index in range(kv_count):
            key = self.name(f"key {index + 1} of {kv_count}")
            if key in metadata:
                raise self.damaged(f"key {_shown(key)} stands in it twice")
            what = f"key {_shown(key)}"
            metadata[key] = self.value(self.u32(what), what)
        return metadata

    def value(self, type_id: int, what: str, depth: int = 0) -> Any:
        scalar = _SCALARS.get(type_id)
        if scalar is not None:
            value = scalar.unpack_from(self.mapping, self.need(scalar.size, what))[0]
            return self.boolean(value, what) if type_id == TYPE_BOOL else value
        if type_id == TYPE_STRING:
            length = self.u64(what)
            start = self.need(length, what)
            return self.mapping[start : start + length].decode("utf-8", "replace")
        if type_id == TYPE_ARRAY:
            return self.array(what, depth)
        raise self.damaged(f"{what} has the unknown value type {type_id}")

    def boolean(self, value: int, what: str) -> bool:
        if value > 1:
            raise self.damaged(f"{what} is a bool with the value {value}, only 0 and 1 are allowed")
        return bool(value)

    def array(self, what: str, depth: int) -> Any:
        type_id, count = self.u32(what), self.u64(what)
        dtype = ARRAY_DTYPES.get(type_id)
        if dtype is not None:
            return self.numbers(dtype, count, what)
        if type_id == TYPE_STRING:
            return self.strings(count, what)
        if type_id != TYPE_ARRAY:
            raise self.damaged(f"{what} is an array of the unknown value type {type_id}")
        if depth + 1 >= MAX_ARRAY_DEPTH:
            raise self.damaged(f"{what} nests arrays more than {MAX_ARRAY_DEPTH} deep")
        self.need_room(count, _MIN_ARRAY_BYTES, what)
        return [self.array(what, depth + 1) for _ in range(count)]

    def numbers(self, dtype: np.dtype[Any], count: int, what: str) -> npt.NDArray[Any]:
        start = self.need(count * dtype.itemsize, what)
        raw = np.frombuffer(self.mapping, np.uint8, count * dtype.itemsize, start) if count else np.empty(0, np.uint8)
        if dtype.kind == "b" and count:
            self.boolean(int(raw.max()), what)
        # A copy: aligned, writable, and not holding the mapping open.
        return raw.copy().view(dtype)

    def strings(self, count: int, what: str) -> list[str]:
        """The vocabulary's path: many are cut apart at once, and one by one what that leaves."""
        self.need_room(count, _MIN_STRING_BYTES, what)
        values: list[str] = []
        size = LEAST_BYTES
        while len(values) < count:
            ahead = np.frombuffer(self.mapping, np.uint8, min(size, self.size - self.position), self.position)
            found, taken = cut_strings(ahead, count - len(values))
            values += found
            self.position += taken
            if 2 * taken > size:
                size = min(2 * size, MOST_BYTES)
                continue
            values += [self.string(what) for _ in range(min(FEW, count - len(values)))]
            size = LEAST_BYTES
        return values

    def string(self, what: str) -> str:
        length = self.u64(what)
        start = self.need(length, what)
        return self.mapping[start : start + length].decode("utf-8", "surrogateescape")

    # Tensors

    def check_alignment(self, alignment: object) -> int:
        # type() rather than isinstance: True is no alignment.
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self.damaged(f"key '{ALIGNMENT_KEY}' must be a power of two")
        return alignment

    def read_tensor_info(self, index: int, count: int, alignment: int) -> _TensorInfo:
        name = self.name(f"the name of tensor {index + 1} of {count}")
        what = f"tensor {_shown(name)}"
        n_dims = self.u32(what)
        if n_dims > MAX_DIMS:
            raise self.damaged(f"{what} has {n_dims:,} dimensions, at most {MAX_DIMS} are allowed")
        shape = tuple(reversed([self.u64(what) for _ in range(n_dims)]))
        if 0 in shape:
            raise self.damaged(f"{what} has a dimension of 0 in its shape {shape}")
        type_id, offset = self.u32(what), self.u64(what)
        block_type = BLOCK_TYPES.get(type_id)
        if block_type is None:
            raise ModelFileError(
                f"{self.path} holds {what} of the unknown type {type_id}: the file is damaged or newer than this reader"
            )
        try:
            nbytes = block_type.nbytes(shape)
        except ValueError as error:
            raise self.damaged(f"{what}: {error}") from None
        if offset % alignment:
            raise self.damaged(f"{what} has the offset {offset:,}, which is no multiple of the alignment {alignment:,}")
        return _TensorInfo(name, shape, block_type, offset, nbytes)

    def place_tensors(self, infos: list[_TensorInfo], data_offset: int) -> dict[str, GGUFTensor]:
        tensors: dict[str, GGUFTensor] = {}
        whole = np.frombuffer(self.mapping, np.uint8)
        for info in infos:
            start = data_offset + info.offset
            end = start + info.nbytes
            if end > self.size:
                raise self.cut_short(f"tensor {_shown(info.name)}", end)
            if info.name in tensors:
                raise self.damaged(f"tensor {_shown(info.name)} stands in it twice")
            tensors[info.name] = GGUFTensor(info.name, info.shape, info.type, whole[start:end], start, self.mapping)
        self.check_overlaps(tensors)
        return tensors

    def check_overlaps(self, tensors: dict[str, GGUFTensor]) -> None:
        """Overlaps would let a small file claim a model of any size."""
        in_order = sorted(tensors.values(), key=lambda tensor: tensor.offset)
        for before, after in pairwise(in_order):
            if before.offset + before.nbytes > after.offset:
                raise self.damaged(f"tensors {_shown(before.name)} and {_shown(after.name)} overlap")
