"""Fills the masks of a step's constrained answers: beside the model where a core is free, else before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pellucid.request import TokenConstraint

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


class MaskWorker:
    """With `overlaps`, one thread, started with the first constrained answer; llguidance computes without the GIL.

    Where the kernels' threads have every core, a thread more would only make them wait for one of their own: a mask of
    20 to 100 µs then took 600.
    """

    def __init__(self, *, overlaps: bool) -> None:
        self.overlaps = overlaps
        self._executor: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

    def start(self, constraints: Sequence[TokenConstraint]) -> None:
        """Fill the masks, or begin to: nobody else may touch the constraints until `wait`."""
        if not constraints:
            return
        if not self.overlaps:
            _fill(constraints)
            return
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(1, thread_name_prefix="pellucid-masks")
        self._pending = self._executor.submit(_fill, constraints)

    def wait(self) -> None:
        """Return when all masks are filled."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


def _fill(constraints: Sequence[TokenConstraint]) -> None:
    for constraint in constraints:
        constraint.fill_mask()
