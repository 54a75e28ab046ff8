"""Block tables: which blocks hold the tokens of each sequence, in order. Ints only.

Logical block i of a sequence holds its tokens i · block_size … (i + 1) · block_size − 1. A block that is shared or
cached is always full and never written again; a sequence only writes blocks that it alone holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from pellucid.config import BLOCK_SIZE
from pellucid.kv_cache.block_pool import BlockPool
from pellucid.kv_cache.radix_cache import CacheKey, RadixCache


class KVWatcher(Protocol):
    """Is told what happens to blocks."""

    def on_block(self, op: str, key: int | None, index: int, block: int, num_tokens: int) -> None:
        """`block`, logical block `index` of sequence `key`, which holds or will hold `num_tokens` tokens, was …

        hit: found in the cache · alloc: taken from the pool · cache: put into the cache, full and computed ·
        share: taken in place of one of the same tokens, or by a copy of the sequence · free: dropped by the sequence ·
        preempt: the same, to be computed again · evict: dropped by the cache (no sequence, index −1).
        """
        ...


class Borrower(Protocol):
    """Holds blocks only until somebody else needs them, and can compute what was in them again."""

    @property
    def num_blocks(self) -> int:
        """Blocks it holds now."""
        ...

    @property
    def num_owed(self) -> int:
        """Blocks, those it holds among them, that it has been kept from for too long; see `KVCacheManager.num_owed`."""
        ...

    def give_back(self, num_blocks: int) -> None:
        """Free at least so many of them, or all."""
        ...


class KVCacheManager:
    """Starts, grows and frees block tables, and the only caller of pool and cache; sequences are named by int keys.

    Does not know what is computed: the scheduler keeps `num_computed_tokens` and says which blocks may be cached.
    """

    __slots__ = ("_forked", "_tables", "block_size", "borrower", "cache", "pool", "watcher")

    def __init__(self, num_blocks: int, block_size: int = BLOCK_SIZE) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.cache = RadixCache(self.pool, block_size)
        self._tables: dict[int, list[int]] = {}
        self._forked: set[int] = set()
        """Sequences that share blocks which are not in the cache."""
        self.watcher: KVWatcher | None = None
        self.borrower: Borrower | None = None

    @property
    def num_available(self) -> int:
        """Blocks that `grow` can still take: the unused ones, and those that are only borrowed."""
        borrowed = 0 if self.borrower is None else self.borrower.num_blocks
        return self.num_unused + borrowed

    @property
    def num_owed(self) -> int:
        """Blocks, of those available, that sequences which have not begun must leave to the borrower."""
        return 0 if self.borrower is None else self.borrower.num_owed

    @property
    def num_unused(self) -> int:
        """Blocks that are free, and cached ones that nobody uses."""
        return self.pool.num_free + self.cache.num_evictable

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens: num_tokens / block_size, rounded up."""
        return -(-num_tokens // self.block_size)

    def num_blocks_held(self, key: int) -> int:
        """Length of the sequence's block table; 0 when it has none."""
        table = self._tables.get(key)
        return 0 if table is None else len(table)

    def block_table(self, key: int) -> list[int]:
        """The sequence's blocks in order. The list is the manager's own: read it, do not keep or change it."""
        return self._tables[key]

    def tables(self) -> dict[int, list[int]]:
        """The block tables of all sequences, by key; copies."""
        return {key: list(table) for key, table in self._tables.items()}

    def start(self, key: int, blocks: list[int]) -> None:
        """Begin the table of a sequence, which has none, with cached blocks that `cache.match` has just found."""
        if self._tables.get(key):
            raise AssertionError(f"sequence {key} has blocks already")
        if blocks:
            self.cache.acquire(blocks)
            self._tables[key] = blocks
            self._tell("hit", key, blocks)

    def grow(self, key: int, num_tokens: int) -> bool:
        """Make the table long enough for `num_tokens` tokens; False, and no change, when blocks are lacking.

        Cached blocks are evicted only when the free ones do not suffice; what is borrowed comes back only then.
        """
        table = self._tables.get(key)
        missing = -(-num_tokens // self.block_size) - (0 if table is None else len(table))
        if missing <= 0:
            return True
        lacking = missing - self.pool.num_free
        if lacking > 0:
            if lacking > self.cache.num_evictable and self.borrower is not None:
                self.borrower.give_back(lacking - self.cache.num_evictable)
                lacking = missing - self.pool.num_free
            if lacking > self.cache.num_evictable:
                return False
            evicted = self.cache.evict(lacking) if lacking > 0 else []
            if self.watcher is not None:
                for block in evicted:
                    self.watcher.on_block("evict", None, -1, block, self.block_size)
        blocks = self.pool.allocate(missing)
        if blocks is None:
            raise AssertionError(f"{missing} blocks are not there after evicting {lacking}")
        if table is None:
            self._tables[key] = blocks
        else:
            table.extend(blocks)
        if self.watcher is not None:
            first = self.num_blocks_held(key) - missing
            for index, block in enumerate(blocks, start=first):
                self.watcher.on_block(
                    "alloc", key, index, block, min(self.block_size, num_tokens - index * self.block_size)
                )
        return True

    def fork(self, key: int, child: int, num_tokens: int) -> tuple[int, int] | None:
        """Begin the table of `child` as a copy of `key`'s, `num_tokens` of which are computed.

        Full blocks are shared. A block that is partly filled is not: (block of `key`, new block of `child`) is given
        back, for the caller to copy its content. Raises AssertionError where no block is left for it.
        """
        full, rest = divmod(num_tokens, self.block_size)
        table = self._tables[key]
        self.pool.share(table[:full])
        self._tables[child] = table[:full]
        self._tell("share", child, table[:full])
        self._forked |= {key, child}
        if not rest:
            return None
        if not self.grow(child, num_tokens):
            raise AssertionError("no block is left for a fork")
        return table[full], self._tables[child][full]

    def cache_blocks(
        self,
        key: int,
        cache_key: CacheKey,
        tokens_between: Callable[[int, int], Sequence[int]],
        first: int,
        last: int,
    ) -> bool:
        """Put the blocks first … last − 1 of the table, full and computed, into the cache; those before are in it.

        Where the cache has a block of the same tokens, the table takes that one and gives up its own: True when
        that happened, and whoever has a copy of the table must read it again.
        """
        table, size = self._tables[key], self.block_size
        changed = False
        for index in range(first, last):
            own = table[index]
            parent = table[index - 1] if index else None
            kept = self.cache.insert(cache_key, parent, tokens_between(index * size, (index + 1) * size), own, key)
            if kept != own:
                table[index] = kept
                self.pool.free((own,))
                changed = True
                if self.watcher is not None:
                    self.watcher.on_block("free", key, index, own, size)
            if self.watcher is not None:
                self.watcher.on_block("cache" if kept == own else "share", key, index, kept, size)
        return changed

    def free(self, key: int, *, discard: bool = False, is_preempted: bool = False) -> list[int]:
        """Drop the sequence's table; gives back the blocks that are free now.

        Its cached blocks stay in the cache; with `discard`, those that it put in and nobody else uses do not.
        `is_preempted` is for who watches.
        """
        table = self._tables.pop(key, None)
        self._forked.discard(key)
        if table is None:
            return []
        if discard:
            self.cache.discard(table, key)
        free = self.cache.release(table)
        self._tell("preempt" if is_preempted else "free", key, table)
        return free

    def _tell(self, op: str, key: int, blocks: Sequence[int]) -> None:
        if self.watcher is not None:
            for index, block in enumerate(blocks):
                self.watcher.on_block(op, key, index, block, self.block_size)

    def reset(self) -> None:
        """No tables, an empty cache, every block free: what is left to do where `check_integrity` found a fault."""
        self._tables.clear()
        self._forked.clear()
        self.cache.reset()
        self.pool.reset()

    def check_integrity(self) -> None:
        """Raise AssertionError unless the reference counts are exactly the holders in tables and cache."""
        self.pool.check_integrity()
        self.cache.check_integrity()
        holders = Counter(block for table in self._tables.values() for block in table)
        forked = Counter(block for key in self._forked for block in self._tables.get(key, ()))
        for block in range(self.pool.num_touched):
            count = holders[block] + (block in self.cache)
            if count != self.pool.ref_count(block):
                raise AssertionError(f"block {block} counts {self.pool.ref_count(block)} holders, but {count} have it")
            if holders[block] - forked[block] > (not forked[block]) and block not in self.cache:
                raise AssertionError(f"block {block} is in {holders[block]} tables, but not in the cache")
        for key, table in self._tables.items():
            if len(set(table)) != len(table):
                raise AssertionError(f"sequence {key} has a block twice in its table")
