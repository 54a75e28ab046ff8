"""The prefix cache in a file: written when an engine closes, read when the next one starts.

    magic | length of the header | header (JSON) | blocks' places in the tree (int32) | keys and values | sha256

A place is the parent's number in the file (−1 at a root), the number of its cache key, and its token ids; parents come
before their children, the most recently used blocks first. What is read is hostile until the checksum, which comes
last, has agreed: sizes are checked against the file's before anything is taken, and nothing enters the tree before.
The checksum finds damage, not malice: whoever may write the file may put any keys and values there.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from pellucid.errors import InvalidParameterError, KVCacheFileError
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.kv_cache.storage import KVCacheStorage

MAGIC = b"PELLKV\x00\x01"
"""The last byte is the version."""
MAX_HEADER_BYTES = 16 << 20
_PREFIX = struct.Struct("<8sI")
_DIGEST_BYTES = hashlib.sha256().digest_size


def check_is_ours(path: Path) -> None:
    """Raise `InvalidParameterError` where the path is taken by something that is no saved cache, of whatever version.

    A cache is going to be written there: a mistyped name must not cost anybody a file. An empty file is nobody's loss.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(len(MAGIC) - 1)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InvalidParameterError(
            "kv_cache_save", f"kv_cache_save: {path} cannot be read: {error.strerror}"
        ) from None
    if start not in (b"", MAGIC[:-1]):
        raise InvalidParameterError(
            "kv_cache_save",
            f"kv_cache_save: {path} is no saved KV cache, and saving one would replace it: name another file",
        )


def save_cache(
    path: Path, kv: KVCacheManager, storage: KVCacheStorage, settings: Mapping[str, str], aside: Path | None = None
) -> int:
    """Write every cached block; gives back how many. The file is there whole, or as it was before.

    aside: where the file goes that is there now; None: it is replaced.
    Nobody but its owner can read the file: it holds what was asked and answered. Raises `KVCacheFileError` where it
    cannot be written.
    """
    nodes = kv.cache.nodes()
    numbers = {node.block: number for number, node in enumerate(nodes)}
    keys = list(dict.fromkeys(node.key for node in nodes))
    places = np.empty((len(nodes), 2 + kv.block_size), dtype="<i4")
    for number, node in enumerate(nodes):
        places[number, 0] = -1 if node.parent is None else numbers[node.parent]
        places[number, 1] = keys.index(node.key)
        places[number, 2:] = node.token_ids
    header = {"settings": dict(settings), "keys": keys, "num_blocks": len(nodes), "block_size": kv.block_size}
    header["block_bytes"] = storage.block_stride
    encoded = json.dumps(header).encode()
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        if len(encoded) > MAX_HEADER_BYTES:
            raise OSError(0, f"its header would have {len(encoded)} bytes")
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            digest = hashlib.sha256()
            for piece in (_PREFIX.pack(MAGIC, len(encoded)), encoded, places.tobytes()):
                _write(file, digest, piece)
            for node in nodes:
                _write(file, digest, storage.block_bytes(node.block))
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        if aside is not None and path.exists():
            os.replace(path, aside)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise KVCacheFileError(f"{path}: the KV cache cannot be saved: {error.strerror}") from None
    return len(nodes)


def load_cache(
    path: Path, kv: KVCacheManager, storage: KVCacheStorage, settings: Mapping[str, str], vocab_size: int
) -> int:
    """Put the file's blocks into an empty cache, as many as fit; gives back how many. Without a file: none.

    Raises `KVCacheFileError`, and leaves the cache empty, where the file is damaged or was made with other settings.
    """
    try:
        with open(path, "rb") as file:
            return _Reader(path, file, kv, storage).load(settings, vocab_size)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise KVCacheFileError(f"{path}: the KV cache cannot be read: {error.strerror}") from None


