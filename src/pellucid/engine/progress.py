"""A progress bar over finished requests, for `LLM.generate` and `LLM.chat`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pellucid.errors import InvalidParameterError, shown

Progress = Callable[[int, int], None]
"""(requests finished, requests in all)."""


class ProgressBar:
    """Context manager that gives a progress function: the caller's own, a bar on stderr, or nothing."""

    def __init__(self, progress: bool | Progress, total: int) -> None:
        if not isinstance(progress, bool) and not callable(progress):
            raise InvalidParameterError("progress", f"progress is {shown(progress)}, but must be a bool or a function")
        self._bar: Any = None
        self._show: Progress = progress if callable(progress) else lambda done, total: None
        if progress is True:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress

            self._bar = bar = RichProgress(
                BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True)
            )
            task = bar.add_task("", total=total)
            self._show = lambda done, total: bar.update(task, completed=done)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
