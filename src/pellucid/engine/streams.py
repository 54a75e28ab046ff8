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

    One task at a time reads it. Closing it, dropping it, or cancelling the task that waits for it aborts what is not
    finished.
    """

    def __init__(self, request_ids: Sequence[str], on_abort: Callable[[tuple[str, ...]], None]) -> None:
        """on_abort: ends requests; may be called from any thread, at any time, by the garbage collector too."""
        self.request_ids = tuple(request_ids)
        self.loop = asyncio.get_running_loop()
        self.accepted: asyncio.Future[None] = self.loop.create_future()
        self._on_abort = on_abort
        self._inbox: deque[Message[Item]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        """What the reading task waits for."""
        self._take: Callable[[Item], bool] | None = None
        """Of the task that waits in `pour`."""
        self._num_unread = len(self.request_ids)
        """Requests whose last item has not been read."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while True:
            while not self._inbox:
                if self._num_unread == 0:
                    raise StopAsyncIteration
                await self._wait()
            item = self._read(*self._inbox.popleft())
            if item is not None:
                return item

    async def pour(self, take: Callable[[Item], bool]) -> bool:
        """Hand each item to `take` in the call of the event loop in which it arrives: no task is woken for it.

        Returns after the last item, or after one for which `take` gave False; what comes then is kept. Gives whether
        there is more to come. Raises what `take` raises, and the stream's own errors.
        """
        while self._inbox:
            item = self._read(*self._inbox.popleft())
            if item is not None and not take(item):
                return self._num_unread > 0
        if self._num_unread:
            self._take = take
            try:
                await self._wait()
            finally:
                self._take = None
        return self._num_unread > 0

    async def _wait(self) -> None:
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._waiter = None

    def _wake(self, error: Exception | None = None) -> None:
        if self._waiter is None or self._waiter.done():
            return
        if error is None:
            self._waiter.set_result(None)
        else:
            self._waiter.set_exception(error)

    def _read(self, item: Item | BaseException | None, is_last: bool) -> Item | None:
        """Count a message as read. Raises the error that it is."""
        if isinstance(item, BaseException):
            self._num_unread = 0
            raise item
        self._num_unread -= is_last
        return item

    def _pour_on(self, item: Item | BaseException | None, is_last: bool, take: Callable[[Item], bool]) -> None:
        try:
            item = self._read(item, is_last)
            goes_on = item is None or take(item)
        except Exception as error:  # it is the reading task's; the other streams of the step go on
            self._take = None
            self._wake(error)
            return
        if not (goes_on and self._num_unread):
            self._take = None
            self._wake()

    def abort(self) -> None:
        """End what is not finished; no further items come. The blocks are free before the next step."""
        if self._num_unread:
            self._num_unread = 0
            self._inbox.clear()
            self._wake()
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
        if not self._num_unread or (item is None and not is_last):
            return
        if self._take is not None and self._waiter is not None and not self._waiter.done():
            self._pour_on(item, is_last, self._take)
        else:
            self._inbox.append((item, is_last))
            self._wake()


class DeltaStream(Stream[RequestOutput]):
    """The deltas of one request, or of several that were queued together (told apart by `request_id`).

    Closing it, dropping it, or cancelling the task that waits for it aborts what is not finished.
    """

    def __init__(self, request_ids: Sequence[str], on_abort: Callable[[tuple[str, ...]], None]) -> None:
        super().__init__(request_ids, on_abort)
        self.metrics: dict[str, RequestMetrics] = {}
        """Times of the requests that the engine has taken, by id; they go on until a request ends."""
