"""A reader of the ring: takes records as they come and makes events of them, in its own thread and time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from pellucid.trace.events import Event
from pellucid.trace.jsonl import line_of
from pellucid.trace.ring import TraceRing


class Record(Protocol):
    """What the engine puts into the ring: numbers and arrays that no longer change."""

    @property
    def request_ids(self) -> Collection[str] | None:
        """Whose it is; None: everybody's."""
        ...

    def events(self) -> Iterator[Event]:
        """What it tells, as JSON has it. Takes its time."""
        ...


class TraceReader:
    """A place in the ring, and what its reader may see.

    request_ids: only what concerns these; None: everything. The collection may grow while it is read.
    header: makes the header event.
    """

    def __init__(
        self,
        ring: TraceRing,
        header: Callable[[], Event],
        request_ids: Collection[str] | None = None,
        *,
        from_start: bool = True,
    ) -> None:
        """from_start: begin with the oldest record that is left, rather than with those to come."""
        self._ring = ring
        self._header = header
        self._request_ids = request_ids
        self._place = ring.tail if from_start else ring.head
        self._is_begun = False
        self.num_events = 0
        """Events given so far, the header included."""
        self.num_dropped = 0
        """Records that were gone before they were read, whoever they concerned."""

    def read(self, limit: int | None = None) -> list[Event]:
        """What has come since the last call, the header first; of at most `limit` records."""
        found = [] if self._is_begun else [self._header()]
        self._is_begun = True
        ring, taken = self._ring, 0
        while limit is None or taken < limit:
            if self._place < ring.tail:
                self.num_dropped += ring.tail - self._place
                self._place = ring.tail
            if self._place >= ring.head:
                break
            record: Record | None = ring.read(self._place)
            if record is None:
                continue
            self._place += 1
            taken += 1
            if self._may_see(record):
                found.extend(record.events())
        self.num_events += len(found)
        return found

    def end(self) -> Event:
        """The last event of a trace: how many there were, and how many were lost."""
        return {"type": "end", "dropped": self.num_dropped, "events": self.num_events}

    def lines(self) -> Iterator[str]:
        """The trace so far as JSON lines, the end included."""
        for event in self.read():
            yield line_of(event)
        yield line_of(self.end())

    def _may_see(self, record: Record) -> bool:
        if self._request_ids is None:
            return True
        concerned = record.request_ids
        return concerned is None or any(name in self._request_ids for name in concerned)
