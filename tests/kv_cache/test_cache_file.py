"""A KV cache in a file: what comes back is what was there, and no file can do harm."""

from __future__ import annotations

import hashlib
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pellucid.errors import KVCacheFileError
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.kv_cache.saved import load_cache, save_cache
from pellucid.kv_cache.storage import KVCacheStorage

SETTINGS = {"weights": "abc", "kv": "float16"}
VOCAB = 1000


def empty(num_blocks: int = 24) -> tuple[KVCacheManager, KVCacheStorage]:
    return KVCacheManager(num_blocks), KVCacheStorage(2, num_blocks, 1, 4, dtype="float16")


def filled(rng: random.Random, num_sequences: int = 5) -> tuple[KVCacheManager, KVCacheStorage]:
    """Sequences that share beginnings, under two keys, with their blocks' numbers as keys and values."""
    kv, storage = empty()
    known: list[list[int]] = [[]]
    for key in range(num_sequences):
        ids = rng.choice(known)[:32] + [rng.randrange(VOCAB) for _ in range(32)]
        known.append(ids)
        cache_key = (rng.choice(("", "tenant")), "float16")
        found = kv.cache.match(cache_key, lambda a, b, ids=ids: ids[a:b], len(ids))
        kv.start(key, found)
        assert kv.grow(key, len(ids))
        for block in kv.block_table(key)[len(found) :]:
            storage._arena[block] = rng.random()
        kv.cache_blocks(key, cache_key, lambda a, b, ids=ids: ids[a:b], len(found), len(ids) // 16)
        kv.free(key)
    return kv, storage


def content(kv: KVCacheManager, storage: KVCacheStorage) -> dict[object, bytes]:
    """Keys and values by all ids from the root on."""
    paths: dict[int, tuple[object, ...]] = {}
    found = {}
    for node in kv.cache.nodes():
        paths[node.block] = (paths[node.parent] if node.parent is not None else (node.key,)) + node.token_ids
        found[paths[node.block]] = bytes(storage.block_bytes(node.block))
    return found


@given(st.integers(0, 2**32))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_comes_back_is_what_was_there(tmp_path: Path, number: int) -> None:
    kv, storage = filled(random.Random(number))
    path = tmp_path / "cache"
    assert save_cache(path, kv, storage, SETTINGS) == len(kv.cache)
    other, others_storage = empty()
    assert load_cache(path, other, others_storage, SETTINGS, VOCAB) == len(kv.cache)
    other.check_integrity()
    assert content(other, others_storage) == content(kv, storage)
    assert other.num_available == 24


def test_a_smaller_pool_takes_what_was_used_last(tmp_path: Path) -> None:
    kv, storage = filled(random.Random(3))
    save_cache(tmp_path / "cache", kv, storage, SETTINGS)
    other, others_storage = empty(4)
    assert load_cache(tmp_path / "cache", other, others_storage, SETTINGS, VOCAB) == 4
    other.check_integrity()
    kept = content(other, others_storage)
    assert kept.items() <= content(kv, storage).items()
    latest = [node.token_ids for node in kv.cache.nodes()[:4]]
    assert {path[-16:] for path in kept} == set(latest)


def test_the_file_is_its_owners_only_and_no_part_is_left(tmp_path: Path) -> None:
    kv, storage = filled(random.Random(0))
    save_cache(tmp_path / "cache", kv, storage, SETTINGS)
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_no_file_is_an_empty_cache_and_no_folder_an_error(tmp_path: Path) -> None:
    kv, storage = filled(random.Random(0))
    assert load_cache(tmp_path / "none", *empty(), SETTINGS, VOCAB) == 0
    with pytest.raises(KVCacheFileError, match="cannot be saved"):
        save_cache(tmp_path / "no" / "cache", kv, storage, SETTINGS)
    with pytest.raises(KVCacheFileError, match="cannot be read"):
        load_cache(tmp_path, *empty(), SETTINGS, VOCAB)


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    kv, storage = filled(random.Random(0))
    save_cache(tmp_path / "cache", kv, storage, SETTINGS)
    other, others_storage = empty()
    with pytest.raises(KVCacheFileError, match="saved with another kv, so it is not used"):
        load_cache(tmp_path / "cache", other, others_storage, {**SETTINGS, "kv": "float32"}, VOCAB)
    assert len(other.cache) == 0
    other_size = KVCacheStorage(3, 24, 1, 4, dtype="float16")
    with pytest.raises(KVCacheFileError, match="not of this cache's size"):
        load_cache(tmp_path / "cache", KVCacheManager(24), other_size, SETTINGS, VOCAB)


@given(st.integers(0, 2**32))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_refused_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    rng = random.Random(number)
    kv, storage = filled(rng, 2)
    path = tmp_path / "cache"
    save_cache(path, kv, storage, SETTINGS)
    data = bytearray(path.read_bytes())
    if rng.random() < 0.5:
        at = rng.choice((rng.randrange(60), rng.randrange(len(data))))
        data[at] ^= 1 << rng.randrange(8)
    else:
        data = data[: rng.randrange(len(data))]
    path.write_bytes(data)
    other, others_storage = empty()
    with pytest.raises(KVCacheFileError):
        load_cache(path, other, others_storage, SETTINGS, VOCAB)
    assert len(other.cache) == 0
    assert other.num_available == 24
    assert not np.asarray(others_storage._arena).any()
    other.check_integrity()


def forged(path: Path, change: object) -> None:
    """The file with its places changed and a checksum that agrees."""
    data = bytearray(path.read_bytes())
    _, length = struct.unpack_from("<8sI", data)
    places = np.frombuffer(data, dtype="<i4", count=2 * 18, offset=12 + length).reshape(2, 18)
    change(places)  # type: ignore[operator]
    data[-32:] = hashlib.sha256(data[:-32]).digest()
    path.write_bytes(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda places: places.__setitem__((0, 0), 1),
        lambda places: places.__setitem__((1, 0), 1),
        lambda places: places.__setitem__((1, 0), -2),
        lambda places: places.__setitem__((1, 0), 2**31 - 1),
        lambda places: places.__setitem__((1, 1), 7),
        lambda places: places.__setitem__((0, 5), VOCAB),
        lambda places: places.__setitem__((0, 5), -1),
        lambda places: places.__setitem__(1, places[0]),
    ],
)
def test_a_forged_tree_is_refused(tmp_path: Path, change: object) -> None:
    kv, storage = filled(random.Random(1), 1)
    assert len(kv.cache) == 2
    path = tmp_path / "cache"
    save_cache(path, kv, storage, SETTINGS)
    forged(path, change)
    other, others_storage = empty()
    with pytest.raises(KVCacheFileError, match="do not form a tree"):
        load_cache(path, other, others_storage, SETTINGS, VOCAB)
    other.check_integrity()
    assert other.num_available == 24


def test_a_header_that_promises_much_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    header = b'{"settings": {"weights": "abc", "kv": "float16"}, "keys": [], "num_blocks": 1000000000000, '
    header += b'"block_size": 16, "block_bytes": 512}'
    path.write_bytes(struct.pack("<8sI", b"PELLKV\x00\x01", len(header)) + header)
    with pytest.raises(KVCacheFileError, match="bytes where"):
        load_cache(path, *empty(), SETTINGS, VOCAB)
    path.write_bytes(struct.pack("<8sI", b"PELLKV\x00\x01", 2**32 - 1))
    with pytest.raises(KVCacheFileError, match="no KV cache file"):
        load_cache(path, *empty(), SETTINGS, VOCAB)
