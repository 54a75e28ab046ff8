"""RequestStream: the deltas of one request of an LLM."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from pellucid.engine.shared_engine import SharedEngine
from pellucid.outputs import RequestOutput

if TYPE_CHECKING:
    from typing import Self


class RequestStream(Iterator[RequestOutput]):
    """The deltas of one request; an iterator that can be closed, and closes itself when dropped."""

    def __init__(self, engine: SharedEngine) -> None:
        self.request_id = ""
        self.inbox: deque[RequestOutput] = deque()
        """Deltas that are not read yet."""
        self._engine = engine
        self._is_done = True

    def queued(self, request_id: str) -> None:
        """The request is in the engine now."""
        self.request_id = request_id
        self._is_done = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> RequestOutput:
        try:
            while not self.inbox and not self._is_done:
                self._engine.step()
        except BaseException:
            self.close()
            raise
        if not self.inbox:
            raise StopIteration
        delta = self.inbox.popleft()
        self._is_done = self._is_done or delta.finished
        return delta

    def close(self) -> None:
        """Abort the request if it is not finished; no further deltas come."""
        if not self._is_done:
            self._is_done = True
            self._engine.abort(self.request_id)
        self.inbox.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._is_done:
            self._is_done = True
            self._engine.drop(self.request_id)
