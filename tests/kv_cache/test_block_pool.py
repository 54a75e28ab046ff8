"""BlockPool and its integrity check; random orders of calls are in test_radix_cache.py."""

from __future__ import annotations

import pytest

from pellucid.kv_cache.block_pool import BlockPool
from pellucid.kv_cache.manager import KVCacheManager


def test_lowest_blocks_first_then_the_last_freed() -> None:
    pool = BlockPool(8)
    assert pool.allocate(3) == [0, 1, 2]
    pool.free([1])
    assert pool.allocate(2) == [1, 3]
    pool.free([0, 1, 2, 3])
    assert pool.allocate(4) == [0, 1, 2, 3]
    assert pool.num_touched == 4, "memory touched is the most ever in use"


def test_allocate_is_all_or_nothing() -> None:
    pool = BlockPool(3)
    pool.allocate(2)
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    assert pool.allocate(1) == [2]


def test_shared_block_is_free_when_its_last_holder_goes() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1) or []
    pool.share([block])
    assert pool.free([block]) == []
    assert pool.num_free == 1
    assert pool.free([block]) == [block]
    assert pool.num_free == 2


def test_misuse_is_found() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.free([0])
    with pytest.raises(AssertionError, match="cannot be shared"):
        pool.share([0])


def test_integrity_check_finds_a_lost_block() -> None:
    manager = KVCacheManager(4)
    manager.grow(1, 40)
    manager.check_integrity()
    manager.pool.allocate(1)
    with pytest.raises(AssertionError, match="block 3"):
        manager.check_integrity()
