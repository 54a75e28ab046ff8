"""Fills the masks of a step's constrained answers while the model computes the step."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from pellucid.request import TokenConstraint


class MaskWorker:
    """One thread, started with the first constrained answer. llguidance computes without the GIL."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

    def start(self, constraints: Sequence[TokenConstraint]) -> None:
        """Begin to fill the masks; nobody else may touch the constraints until `wait`."""
        if constraints:
            if self._executor is None:
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
