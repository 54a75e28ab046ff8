"""Metadata and tensors to a GGUF file of version 3 or 2, readable by every GGUF reader.

The layout is described in `gguf`. The file appears under its name only once it is complete.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from pellucid.errors import InvalidParameterError, ModelFileError, shown
from pellucid.formats.block_types import BlockType
from pellucid.formats.gguf import (
    ALIGNMENT_KEY,
    ARRAY_DTYPES,
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMS,
    MAX_NAME_BYTES,
    SCALAR_FORMATS,
    SUPPORTED_VERSIONS,
    TYPE_ARRAY,
    TYPE_BOOL,
    TYPE_STRING,
)

TensorData = bytes | bytearray | memoryview | npt.NDArray[Any] | Callable[[], Iterable[npt.NDArray[Any]]]
"""A tensor's blocks as they go to the file, or a function that gives them piece by piece when it is their turn."""

_Pieces = tuple[int, Callable[[], Iterable[Any]]]
"""(bytes, pieces)."""

_TYPE_IDS: Final = {dtype: type_id for type_id, dtype in ARRAY_DTYPES.items()}
_UINT32, _INT32, _FLOAT32, _UINT64, _INT64 = 4, 5, 6, 10, 11
_INT_RANGES: Final = {
    _UINT32: (0, 2**32 - 1),
    _INT32: (-(2**31), 2**31 - 1),
    _UINT64: (0, 2**64 - 1),
    _INT64: (-(2**63), 2**63 - 1),
}


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[Sequence[int], BlockType, TensorData]],
    *,
    version: int = 3,
) -> None:
    """Write a file; `tensors` maps names to (shape in NumPy order, type, blocks).

    Python values take the types converters give them: int uint32 (else int32, uint64, int64), float float32,
    lists of int int32 (else uint32, int64, uint64), lists of float float32; lists may hold bools, strings and lists
    too; an empty one holds strings. NumPy scalars and one-dimensional arrays keep their own type. Surrogate escapes
    in strings become the bytes they stand for. The alignment is `general.alignment` where given, else 32.

    Raises InvalidParameterError, naming the key or tensor, for what a GGUF file cannot hold; ModelFileError where
    the file cannot be written.
    """
    target = Path(path)
    if version not in SUPPORTED_VERSIONS:
        raise InvalidParameterError("version", f"version is {version!r}, but must be 2 or 3")
    alignment = _alignment(metadata)
    header = bytearray(MAGIC + struct.pack("<IQQ", version, len(tensors), len(metadata)))
    for key, value in metadata.items():
        type_id, encoded = _encode(key, value)
        header += _name(key, "key") + struct.pack("<I", type_id) + encoded
    blocks: list[_Pieces] = []
    offset = 0
    for name, (shape, block_type, data) in tensors.items():
        pieces = _check_tensor(name, shape, block_type, data)
        dims = [int(size) for size in reversed(shape)]
        header += _name(name, "tensor") + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        header += struct.pack("<IQ", block_type.ggml_id, offset)
        blocks.append(pieces)
        offset += pieces[0] + -pieces[0] % alignment
    _write(target, [(len(header), lambda: [header]), *blocks], alignment)


def _alignment(metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int | np.integer) or alignment < 1 or alignment & (alignment - 1):
        raise InvalidParameterError(ALIGNMENT_KEY, f"{ALIGNMENT_KEY} is {shown(alignment)}, but must be a power of two")
    return int(alignment)


def _check_tensor(name: str, shape: Sequence[int], block_type: BlockType, data: TensorData) -> _Pieces:
    """The tensor's bytes, checked against its shape."""
    if not 1 <= len(shape) <= MAX_DIMS or min(shape) < 1:
        raise InvalidParameterError(
            name, f"tensor {name!r} has the shape {tuple(shape)}, but needs 1 to {MAX_DIMS} dimensions of at least 1"
        )
    try:
        nbytes = block_type.nbytes(shape)
    except ValueError as error:
        raise InvalidParameterError(name, f"tensor {name!r}: {error}") from None
    if callable(data):
        return nbytes, data
    array = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    if len(view) != nbytes:
        raise InvalidParameterError(
            name,
            f"tensor {name!r} of shape {tuple(shape)} and type {block_type.name} takes {nbytes:,} bytes, "
            f"but {len(view):,} are given",
        )
    return nbytes, lambda: [view]


