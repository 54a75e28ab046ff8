"""Which KV blocks are free, and how many hold each of the others. Ints only.

The block freed last is handed out first, and a block never used only when no freed one is left, lowest number
first: the memory touched is then the most ever in use at one time, not the size of the pool.
"""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """`num_blocks` blocks with reference counts. Every change is complete when the call returns."""

    __slots__ = ("_freed", "_num_touched", "_ref_counts", "num_blocks")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._freed: list[int] = []
        self._num_touched = 0

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can still hand out."""
        return len(self._freed) + self.num_blocks - self._num_touched

    @property
    def num_touched(self) -> int:
        """Blocks that were ever handed out: what the pool costs in memory."""
        return self._num_touched

    def ref_count(self, block: int) -> int:
        """How many tables hold the block; 0 when it is free."""
        return self._ref_counts[block]

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with reference count 1, or None (and no change) when there are not so many."""
        if count > self.num_free:
            return None
        blocks = [self._freed.pop() for _ in range(min(count, len(self._freed)))]
        fresh = count - len(blocks)
        blocks.extend(range(self._num_touched, self._num_touched + fresh))
        self._num_touched += fresh
        for block in blocks:
            self._ref_counts[block] = 1
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each block; they must be in use."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                raise AssertionError(f"block {block} is free and cannot be shared")
            self._ref_counts[block] += 1

    def free(self, blocks: Iterable[int]) -> list[int]:
        """One holder less for each block; gives back those that nobody holds any more."""
        released: list[int] = []
        for block in blocks:
            if self._ref_counts[block] == 0:
                raise AssertionError(f"block {block} is freed twice")
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                released.append(block)
        self._freed.extend(reversed(released))
        return released

    def reset(self) -> None:
        """Every block is free, whoever held it."""
        self._ref_counts = [0] * self.num_blocks
        self._freed = list(range(self._num_touched - 1, -1, -1))

    def check_integrity(self) -> None:
        """Raise AssertionError when a block is lost, doubly free, or both free and held."""
        free = set(self._freed)
        if len(free) != len(self._freed):
            raise AssertionError("a block is twice in the free list")
        if any(self._ref_counts[self._num_touched :]):
            raise AssertionError("a block that was never handed out has holders")
        for block in range(self._num_touched):
            count, is_free = self._ref_counts[block], block in free
            if count < 0 or (count == 0) != is_free:
                raise AssertionError(f"block {block} has {count} holders and is {'free' if is_free else 'not free'}")
