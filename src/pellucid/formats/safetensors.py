"""The safetensors reader: a memory-mapped file, or a folder's shards, becomes named tensor views.

Layout of a file (the format's README): uint64 length of the header, a JSON object
{name: {"dtype": "F32", "shape": [rows, columns], "data_offsets": [begin, end]}, "__metadata__": {…}}, then the bytes;
offsets count from the end of the header. The `safetensors` library cannot be used here: without PyTorch it has no
bfloat16 and no 8-bit floats, and it copies.

The file is untrusted: the header is bounded by the file's size and by `MAX_HEADER_BYTES`, every span must lie in the
file and have its shape's size, and spans may not overlap.
"""

from __future__ import annotations

import json
import math
import mmap
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pellucid.errors import ModelFileError, shown
from pellucid.formats.json_file import is_there, read_json, regular_size

MAX_HEADER_BYTES: Final = 100_000_000
"""The format's own limit."""
MAX_DIMS: Final = 8
MAX_SHARDS: Final = 4096
INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"

ITEM_BYTES: Final[dict[str, int]] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """One tensor of the file, as bytes that are read from disk when they are first touched."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """The format's own name, such as "BF16"."""
    data: npt.NDArray[np.uint8] = field(repr=False)
    """[nbytes] read-only view on the mapped file."""
    offset: int
    """Where `data` starts in the file, in bytes."""
    mapping: mmap.mmap = field(repr=False, compare=False)

    def release(self) -> None:
        """Let the system drop the tensor's pages from this process, as after packing a copy of them."""
        advise = getattr(mmap, "MADV_DONTNEED", None)
        start = -(-self.offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (self.offset + len(self.data)) // mmap.PAGESIZE * mmap.PAGESIZE
        if advise is not None and end > start:
            with suppress(OSError):  # only advice
                self.mapping.madvise(advise, start, end - start)


def read_safetensors(path: str | Path) -> dict[str, SafeTensor]:
    """The tensors of one file by name. Raises `ModelFileError`, naming the file and what is wrong with it."""
    path = Path(path)
    mapping = _map(path)
    data = np.frombuffer(mapping, dtype=np.uint8)
    if len(data) < 8:
        raise ModelFileError(f"{path.name}: {len(data)} bytes are too few for a safetensors file")
    header_bytes = int(np.frombuffer(data[:8].tobytes(), dtype="<u8")[0])
    if header_bytes > min(len(data) - 8, MAX_HEADER_BYTES):
        raise ModelFileError(
            f"{path.name}: the header says it has {header_bytes} bytes, but the file has {len(data) - 8} after its "
            f"length and at most {MAX_HEADER_BYTES} are allowed: the file is cut or not a safetensors file"
        )
    entries = _header(data[8 : 8 + header_bytes].tobytes(), path.name)
    begin = 8 + header_bytes
    tensors: dict[str, SafeTensor] = {}
    for name, entry in entries.items():
        if name != "__metadata__":
            dtype, shape, (first, last) = _entry(name, entry, len(data) - begin, path.name)
            tensors[name] = SafeTensor(name, shape, dtype, data[begin + first : begin + last], begin + first, mapping)
    _check_overlaps(tensors, path.name)
    return tensors


def read_folder(folder: str | Path) -> dict[str, SafeTensor]:
    """The tensors of a folder: `model.safetensors`, or the shards that its index names.

    Raises `ModelFileError`: no weights, pickled weights only, a missing shard, a tensor that is not where the index
    says, or two files with the same tensor.
    """
    folder = Path(folder)
    if is_there(folder / INDEX_NAME):
        return _read_shards(folder)
    if is_there(folder / SINGLE_NAME):
        return read_safetensors(folder / SINGLE_NAME)
    others = sorted(folder.glob("*.safetensors"))
    if len(others) == 1:
        return read_safetensors(others[0])
    if others:
        raise ModelFileError(
            f"{folder.name}: {len(others)} safetensors files, but no {INDEX_NAME} that says what is in which"
        )
    pickled = sorted(p.name for p in folder.iterdir() if re.fullmatch(r".*\.(bin|pt|pth|pkl|ckpt)", p.name))
    if pickled:
        raise ModelFileError(
            f"{folder.name}: {pickled[0]} is a pickle file, which may run any program when it is opened, and is not "
            "read: convert it to safetensors"
        )
    raise ModelFileError(f"{folder.name}: no {SINGLE_NAME} in the folder")


def _read_shards(folder: Path) -> dict[str, SafeTensor]:
    places = read_json(folder / INDEX_NAME).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelFileError(f"{INDEX_NAME}: weight_map is missing or empty")
    files: set[str] = set()
    for name, file in places.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise ModelFileError(f"{INDEX_NAME}: weight_map puts {shown(name)} into {shown(file)}, which is no shard")
        files.add(file)
    if len(files) > MAX_SHARDS:
        raise ModelFileError(f"{INDEX_NAME}: {len(files)} shards, but at most {MAX_SHARDS} are read")
    tensors: dict[str, SafeTensor] = {}
    for file in sorted(files):
        if not is_there(folder / file):
            raise ModelFileError(f"{folder.name}: shard {file} is missing")
        found = read_safetensors(folder / file)
        twice = next((name for name in found if name in tensors), None)
        if twice is not None:
            raise ModelFileError(f"{file}: tensor {shown(twice)} is in another shard too")
        tensors.update(found)
    lost = next((name for name in places if name not in tensors), None)
    if lost is not None:
        raise ModelFileError(f"{places[lost]}: tensor {shown(lost)} is missing, but {INDEX_NAME} says it is there")
    return tensors


def _map(path: Path) -> mmap.mmap:
    regular_size(path)
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ModelFileError(f"{path.name}: the file is empty") from None
    except OSError as error:
        raise ModelFileError(f"{path.name}: can not be read ({error.strerror})") from None


def _header(text: bytes, file_name: str) -> Mapping[str, Any]:
    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) != len(pairs):
            raise ModelFileError(f"{file_name}: the header names something twice")
        return entries

    try:
        entries = json.loads(text, object_pairs_hook=refuse_twice)
    except (ValueError, RecursionError):
        raise ModelFileError(f"{file_name}: the header is not valid JSON") from None
    if not isinstance(entries, dict):
        raise ModelFileError(f"{file_name}: the header must be a JSON object")
    return entries


