"""What happens to KV blocks, and what is in them: by hashes of all tokens from the start to a block's end."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pellucid.kv_cache.radix_cache import CachedNode, RadixCache
from pellucid.request import Request
from pellucid.trace.events import Event


def _hash(before: str, token_ids: Sequence[int]) -> str:
    return hashlib.sha256(before.encode() + np.asarray(token_ids, dtype="<i4").tobytes()).hexdigest()[:16]


class BlockPath:
    """A block's place in the prefix cache; its hash is made when a reader asks."""

    __slots__ = ("_hash", "_token_ids", "parent")

    def __init__(self, parent: BlockPath | None, token_ids: Sequence[int]) -> None:
        self.parent = parent
        self._token_ids = token_ids
        self._hash: str | None = None

    @property
    def hash(self) -> str:
        """Of the tokens from the start to the block's end."""
        pending: list[BlockPath] = []
        path: BlockPath | None = self
        while path is not None and path._hash is None:
            pending.append(path)
            path = path.parent
        before = "" if path is None or path._hash is None else path._hash
        for one in reversed(pending):
            one._hash = before = _hash(before, one._token_ids)
        return before


class CachedPaths:
    """Paths of the blocks that the prefix cache has, kept while requests are traced: an evicted block has none left."""

    def __init__(self, cache: RadixCache) -> None:
        self._cache = cache
        self._nodes = cache.blocks()
        self._paths: dict[int, BlockPath] = {}

    def cached(self, block: int) -> None:
        """A block was put into the cache."""
        found = self._cache.block(block)
        self._paths.pop(block, None)
        if found is not None:
            self._nodes[block] = found

    def evicted(self, block: int) -> BlockPath | None:
        """A block has gone; gives back where it was."""
        path = self.of(block)
        self._nodes.pop(block, None)
        self._paths.pop(block, None)
        return path

    def of(self, block: int) -> BlockPath | None:
        """Where a block is; None for one that is not in the cache."""
        known = self._paths.get(block)
        if known is not None:
            return known
        pending: list[tuple[int, CachedNode]] = []
        at: int | None = block
        while at is not None and at not in self._paths:
            node = self._nodes.get(at)
            if node is None:
                return None
            pending.append((at, node))
            at = node.parent
        path = None if at is None else self._paths[at]
        for at, node in reversed(pending):
            path = self._paths[at] = BlockPath(path, node.token_ids)
        return path


class BlockHashes:
    """Hashes of the full blocks of one sequence: each of its tokens and the hash before it, 16 hexadecimal digits."""

    __slots__ = ("_known", "_request", "_size")

    def __init__(self, request: Request, block_size: int) -> None:
        self._request = request
        self._size = block_size
        self._known: list[str] = []

    def of(self, index: int) -> str | None:
        """Of block `index`; None before the first, or where the tokens are not all known."""
        known = list(self._known)
        while len(known) <= index:
            ids = self._request.tokens_between(len(known) * self._size, (len(known) + 1) * self._size)
            if len(ids) < self._size:
                return None
            before = known[-1] if known else ""
            known.append(_hash(before, ids))
        self._known = known
        return known[index] if index >= 0 else None


@dataclass(slots=True, eq=False)
class KvOperation:
    """What happened to one block."""

    t_ns: int
    op: str
    key: int | None
    index: int
    """Which of the sequence's blocks it is; −1 where that is not known."""
    block: int
    ref: int
    num_tokens: int
    request: Request | None = None
    hashes: BlockHashes | None = None
    path: BlockPath | None = None
    """Where it stood in the prefix cache, for what went."""


@dataclass(slots=True, eq=False)
class KvRecord:
    """What happened to KV blocks since the last record."""

    operations: list[KvOperation]
    block_size: int
    request_ids: Collection[str] | None = field(default=None)

    @property
    def nbytes(self) -> int:
        return 128 * len(self.operations)

    def events(self) -> Iterator[Event]:
        for one in self.operations:
            own, parent = _hashes_of(one)
            yield {
                "type": "kv",
                "t_ns": one.t_ns,
                "op": one.op,
                "block": one.block,
                "hash": own,
                "parent": parent,
                "req": None if one.request is None else one.request.request_id,
                "ref": one.ref,
                "tok0": one.index * self.block_size if one.index >= 0 else None,
                "n": one.num_tokens,
            }


def _hashes_of(one: KvOperation) -> tuple[str | None, str | None]:
    if one.path is not None:
        return one.path.hash, None if one.path.parent is None else one.path.parent.hash
    if one.op not in ("hit", "share", "cache") or one.hashes is None:
        return None, None
    return one.hashes.of(one.index), one.hashes.of(one.index - 1) if one.index > 0 else None


@dataclass(slots=True, eq=False)
class HeldTable:
    """The blocks of one sequence at a moment."""

    request: Request | None
    num_tokens: int
    blocks: list[int]
    refs: list[int]
    paths: list[BlockPath | None]


@dataclass(slots=True, eq=False)
class HeldRecord:
    """The blocks in use when the tracing of a request began."""

    t_ns: int
    tables: list[HeldTable]
    block_size: int
    request_ids: Collection[str] | None

    @property
    def nbytes(self) -> int:
        return sum(24 * len(table.blocks) for table in self.tables)

    def events(self) -> Iterator[Event]:
        size = self.block_size
        for table in self.tables:
            for index, (block, ref, path) in enumerate(zip(table.blocks, table.refs, table.paths, strict=True)):
                yield {
                    "type": "kv",
                    "t_ns": self.t_ns,
                    "op": "held",
                    "block": block,
                    "hash": None if path is None else path.hash,
                    "parent": None if path is None or path.parent is None else path.parent.hash,
                    "req": None if table.request is None else table.request.request_id,
                    "ref": ref,
                    "tok0": index * size,
                    "n": max(0, min(size, table.num_tokens - index * size)) if table.request is not None else size,
                }
