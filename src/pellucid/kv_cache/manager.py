"""Block tables: which blocks hold the tokens of each sequence, in order. Ints only.

Logical block i of a sequence holds its tokens i · block_size … (i + 1) · block_size − 1. A shared block is always
full and never written again; a sequence only writes blocks that it alone holds.
"""

from __future__ import annotations

from collections import Counter

from pellucid.config import BLOCK_SIZE
from pellucid.kv_cache.block_pool import BlockPool


class KVCacheManager:
    """Grows, shares and frees block tables; sequences are named by int keys.

    Does not know what is computed: the scheduler keeps `num_computed_tokens`.
    """

    __slots__ = ("_tables", "block_size", "pool")

    def __init__(self, num_blocks: int, block_size: int = BLOCK_SIZE) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self._tables: dict[int, list[int]] = {}

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

    def grow(self, key: int, num_tokens: int) -> bool:
        """Make the table long enough for `num_tokens` tokens; False, and no change, when blocks are lacking."""
        table = self._tables.get(key)
        missing = -(-num_tokens // self.block_size) - (0 if table is None else len(table))
        if missing <= 0:
            return True
        blocks = self.pool.allocate(missing)
        if blocks is None:
            return False
        if table is None:
            self._tables[key] = blocks
        else:
            table.extend(blocks)
        return True

    def share(self, source: int, target: int, num_blocks: int) -> None:
        """Start the table of `target`, which has none, with the first `num_blocks` blocks of `source`."""
        blocks = self._tables[source][:num_blocks]
        if self._tables.get(target) or len(blocks) != num_blocks:
            raise AssertionError(f"sequence {target} cannot take {num_blocks} blocks of sequence {source}")
        self.pool.share(blocks)
        self._tables[target] = blocks

    def free(self, key: int) -> list[int]:
        """Drop the sequence's table; gives back the blocks that nobody holds any more."""
        return self.pool.free(self._tables.pop(key, ()))

    def check_integrity(self) -> None:
        """Raise AssertionError unless the reference counts are exactly the holders in the tables."""
        self.pool.check_integrity()
        holders = Counter(block for table in self._tables.values() for block in table)
        for block in range(self.pool.num_blocks):
            if holders[block] != self.pool.ref_count(block):
                raise AssertionError(
                    f"block {block} counts {self.pool.ref_count(block)} holders, but {holders[block]} have it"
                )
        for key, table in self._tables.items():
            if len(set(table)) != len(table):
                raise AssertionError(f"sequence {key} has a block twice in its table")
