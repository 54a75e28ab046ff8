"""Ctrl-C takes effect between two steps, so that it finds the queues and block tables whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_after_step() -> Iterator[None]:
    """Hold a SIGINT back until the block ends; a second one is passed on at once.

    Only the main thread may set signal handlers; elsewhere this does nothing, and need not: signals do not
    arrive there.
    """
    previous = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(previous):
        yield
        return
    received: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        received.append((number, frame))
        if len(received) > 1:
            previous(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if len(received) == 1:
            previous(*received[0])
