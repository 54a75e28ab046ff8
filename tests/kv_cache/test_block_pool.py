"""BlockPool and KVCacheManager: nothing lost, nothing held twice, whatever the order of calls."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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
    manager = KVCacheManager(2)
    manager.grow(1, 16)
    with pytest.raises(AssertionError, match="cannot take 2 blocks"):
        manager.share(1, 2, 2)


def test_integrity_check_finds_a_lost_block() -> None:
    manager = KVCacheManager(4)
    manager.grow(1, 40)
    manager.check_integrity()
    manager.pool.allocate(1)
    with pytest.raises(AssertionError, match="block 3"):
        manager.check_integrity()


class ManagerMachine(RuleBasedStateMachine):
    """The manager beside a model of it that copies instead of counting."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = KVCacheManager(num_blocks=12, block_size=4)
        self.lengths: dict[int, int] = {}
        self.tables: dict[int, list[int]] = {}
        self.next_key = 0

    @property
    def held(self) -> set[int]:
        return {block for table in self.tables.values() for block in table}

    @rule(num_tokens=st.integers(1, 40))
    def start(self, num_tokens: int) -> None:
        self.grow_key(self.next_key, num_tokens)
        self.next_key += 1

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), more=st.integers(1, 20))
    def grow(self, data: st.DataObject, more: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.tables)))
        self.grow_key(key, self.lengths[key] + more)

    def grow_key(self, key: int, num_tokens: int) -> None:
        before = self.tables.get(key, [])
        missing = -(-num_tokens // 4) - len(before)
        fits = missing <= 12 - len(self.held)
        assert self.manager.grow(key, num_tokens) == fits
        if fits:
            table = list(self.manager.block_table(key))
            assert table[: len(before)] == before, "growing moves nothing"
            assert not set(table[len(before) :]) & self.held, "new blocks were free"
            self.tables[key], self.lengths[key] = table, max(num_tokens, self.lengths.get(key, 0))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.tables)))
        num_blocks = data.draw(st.integers(1, len(self.tables[source])))
        self.manager.share(source, self.next_key, num_blocks)
        self.tables[self.next_key] = self.tables[source][:num_blocks]
        self.lengths[self.next_key] = num_blocks * 4
        self.next_key += 1

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.tables)))
        table = self.tables.pop(key)
        del self.lengths[key]
        assert set(self.manager.free(key)) == set(table) - self.held

    @invariant()
    def counts_agree(self) -> None:
        self.manager.check_integrity()
        assert self.manager.pool.num_free == 12 - len(self.held)
        for key, table in self.tables.items():
            assert self.manager.block_table(key) == table


TestManager = ManagerMachine.TestCase
