"""A ring buffer of records: one thread writes, any number of readers follow at their own pace, nobody waits.

The newest records are kept: at most `capacity` of them, and at most `max_bytes` of what they refer to. A reader who
falls behind is told how many records it has missed.
"""

from __future__ import annotations

from typing import Any

DEFAULT_CAPACITY = 1 << 16
DEFAULT_MAX_BYTES = 256 * 1024**2


class TraceRing:
    """Places numbered from 0; those from `tail` to `head` − 1 are there.

    Needs no lock: under the interpreter's own, storing a reference is whole. The writer moves `tail` before it empties
    a place and `head` after it has filled one; a reader looks at `tail` again after it has read.
    """

    __slots__ = ("_nbytes", "_slots", "capacity", "head", "max_bytes", "tail")

    def __init__(self, capacity: int = DEFAULT_CAPACITY, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.capacity = capacity
        self.max_bytes = max_bytes
        self._slots: list[Any] = [None] * capacity
        self._nbytes = 0
        self.head = 0
        self.tail = 0

    def append(self, record: Any, nbytes: int = 0) -> None:
        """Keep a record that refers to `nbytes` of arrays and texts; the oldest go where there is no room."""
        while self.head - self.tail >= self.capacity or (
            self._nbytes + nbytes > self.max_bytes and self.tail < self.head
        ):
            self._drop()
        self._slots[self.head % self.capacity] = (record, nbytes)
        self._nbytes += nbytes
        self.head += 1

    def _drop(self) -> None:
        place = self.tail % self.capacity
        self._nbytes -= self._slots[place][1]
        self.tail += 1
        self._slots[place] = None

    def read(self, place: int) -> Any:
        """The record at a place from `tail` to `head` − 1; None where it has been dropped meanwhile."""
        slot = self._slots[place % self.capacity]
        return None if slot is None or self.tail > place else slot[0]