def _entry(name: str, entry: Any, available: int, file_name: str) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    wrong = ModelFileError(f"{file_name}: tensor {shown(name)} has no sound dtype, shape and data_offsets")
    if not isinstance(entry, dict):
        raise wrong
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    span: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ModelFileError(f"{file_name}: tensor {shown(name)} is of type {shown(dtype)}, which is not supported")
    if not _are_sizes(shape) or len(shape) > MAX_DIMS or not _are_sizes(span) or len(span) != 2:
        raise wrong
    first, last = span
    num_bytes = math.prod(shape) * ITEM_BYTES[dtype]
    if not first <= last <= available or last - first != num_bytes:
        raise ModelFileError(
            f"{file_name}: tensor {shown(name)} of shape {shown(tuple(shape))} takes {shown(num_bytes)} bytes, but its "
            f"data_offsets {shown(span)} do not give them within the {available} bytes of the file"
        )
    return dtype, tuple(shape), (first, last)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 48 for item in value)


def _check_overlaps(tensors: Mapping[str, SafeTensor], file_name: str) -> None:
    ordered = sorted((t for t in tensors.values() if len(t.data)), key=lambda t: t.offset)
    for before, after in pairwise(ordered):
        if before.offset + len(before.data) > after.offset:
            raise ModelFileError(f"{file_name}: tensors {shown(before.name)} and {shown(after.name)} overlap")
