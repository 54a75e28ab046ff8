"""RadixCache and KVCacheManager together against dictionaries of whole prefixes: what is found, kept, evicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pellucid.kv_cache.block_pool import BlockPool
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.kv_cache.radix_cache import CacheKey, RadixCache

SIZE = 2
NUM_BLOCKS = 10
KEYS: tuple[CacheKey, ...] = (("", "float16"), ("", "float32"), ("tenant", "float16"))
Prefix = tuple[CacheKey, tuple[int, ...]]


def reader(tokens: list[int]) -> Callable[[int, int], list[int]]:
    return lambda start, end: tokens[start:end]


def serve(manager: KVCacheManager, key: int, cache_key: CacheKey, tokens: list[int]) -> int:
    """Run a sequence from start to end of its tokens; gives the number of tokens found."""
    size = manager.block_size
    blocks = manager.cache.match(cache_key, reader(tokens), len(tokens) - 1)
    manager.start(key, blocks)
    num_found = len(blocks) * size
    assert manager.grow(key, len(tokens))
    manager.cache_blocks(key, cache_key, reader(tokens), num_found // size, len(tokens) // size)
    return num_found


@pytest.mark.parametrize(("length", "found"), [(15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32), (100, 96)])
def test_all_full_blocks_but_never_the_last_token(length: int, found: int) -> None:
    manager, tokens = KVCacheManager(20), list(range(length))
    assert serve(manager, 1, KEYS[0], tokens) == 0
    manager.free(1)
    assert serve(manager, 2, KEYS[0], tokens) == found
    manager.check_integrity()


def test_g60_the_key_has_salt_and_type() -> None:
    manager, tokens = KVCacheManager(20), list(range(40))
    for number, key in enumerate(KEYS):
        assert serve(manager, number, key, tokens) == 0
    for number, key in enumerate(KEYS, 10):
        assert serve(manager, number, key, tokens) == 32
        assert manager.block_table(number)[:2] == manager.block_table(number - 10)[:2]
    manager.check_integrity()


def test_ids_that_hash_alike_are_told_apart() -> None:
    """hash(-1) == hash(-2) in Python, and with it the hashes of tuples of them."""
    manager = KVCacheManager(20)
    assert hash((-1,) * 16) == hash((-2,) * 16)
    serve(manager, 1, KEYS[0], [-1] * 17)
    assert manager.cache.match(KEYS[0], reader([-2] * 17), 16) == []
    assert serve(manager, 2, KEYS[0], [-2] * 17) == 0
    assert serve(manager, 3, KEYS[0], [-1] * 17) == 16
    manager.check_integrity()


def test_the_least_recently_used_goes_first_and_only_when_blocks_are_lacking() -> None:
    manager = KVCacheManager(6)
    old, young = [1] * 32, [2] * 32
    for number, tokens in enumerate((old, young)):
        serve(manager, number, KEYS[0], tokens)
        manager.free(number)
    assert (manager.pool.num_free, manager.cache.num_evictable, manager.num_available) == (2, 4, 6)
    manager.grow(10, 32)
    assert len(manager.cache) == 4, "free blocks sufficed"
    manager.grow(11, 16)
    assert manager.cache.match(KEYS[0], reader(old), 32) == [0], "the leaf of the older one is gone"
    manager.grow(11, 32)
    assert manager.cache.match(KEYS[0], reader(old), 32) == []
    assert len(manager.cache.match(KEYS[0], reader(young), 32)) == 2
    assert not manager.grow(11, 90), "more than there is"
    assert len(manager.cache) == 2, "and then nothing is evicted"
    manager.check_integrity()


def test_what_is_in_use_is_not_evicted() -> None:
    manager = KVCacheManager(4)
    serve(manager, 1, KEYS[0], [1] * 32)
    manager.free(1)
    assert serve(manager, 2, KEYS[0], [1] * 20) == 16
    assert manager.grow(3, 32), "one free block, and the cached one that has no user"
    assert not manager.grow(3, 33)
    assert manager.cache.match(KEYS[0], reader([1] * 32), 32) == [0]


def test_two_that_compute_the_same_keep_one_copy() -> None:
    manager, tokens = KVCacheManager(8), list(range(40))
    for key in (1, 2):
        assert manager.grow(key, 40)
    assert not manager.cache_blocks(1, KEYS[0], reader(tokens), 0, 2)
    own = list(manager.block_table(2))
    assert manager.cache_blocks(2, KEYS[0], reader(tokens), 0, 2), "whoever has a copy of the table is told"
    assert manager.block_table(2) == [*manager.block_table(1)[:2], own[2]]
    assert manager.pool.num_free == 4
    manager.check_integrity()


def test_what_a_failed_sequence_put_in_goes_and_what_others_put_in_stays() -> None:
    manager = KVCacheManager(8)
    serve(manager, 1, KEYS[0], [1] * 17)
    manager.free(1)
    serve(manager, 2, KEYS[0], [1] * 16 + [2] * 33)
    assert len(manager.cache) == 3
    assert sorted(manager.free(2, discard=True)) == [1, 2, 3], "to be wiped"
    assert len(manager.cache) == 1
    assert manager.cache.match(KEYS[0], reader([1] * 16), 16) == [0]
    assert manager.num_available == 8
    manager.check_integrity()


def test_a_key_can_be_forgotten() -> None:
    manager = KVCacheManager(8)
    for number, key in enumerate(KEYS[:2]):
        serve(manager, number, key, [1] * 40)
        manager.free(number)
    manager.cache.forget(KEYS[0])
    manager.cache.forget(KEYS[2])
    assert manager.cache.match(KEYS[0], reader([1] * 40), 40) == []
    assert len(manager.cache.match(KEYS[1], reader([1] * 40), 40)) == 2
    manager.check_integrity()


def test_a_prefix_used_for_ever_does_not_grow_the_list_of_leaves() -> None:
    manager = KVCacheManager(8)
    for number in range(2000):
        serve(manager, number, KEYS[0], [1] * 40)
        manager.free(number)
    assert len(manager.cache._leaves) < 100
    manager.check_integrity()


def test_misuse_is_found() -> None:
    manager = KVCacheManager(4)
    serve(manager, 1, KEYS[0], [1] * 16)
    with pytest.raises(AssertionError, match="has blocks already"):
        manager.start(1, [])
    with pytest.raises(AssertionError, match="only 0 can be"):
        manager.cache.evict(1)
    cache = RadixCache(BlockPool(2))
    cache._roots[KEYS[0]] = {}
    with pytest.raises(AssertionError, match="has a root, but no blocks"):
        cache.check_integrity()


@dataclass
class Sequence:
    cache_key: CacheKey
    tokens: list[int]
    table: list[int]
    num_computed: int


@dataclass
class Entry:
    block: int
    owner: int
    last_used: int = 0


class CacheMachine(RuleBasedStateMachine):
    """The manager beside a dictionary from whole prefixes to blocks, searched from end to end for everything."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = KVCacheManager(NUM_BLOCKS, SIZE)
        self.entries: dict[Prefix, Entry] = {}
        self.sequences: dict[int, Sequence] = {}
        self.next_key = 0
        self.clock = 0

    @property
    def held(self) -> set[int]:
        return {block for sequence in self.sequences.values() for block in sequence.table}

    @property
    def cached(self) -> set[int]:
        return {entry.block for entry in self.entries.values()}

    def evict(self, count: int) -> None:
        for _ in range(count):
            held = self.held
            leaves = [
                (entry.last_used, prefix)
                for prefix, entry in self.entries.items()
                if entry.block not in held and not self.below(prefix)
            ]
            del self.entries[min(leaves)[1]]

    def below(self, prefix: Prefix) -> bool:
        key, ids = prefix
        return any(other == key and len(more) > len(ids) and more[: len(ids)] == ids for other, more in self.entries)

    def grow_to(self, key: int, num_tokens: int) -> bool:
        sequence = self.sequences[key]
        missing = -(-num_tokens // SIZE) - len(sequence.table)
        taken = self.held | self.cached
        fits = missing <= NUM_BLOCKS - len(self.held)
        assert self.manager.grow(key, num_tokens) == fits
        if fits:
            self.evict(max(0, missing - (NUM_BLOCKS - len(taken))))
        if fits and missing > 0:
            table = list(self.manager.block_table(key))
            assert table[: len(sequence.table)] == sequence.table
            assert not set(table[len(sequence.table) :]) & (self.held | self.cached), "new blocks were free"
            sequence.table = table
        return fits

    @rule(cache_key=st.sampled_from(KEYS), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12))
    def start(self, cache_key: CacheKey, tokens: list[int]) -> None:
        key, self.next_key = self.next_key, self.next_key + 1
        blocks = self.manager.cache.match(cache_key, reader(tokens), len(tokens) - 1)
        expected: list[int] = []
        for end in range(SIZE, len(tokens), SIZE):
            entry = self.entries.get((cache_key, tuple(tokens[:end])))
            if entry is None:
                break
            expected.append(entry.block)
        assert blocks == expected
        assert self.manager.cache.num_unused(blocks) == len(set(blocks) - self.held)
        self.manager.start(key, blocks)
        self.sequences[key] = Sequence(cache_key, tokens, list(blocks), len(blocks) * SIZE)
        if not self.grow_to(key, len(tokens)):
            self.end(key, discard=False)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), count=st.integers(1, 5))
    def compute(self, data: st.DataObject, count: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.sequences)))
        sequence = self.sequences[key]
        end = min(len(sequence.tokens), sequence.num_computed + count)
        first, last = sequence.num_computed // SIZE, end // SIZE
        sequence.num_computed = end
        changed = self.manager.cache_blocks(key, sequence.cache_key, reader(sequence.tokens), first, last)
        before = list(sequence.table)
        for index in range(first, last):
            prefix = (sequence.cache_key, tuple(sequence.tokens[: (index + 1) * SIZE]))
            entry = self.entries.setdefault(prefix, Entry(sequence.table[index], key))
            sequence.table[index] = entry.block
        assert changed == (before != sequence.table)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), token=st.integers(0, 1))
    def add_token(self, data: st.DataObject, token: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.sequences)))
        if self.grow_to(key, len(self.sequences[key].tokens) + 1):
            self.sequences[key].tokens.append(token)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), discard=st.booleans())
    def free(self, data: st.DataObject, discard: bool) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.sequences))), discard)

    def end(self, key: int, discard: bool) -> None:
        sequence = self.sequences.pop(key)
        self.clock += 1
        if discard:
            for end in range(len(sequence.tokens) // SIZE * SIZE, 0, -SIZE):
                prefix = (sequence.cache_key, tuple(sequence.tokens[:end]))
                entry = self.entries.get(prefix)
                if entry is None or end > sequence.num_computed:
                    continue
                if entry.owner != key or entry.block in self.held or self.below(prefix):
                    break
                del self.entries[prefix]
        for entry in self.entries.values():
            if entry.block in sequence.table:
                entry.last_used = self.clock
        freed = self.manager.free(key, discard=discard)
        assert set(freed) == set(sequence.table) - self.held - self.cached
        assert len(freed) == len(set(freed))

    @rule(cache_key=st.sampled_from(KEYS))
    def forget(self, cache_key: CacheKey) -> None:
        if not any(sequence.cache_key == cache_key for sequence in self.sequences.values()):
            self.manager.cache.forget(cache_key)
            self.entries = {prefix: entry for prefix, entry in self.entries.items() if prefix[0] != cache_key}

    @invariant()
    def all_agrees(self) -> None:
        self.manager.check_integrity()
        assert len(self.manager.cache) == len(self.entries) == len(self.cached)
        assert all(block in self.manager.cache for block in self.cached)
        assert self.manager.cache.num_evictable == len(self.cached - self.held)
        assert self.manager.num_available == NUM_BLOCKS - len(self.held)
        for key, sequence in self.sequences.items():
            if sequence.table:
                assert self.manager.block_table(key) == sequence.table


CacheMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCache = CacheMachine.TestCase
