"""The memory of the process, as a trace tells it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Protocol

from pellucid.engine.tracing.records import MemRecord
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.kv_cache.storage import KVCacheStorage

RESIDENT_EVERY_NS = 1_000_000_000
"""So often at most the system is asked."""


class MeasuredEngine(Protocol):
    """What is read of an engine."""

    model: Any
    storage: KVCacheStorage
    kv: KVCacheManager


class Memory:
    """Makes a record where the KV cache's use has changed."""

    def __init__(self, engine: MeasuredEngine) -> None:
        self._engine = engine
        self._num_used = -1
        self._resident = 0
        self._asked_ns: int | None = None

    def record(self, *, always: bool) -> MemRecord | None:
        """always: also where the use is what it was."""
        engine = self._engine
        pool, storage = engine.kv.pool, engine.storage
        num_used = pool.num_blocks - engine.kv.num_available
        if num_used == self._num_used and not always:
            return None
        self._num_used = num_used
        now = time.monotonic_ns()
        if self._asked_ns is None or now - self._asked_ns >= RESIDENT_EVERY_NS:
            self._asked_ns, self._resident = now, _resident_bytes()
        return MemRecord(
            t_ns=now,
            weights_bytes=getattr(engine.model, "weight_bytes", 0),
            kv_reserved_bytes=storage.nbytes,
            kv_used_bytes=num_used * (storage.nbytes // pool.num_blocks),
            activations_bytes=getattr(engine.model, "activation_bytes", 0),
            rss_bytes=self._resident,
        )


def _resident_bytes() -> int:
    """Memory of the process that is in the machine's; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