def _write(target: Path, parts: Sequence[_Pieces], alignment: int) -> None:
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with open(partial, "wb") as file:
            for nbytes, pieces in parts:
                start = file.tell()
                for piece in pieces():
                    file.write(piece)
                if file.tell() - start != nbytes:
                    raise ValueError(f"{file.tell() - start} bytes were given for a tensor of {nbytes}")
                _pad(file, alignment)
        os.replace(partial, target)
    except OSError as error:
        raise ModelFileError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            os.unlink(partial)


def _pad(file: BinaryIO, alignment: int) -> None:
    # seek, not zero bytes in memory: an alignment may be large.
    remainder = file.tell() % alignment
    if remainder:
        file.truncate(file.tell() + alignment - remainder)
        file.seek(0, os.SEEK_END)


# Values


def _string(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(encoded)) + encoded


def _name(text: str, kind: str) -> bytes:
    """A key or tensor name: strict UTF-8 of bounded length."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidParameterError(ascii(text), f"{kind} {text!a} is not valid Unicode") from None
    if size > MAX_NAME_BYTES:
        raise InvalidParameterError(text[:80], f"{kind} {text[:80]!r}... is longer than {MAX_NAME_BYTES:,} bytes")
    return _string(text)


def _encode(key: str, value: Any) -> tuple[int, bytes]:
    """Value type id and bytes of a value."""
    if isinstance(value, np.generic | np.ndarray):
        return _encode_numpy(key, value)
    if isinstance(value, bool):
        return TYPE_BOOL, bytes([value])
    if isinstance(value, int):
        type_id = _int_type(key, [value], (_UINT32, _INT32, _UINT64, _INT64))
        return type_id, struct.pack(SCALAR_FORMATS[type_id], value)
    if isinstance(value, float):
        return _FLOAT32, _float32(key, [value]).tobytes()
    if isinstance(value, str):
        return TYPE_STRING, _string(value)
    if isinstance(value, list | tuple):
        item_type, items = _encode_items(key, value)
        return TYPE_ARRAY, struct.pack("<IQ", item_type, len(value)) + items
    raise _unsupported(key, value)


def _encode_numpy(key: str, value: np.generic | npt.NDArray[Any]) -> tuple[int, bytes]:
    dtype = value.dtype.newbyteorder("<")
    type_id = _TYPE_IDS.get(dtype)
    if type_id is None or value.ndim > 1:
        raise _unsupported(key, value)
    raw = np.asarray(value).astype(dtype).tobytes()
    if value.ndim == 0:
        return type_id, raw
    return TYPE_ARRAY, struct.pack("<IQ", type_id, len(raw) // dtype.itemsize) + raw


def _encode_items(key: str, values: Sequence[Any]) -> tuple[int, bytes]:
    """Item type id and bytes of a list's items, which are all of one kind."""
    kinds = {bool if isinstance(v, np.bool_) else int if isinstance(v, np.integer) else type(v) for v in values}
    if not kinds:  # as the reader gives strings; numbers are arrays
        return TYPE_STRING, b""
    if kinds == {bool}:
        return TYPE_BOOL, bytes(values)
    if kinds == {int}:
        type_id = _int_type(key, values, (_INT32, _UINT32, _INT64, _UINT64))
        return type_id, np.array(values, ARRAY_DTYPES[type_id]).tobytes()
    if kinds <= {int, float, np.float32, np.float64}:
        return _FLOAT32, _float32(key, values).tobytes()
    if kinds == {str}:
        return TYPE_STRING, b"".join(map(_string, values))
    if kinds <= {list, tuple, np.ndarray}:
        return TYPE_ARRAY, b"".join(_encode(key, v)[1] for v in values)
    raise _unsupported(key, values)


def _int_type(key: str, values: Sequence[int], type_ids: Sequence[int]) -> int:
    """The first of the types that holds all values."""
    low, high = (min(values), max(values)) if values else (0, 0)
    for type_id in type_ids:
        if _INT_RANGES[type_id][0] <= low and high <= _INT_RANGES[type_id][1]:
            return type_id
    raise InvalidParameterError(key, f"key {key!r} holds an integer outside 64 bits")


def _float32(key: str, values: Sequence[float]) -> npt.NDArray[np.float32]:
    exact = np.array(values, np.float64)
    with np.errstate(over="ignore"):
        single = exact.astype("<f4")
    if (np.isinf(single) & np.isfinite(exact)).any():
        raise InvalidParameterError(key, f"key {key!r} holds a number too large for float32: use numpy.float64")
    return single


def _unsupported(key: str, value: object) -> InvalidParameterError:
    return InvalidParameterError(
        key,
        f"key {key!r} holds a value of type {type(value).__name__}, but must be a bool, int, float, str, "
        "NumPy number, one-dimensional array, or a list of one kind of these",
    )
