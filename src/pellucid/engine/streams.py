"""What the engine's thread gives to a task of an event loop: items of one or several requests, or of a job."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from pellucid.outputs import RequestMetrics, RequestOutput

if TYPE_CHECKING:
    from typing import Self

Item = TypeVar("Item")
Message = tuple[Item | BaseException | None, bool]
"""An item, the error that ended everything, or None for nothing to tell; and whether it is its request's last."""


class Stream(AsyncIterator[Item], Generic[Item]):
    """The items of what was queued under `request_ids`.

    Closing it, dropping it, or cancelling the task that waits for it aborts what is not finished.
    """

    def __init__(self, request_ids: Sequence[str], on_abort: Callable[[tuple[str, ...]], None]) -> None:
        """on_abort: ends requests; may be called from any thread, at any time, by the garbage collector too."""
        self.request_ids = tuple(request_ids)
        self.loop = asyncio.get_running_loop()
        self.accepted: asyncio.Future[None] = self.loop.create_future()
        self._on_abort = on_abort
        self._inbox: deque[Message[Item]] = deque()
        self._arrived = asyncio.Event()
        self._num_unread = len(self.request_ids)
        """Requests whose last item has not been read."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while True:
            while not self._inbox:
                if self._num_unread == 0:
                    raise StopAsyncIteration
                self._arrived.clear()
                try:
                    await self._arrived.wait()
                except asyncio.CancelledError:
                    self.abort()
                    raise
            item, is_last = self._inbox.popleft()
            if isinstance(item, BaseException):
                self._num_unread = 0
                raise item
            self._num_unread -= is_last
            if item is not None:
                return item

    def abort(self) -> None:
        """End what is not finished; no further items come. The blocks are free before the next step."""
        if self._num_unread:
            self._num_unread = 0
            self._inbox.clear()
            self._arrived.set()
            self._on_abort(self.request_ids)

    async def aclose(self) -> None:
        """As `abort`."""
        self.abort()

    def __del__(self) -> None:
        if self._num_unread:
            self._num_unread = 0
            self._on_abort(self.request_ids)

    def receive(self, item: Item | BaseException | None, is_last: bool) -> None:
        """Called in the event loop; the first call says that the request is queued, or why it is not."""
        if not self.accepted.done():
            if self._num_unread == 0:  # aborted: nobody waits for the answer
                self.accepted.cancel()
                return
            if isinstance(item, BaseException):
                self._num_unread = 0
                self.accepted.set_exception(item)
                return
            self.accepted.set_result(None)
        if (item is not None or is_last) and self._num_unread:
            self._inbox.append((item, is_last))
            self._arrived.set()


class DeltaStream(Stream[RequestOutput]):
    """The deltas of one request, or of several that were queued together (told apart by `request_id`).

    Closing it, dropping it, or cancelling the task that waits for it aborts what is not finished.
    """

    def __init__(self, request_ids: Sequence[str], on_abort: Callable[[tuple[str, ...]], None]) -> None:
        super().__init__(request_ids, on_abort)
        self.metrics: dict[str, RequestMetrics] = {}
        """Times of the requests that have given something, by id."""

    def receive(self, item: RequestOutput | BaseException | None, is_last: bool) -> None:
        """As `Stream.receive`."""
        if isinstance(item, RequestOutput):
            self.metrics[item.request_id] = item.metrics
        super().receive(item, is_last)
