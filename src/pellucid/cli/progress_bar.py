"""The bar of a fetch: bytes, speed and time left, on stderr."""

from __future__ import annotations

import sys
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # rich is imported when there is something to draw: most runs find their model in place
    from rich.console import Console
    from rich.progress import Progress, TaskID


FULL_WIDTH = 80
"""Columns that all parts of the bar need."""


class ProgressBar:
    """Draws each stage of a fetch as a bar that stays on the screen; `model_store.progress.Progress` in rich."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        return Console(file=sys.stderr, highlight=False)

    def start(self, label: str, total: int) -> None:
        from rich import progress

        columns: list[progress.ProgressColumn] = [
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
        ]
        if self._console.width < FULL_WIDTH:  # a line that wraps would be drawn again and again
            columns = [columns[0], columns[2]]
        self._bar = progress.Progress(*columns, console=self._console)
        self._bar.start()
        self._task = self._bar.add_task(label, total=total)

    def update(self, done: int) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)

    def finish(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
