"""A reader of the ring: takes records as they come and makes events of them, in its own thread and time."""

from __future__ import annotations

from base64 import b64encode
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
    piece_of: the bytes of a token, for the ids that `sample` and `layer` name; the reader gets each once.
    """

    def __init__(
        self,
        ring: TraceRing,
        header: Callable[[], Event],
        request_ids: Collection[str] | None = None,
        piece_of: Callable[[int], bytes] | None = None,
        *,
        from_start: bool = True,
        begin: int | None = None,
    ) -> None:
        """from_start: begin with the oldest record that is left, rather than with those to come.

        begin: the place from which records are wanted; those of them that are gone count as lost.
        """
        self._ring = ring
        self._header = header
        self._request_ids = request_ids
        self._piece_of = piece_of
        self._told: set[int] = set()
        """Ids whose bytes the reader has."""
        self._place = begin if begin is not None else ring.tail if from_start else ring.head
        self._is_begun = False
        self.num_events = 0
        """Events given so far, the header included."""
        self.num_dropped = 0
        """Records that were gone before they were read, whoever they concerned."""

    def read(self, limit: int | None = None) -> list[Event]:
        """What has come since the last call, the header first; of at most `limit` records.

        Where records are lost, a `dropped` event says how many.
        """
        found = [] if self._is_begun else [self._header()]
        self._is_begun = True
        ring, taken = self._ring, 0
        while limit is None or taken < limit:
            if self._place < ring.tail:
                tail = ring.tail  # once: the writer moves it meanwhile
                self.num_dropped += tail - self._place
                found.append({"type": "dropped", "records": tail - self._place})
                self._place = tail
            if self._place >= ring.head:
                break
            record: Record | None = ring.read(self._place)
            if record is None:
                continue
            self._place += 1
            taken += 1
            if self._may_see(record):
                events = list(record.events())
                found += self._pieces(events)
                found += events
        self.num_events += len(found)
        return found

    @property
    def has_more(self) -> bool:
        """Whether `read` would give or look at anything."""
        return not self._is_begun or self._place < self._ring.head

    def end(self) -> Event:
        """The last event of a trace: how many there were, and how many were lost."""
        return {"type": "end", "dropped": self.num_dropped, "events": self.num_events}

    def lines(self) -> Iterator[str]:
        """The trace so far as JSON lines, the end included."""
        for event in self.read():
            yield line_of(event)
        yield line_of(self.end())

    def _pieces(self, events: list[Event]) -> list[Event]:
        """The bytes of ids that come for the first time."""
        if self._piece_of is None:
            return []
        named = {token_id for event in events for token_id in _ids_in(event)} - self._told
        if not named:
            return []
        self._told |= named
        pieces = {str(i): b64encode(self._piece_of(i)).decode("ascii") for i in sorted(named)}
        return [{"type": "pieces", "bytes_b64": pieces}]

    def _may_see(self, record: Record) -> bool:
        if self._request_ids is None:
            return True
        concerned = record.request_ids
        return concerned is None or any(name in self._request_ids for name in concerned)


def _ids_in(event: Event) -> Iterator[int]:
    """The ids of tokens that an event names without their bytes."""
    if event["type"] == "sample":
        for stage in event["stages"]:
            yield from (token_id for token_id, _, _ in stage["top"])
    elif event["type"] == "layer" and event["lens"] is not None:
        yield from event["lens"]["ids"]
    elif event["type"] == "spec":
        yield from event["draft"]
