"""How a long fetch is told. The command line draws a bar; a Python caller gets a few plain lines, or silence."""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO

LINE_INTERVAL_SECONDS = 5.0


class Progress(Protocol):
    """Told what is going on; `start`, any number of `update`, `finish`, and again for the next stage."""

    def start(self, label: str, total: int) -> None:
        """A stage begins that will handle `total` bytes."""
        ...

    def update(self, done: int) -> None:
        """So many bytes of the stage are done."""
        ...

    def finish(self) -> None:
        """The stage is over, whole or not."""
        ...

    def note(self, text: str) -> None:
        """One line worth knowing."""
        ...


class SilentProgress:
    """Says nothing."""

    def start(self, label: str, total: int) -> None:
        pass

    def update(self, done: int) -> None:
        pass

    def finish(self) -> None:
        pass

    def note(self, text: str) -> None:
        pass


class LineProgress:
    """Plain lines: one as a stage begins, one every few seconds, one as it ends."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._label = ""
        self._total = 0
        self._done = 0
        self._began = self._told = 0.0

    def start(self, label: str, total: int) -> None:
        self._label, self._total, self._done = label, total, 0
        self._began = self._told = time.monotonic()
        self.note(f"{label} ({format_bytes(total)}) …")

    def update(self, done: int) -> None:
        self._done = done
        now = time.monotonic()
        if now - self._told >= LINE_INTERVAL_SECONDS:
            self._told = now
            self.note(f"{self._label}: {format_bytes(done)} of {format_bytes(self._total)}")

    def finish(self) -> None:
        seconds = time.monotonic() - self._began
        if seconds >= 1.0 and self._done:
            self.note(f"{self._label}: {format_bytes(self._done)} in {seconds:.1f} s")

    def note(self, text: str) -> None:
        print(text, file=self._stream or sys.stderr, flush=True)


def format_bytes(count: int | float) -> str:
    """Bytes for people, in powers of 1000 as disks and downloads are sold: `98.4 MB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")
