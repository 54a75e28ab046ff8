"""Work on a stack of a size of its own, for recursion that is as deep as its input."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from pellucid.errors import BackendError, NotEnoughMemoryError

T = TypeVar("T")
_setting = threading.Lock()


def on_deep_stack(work: Callable[[], T], stack_bytes: int) -> T:
    """What `work` returns or raises, in a thread with a stack of so many bytes: address space, of which only what is
    touched becomes memory. Raises `NotEnoughMemoryError` where the system gives no such thread."""
    outcome: list[T] = []
    failure: list[BaseException] = []
    is_done = threading.Event()

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)
        finally:
            is_done.set()

    try:
        _start(run, stack_bytes)
    except RuntimeError as error:
        raise NotEnoughMemoryError(f"the system gave no thread with a stack of {stack_bytes >> 20} MiB") from error
    is_done.wait()
    if failure:
        raise failure[0]
    return outcome[0]


def _start(run: Callable[[], None], stack_bytes: int) -> None:
    try:
        from pellucid.kernels.native import start_thread
    except (BackendError, ImportError):  # the latter where another thread tries just now
        # Without the compiled kernels: Python's own stack size is one setting for all threads of the process, so that
        # one started elsewhere just now would get the deep stack too.
        with _setting:
            before = threading.stack_size(stack_bytes)
            try:
                threading.Thread(target=run, daemon=True).start()
            finally:
                threading.stack_size(before)
    else:
        start_thread(run, stack_bytes)