class _Reader:
    """One file, read once from its beginning to its end."""

    def __init__(self, path: Path, file: BinaryIO, kv: KVCacheManager, storage: KVCacheStorage) -> None:
        self._path, self._file, self._kv, self._storage = path, file, kv, storage
        self._digest = hashlib.sha256()
        self._size = os.fstat(file.fileno()).st_size

    def load(self, settings: Mapping[str, str], vocab_size: int) -> int:
        keys, num_blocks = self._read_header(settings)
        row = 2 + self._kv.block_size
        places = np.frombuffer(self._take(4 * num_blocks * row), dtype="<i4").reshape(num_blocks, row)
        self._check_places(places, len(keys), vocab_size)
        blocks = self._kv.pool.allocate(min(num_blocks, self._kv.pool.num_free)) or []
        try:
            for block in blocks:
                self._take_into(self._storage.block_bytes(block))
            spare = bytearray(self._storage.block_stride)
            for _ in range(num_blocks - len(blocks)):
                self._take_into(memoryview(spare))
            found = self._digest.digest()
            if self._file.read(_DIGEST_BYTES) != found:
                raise self._damaged("its checksum does not agree")
        except (KVCacheFileError, OSError):
            self._storage.clear(blocks)
            self._kv.pool.free(blocks)
            raise
        self._plant(keys, places, blocks)
        return len(blocks)

    def _read_header(self, settings: Mapping[str, str]) -> tuple[list[tuple[str, ...]], int]:
        magic, length = _PREFIX.unpack(self._take(_PREFIX.size))
        if magic != MAGIC or length > MAX_HEADER_BYTES:
            raise self._damaged("it is no KV cache file of this version")
        try:
            header = json.loads(self._take(length))
            made_with = header["settings"]
            keys = [tuple(map(str, key)) for key in header["keys"]]
            numbers = [header[name] for name in ("num_blocks", "block_size", "block_bytes")]
            if not isinstance(made_with, dict) or not all(type(number) is int for number in numbers):
                raise ValueError
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._damaged("its header cannot be read") from None
        for name, value in settings.items():
            if made_with.get(name) != value:
                raise KVCacheFileError(
                    f"{self._path}: the KV cache was saved with another {name}, so it is not used and the cache starts "
                    "empty"
                )
        num_blocks, block_size, block_bytes = numbers
        own = (self._kv.block_size, self._storage.block_stride)
        if (block_size, block_bytes) != own or num_blocks < 0:
            raise self._damaged("its blocks are not of this cache's size")
        body = num_blocks * (4 * (2 + block_size) + block_bytes) + _DIGEST_BYTES
        if self._size != _PREFIX.size + length + body:
            raise self._damaged(f"it has {self._size} bytes where {_PREFIX.size + length + body} belong")
        return keys, num_blocks

    def _check_places(self, places: npt.NDArray[Any], num_keys: int, vocab_size: int) -> None:
        """Parents stand before their children, under the same key; ids are of the vocabulary; no place comes twice."""
        parents, keys, ids = places[:, 0], places[:, 1], places[:, 2:]
        numbers = np.arange(len(places))
        is_child = parents >= 0
        is_sound = (
            (parents >= -1).all()
            and (parents < numbers).all()
            and ((keys >= 0) & (keys < num_keys)).all()
            and (keys[is_child] == keys[parents[is_child]]).all()
            and ((ids >= 0) & (ids < vocab_size)).all()
            and len(np.unique(places, axis=0)) == len(places)
        )
        if not is_sound:
            raise self._damaged("its blocks do not form a tree")

    def _plant(self, keys: list[tuple[str, ...]], places: npt.NDArray[Any], blocks: list[int]) -> None:
        """The first blocks of the file are in `blocks`: a parent is always among them."""
        cache = self._kv.cache
        for number, block in enumerate(blocks):
            parent, key, *ids = places[number].tolist()
            cache.insert(keys[key], None if parent < 0 else blocks[parent], ids, block, owner=-1)
        for block in reversed(blocks):  # the most recently used is released last
            cache.release((block,))

    def _take(self, count: int) -> bytes:
        if count > self._size:
            raise self._damaged("it is too short")
        data = self._file.read(count)
        if len(data) != count:
            raise self._damaged("it is too short")
        self._digest.update(data)
        return data

    def _take_into(self, view: memoryview) -> None:
        if self._file.readinto(view) != len(view):  # type: ignore[attr-defined]
            raise self._damaged("it is too short")
        self._digest.update(view)

    def _damaged(self, how: str) -> KVCacheFileError:
        return KVCacheFileError(
            f"{self._path}: the KV cache file is damaged ({how}), so it is not used and the cache starts empty"
        )


def _write(file: BinaryIO, digest: Any, piece: bytes | memoryview) -> None:
    digest.update(piece)
    file.write(piece)
