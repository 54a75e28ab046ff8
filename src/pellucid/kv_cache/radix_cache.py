"""Which computed blocks are kept for later, found again by the tokens they hold. Ints and lists only.

A tree with one node for each full block: the path from the root spells the tokens from position 0 on, so a block
is found only by all the ids before it and its own. (A radix tree whose edges are cut at blocks: a prefix is shared
block by block, never in the middle of one.) Every cache key has a root of its own: what is under another salt, KV
type or precision is never seen. Ids are compared on a hit, not hashes of them: there is no collision that could give
a request another text's keys and values.

Who owns what: the tree holds one reference of the `BlockPool` on each of its blocks, and every user (a block table)
one more. A block with the tree's reference alone is evictable. Users hold whole paths, so what is below a block
without users has none either, and evicting leaf by leaf can always reach all that is evictable.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pellucid.kv_cache.block_pool import BlockPool

CacheKey = tuple[str, ...]
"""What a prefix must have in common besides its ids: salt, KV type, precision."""
_Children = dict[tuple[int, ...], int]
"""The ids of the next block -> that block."""


class CachedBlock(NamedTuple):
    """A block and its place in the tree."""

    block: int
    key: CacheKey
    parent: int | None
    token_ids: tuple[int, ...]


class CachedNode:
    """One cached block. Ids, parent and key never change."""

    __slots__ = ("children", "key", "last_used", "owner", "parent", "token_ids")

    def __init__(self, key: CacheKey, parent: int | None, token_ids: tuple[int, ...], owner: int) -> None:
        self.key = key
        self.parent = parent
        self.token_ids = token_ids
        self.owner = owner
        self.children: _Children = {}
        self.last_used = 0


class RadixCache:
    """The tree over full blocks. Every change is complete when the call returns."""

    __slots__ = ("_clock", "_leaves", "_nodes", "_num_evictable", "_pool", "_roots", "block_size", "num_evicted")

    def __init__(self, pool: BlockPool, block_size: int = 16) -> None:
        self.block_size = block_size
        self._pool = pool
        self._nodes: dict[int, CachedNode] = {}
        self._roots: dict[CacheKey, _Children] = {}
        self._num_evictable = 0
        self.num_evicted = 0
        """Blocks that `evict` has given back so far."""
        self._clock = 0
        self._leaves: list[tuple[int, int]] = []
        """Heap of (last used, block): every evictable leaf is in it; entries that are out of date are skipped."""

    def __len__(self) -> int:
        """Blocks in the tree, used or not."""
        return len(self._nodes)

    def __contains__(self, block: int) -> bool:
        return block in self._nodes

    def blocks(self) -> dict[int, CachedNode]:
        """What each cached block holds; a copy."""
        return dict(self._nodes)

    def block(self, block: int) -> CachedNode | None:
        """What a block holds; None where it is not cached."""
        return self._nodes.get(block)

    @property
    def num_evictable(self) -> int:
        """Blocks that nobody uses: `evict` can give them all back."""
        return self._num_evictable

    def match(self, key: CacheKey, tokens_between: Callable[[int, int], Sequence[int]], num_tokens: int) -> list[int]:
        """The cached blocks of the first `num_tokens` tokens, as many full ones as there are. Changes nothing.

        The blocks may be evicted until `acquire` is called for them; call it before anything else.
        """
        children, size = self._roots.get(key), self.block_size
        blocks: list[int] = []
        for end in range(size, num_tokens + 1, size):
            block = None if not children else children.get(tuple(tokens_between(end - size, end)))
            if block is None:
                break
            blocks.append(block)
            children = self._nodes[block].children
        return blocks

    def num_unused(self, blocks: Iterable[int]) -> int:
        """How many of these cached blocks nobody uses: what taking them costs in evictable blocks."""
        return sum(self._pool.ref_count(block) == 1 for block in blocks)

    def acquire(self, blocks: Sequence[int]) -> None:
        """One more user for each block; safe from eviction from now on. Give whole paths from the root only."""
        self._num_evictable -= self.num_unused(blocks)
        self._pool.share(blocks)

    def insert(self, key: CacheKey, parent: int | None, token_ids: Sequence[int], block: int, owner: int) -> int:
        """Keep a full, computed block that its user `owner` goes on using; `parent` is the block before it.

        Gives back the block that stands for these tokens from now on: the given one, or the one that the tree had
        already, which then has one more user. In that case the caller still holds its own block, and frees it.
        """
        ids = tuple(token_ids)
        if parent is None:
            children = self._roots.setdefault(key, {})
        else:
            children = self._nodes[parent].children
        known = children.get(ids)
        if known is not None:
            self.acquire((known,))
            return known
        children[ids] = block
        self._nodes[block] = CachedNode(key, parent, ids, owner)
        self._pool.share((block,))
        return block

    def release(self, blocks: Sequence[int]) -> list[int]:
        """One user less for each block of a table, cached or not.

        Cached blocks stay until they are evicted; gives back the others that nobody holds any more: they are free.
        """
        self._clock += 1
        free = self._pool.free(blocks)
        for block in blocks:
            node = self._nodes.get(block)
            if node is None:
                continue
            node.last_used = self._clock
            if self._pool.ref_count(block) == 1:
                self._num_evictable += 1
                if not node.children:
                    self._push_leaf(block, node)
        return free

    def evict(self, count: int) -> list[int]:
        """Free `count` blocks, the least recently used leaf first; gives them back. There must be so many."""
        if count > self._num_evictable:
            raise AssertionError(f"{count} blocks are to be evicted, but only {self._num_evictable} can be")
        self.num_evicted += count
        evicted: list[int] = []
        while len(evicted) < count:
            last_used, block = heapq.heappop(self._leaves)
            if self._is_evictable_leaf(last_used, block):
                self._remove(block)
                evicted.append(block)
        return evicted

    def discard(self, blocks: Sequence[int], owner: int) -> None:
        """Forget those blocks of a table that `owner` put in and that nobody else uses or has built upon."""
        for block in reversed(blocks):
            node = self._nodes.get(block)
            if node is None:
                continue
            if node.owner != owner or node.children or self._pool.ref_count(block) != 2:
                break
            self._num_evictable += 1  # the owner's own reference goes with its table
            self._remove(block)

    def forget(self, key: CacheKey) -> None:
        """Free every block under the key; nobody may use them any more."""
        blocks = list(self._roots.get(key, {}).values())
        for block in blocks:
            blocks.extend(self._nodes[block].children.values())
        for block in reversed(blocks):
            self._remove(block)

    def nodes(self) -> list[CachedBlock]:
        """All cached blocks, the most recently used first, every parent before its children."""
        found = [(-node.last_used, block, node) for block in self._walk() if (node := self._nodes[block])]
        found.sort(key=lambda entry: entry[0])  # a parent is used whenever a child is, and stands before it
        return [CachedBlock(block, node.key, node.parent, node.token_ids) for _, block, node in found]

    def reset(self) -> None:
        """Forget all blocks, and hold none: for a pool that is reset, too."""
        self._nodes, self._roots, self._leaves, self._num_evictable = {}, {}, [], 0

    def check_integrity(self) -> None:
        """Raise AssertionError when tree, reference counts and the list of leaves do not belong together."""
        reached = list(self._walk())
        if len(reached) != len(self._nodes) or set(reached) != self._nodes.keys():
            raise AssertionError(f"{len(self._nodes)} blocks are cached, but {len(reached)} are in the tree")
        leaves = set(self._leaves)
        num_unused = 0
        for block, node in self._nodes.items():
            users = self._pool.ref_count(block) - 1
            if users < 0:
                raise AssertionError(f"block {block} is cached, but free")
            if node.parent is not None and self._pool.ref_count(node.parent) - 1 < users:
                raise AssertionError(f"block {block} has more users than the block before it")
            if len(node.token_ids) != self.block_size:
                raise AssertionError(f"block {block} is cached with {len(node.token_ids)} tokens")
            num_unused += users == 0
            if users == 0 and not node.children and (node.last_used, block) not in leaves:
                raise AssertionError(f"block {block} could be evicted, but would not be found")
        if num_unused != self._num_evictable:
            raise AssertionError(f"{num_unused} cached blocks have no user, but {self._num_evictable} are counted")

    def _walk(self) -> Iterable[int]:
        """Every block from the roots down, each with the parent and the key that its place implies."""
        pending: list[tuple[CacheKey, int | None, _Children]] = [(key, None, c) for key, c in self._roots.items()]
        while pending:
            key, parent, children = pending.pop()
            if parent is None and not children:
                raise AssertionError(f"the key {key} has a root, but no blocks")
            for ids, block in children.items():
                node = self._nodes[block]
                if (node.key, node.parent, node.token_ids) != (key, parent, ids):
                    raise AssertionError(f"block {block} is not where it says it is")
                yield block
                pending.append((key, block, node.children))

    def _is_evictable_leaf(self, last_used: int, block: int) -> bool:
        node = self._nodes.get(block)
        return (
            node is not None and node.last_used == last_used and not node.children and self._pool.ref_count(block) == 1
        )

    def _push_leaf(self, block: int, node: CachedNode) -> None:
        if len(self._leaves) > 2 * len(self._nodes) + 64:  # mostly out of date: a prefix that is used again and again
            self._leaves = [entry for entry in set(self._leaves) if self._is_evictable_leaf(*entry)]
            heapq.heapify(self._leaves)
        heapq.heappush(self._leaves, (node.last_used, block))

    def _remove(self, block: int) -> None:
        """Take out a leaf that is counted as evictable."""
        node = self._nodes.pop(block)
        self._num_evictable -= 1
        if node.parent is not None:
            parent = self._nodes[node.parent]
            del parent.children[node.token_ids]
            if not parent.children and self._pool.ref_count(node.parent) == 1:
                self._push_leaf(node.parent, parent)
        else:
            root = self._roots[node.key]
            del root[node.token_ids]
            if not root:
                del self._roots[node.key]
        self._pool.free((block,))
