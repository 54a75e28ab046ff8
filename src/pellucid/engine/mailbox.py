"""Mailbox: the way from the engine's thread into one event loop, taken once a step."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

Mail = TypeVar("Mail")


class Mailbox(Generic[Mail]):
    """Calls `open_mail` in the loop with what was put.

    asyncio's own way wakes the loop by a socket, which it reads twice, and makes a handle. Where the system has
    eventfd this way takes one write and one read; every further call is one at which the threads may change places.
    """

    def __init__(self, open_mail: Callable[[Mail], None]) -> None:
        self._open_mail = open_mail
        self._mail: deque[Mail] = deque()
        self._bell: int | None = None
        """The eventfd, once the loop listens to it."""

    def put(self, loop: asyncio.AbstractEventLoop, mail: Mail) -> None:
        """From one thread, always with the same loop. Raises RuntimeError where the loop is closed."""
        self._mail.append(mail)
        if loop.is_closed():
            self._mail.clear()
            raise RuntimeError("the event loop is closed")
        if self._bell is None:
            loop.call_soon_threadsafe(self._listen, loop)
        else:
            os.eventfd_write(self._bell, 1)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """The last call of that thread."""
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._end, loop)

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._bell is None and hasattr(os, "eventfd"):
            bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            try:
                loop.add_reader(bell, self._answer)
                self._bell = bell
            except NotImplementedError:
                os.close(bell)
        self._open_all()

    def _answer(self) -> None:
        assert self._bell is not None
        os.eventfd_read(self._bell)
        self._open_all()

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._open_all()
        if self._bell is not None:
            loop.remove_reader(self._bell)

    def _open_all(self) -> None:
        while self._mail:
            self._open_mail(self._mail.popleft())

    def __del__(self) -> None:
        """The loop, which holds this object while it listens, does so no more."""
        if self._bell is not None:
            os.close(self._bell)
