"""Work beside the scheduler's: what is no sequence of tokens to be drawn, but uses the model and the KV cache.

A job is an iterator that gives back control after each piece of work; one piece of one job runs after each step, so
that streams go on. It may hold KV blocks between two pieces, but takes them all at once: who waits for blocks holding
some could wait for the scheduler, which waits for those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pellucid.engine.llm_engine import LLMEngine

Job = Callable[[LLMEngine], Iterator[Any]]
"""Begins the work, in the engine's thread. Each item is handed to whoever waits; None is a piece with nothing to tell.
Closing the iterator must free what it holds. One that has an attribute `is_ready` is asked again at once where it is
true: its next piece computes nothing."""
Deliver = Callable[[Any, bool], None]
"""Takes an item, or the error that ended the job, and whether it is the last."""


@dataclass(slots=True)
class _Running:
    name: str
    pieces: Iterator[Any]
    deliver: Deliver


class Jobs:
    """The jobs of one engine, in turns. Used by the engine's thread only."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._running: deque[_Running] = deque()

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, name: str) -> bool:
        return any(job.name == name for job in self._running)

    def begin(self, name: str, job: Job, deliver: Deliver) -> None:
        """Queue a job; its first piece runs when its turn comes."""
        self._running.append(_Running(name, job(self._engine), deliver))
        self._engine.scheduler.is_shared = True

    def run_piece(self) -> None:
        """Let the job whose turn it is go on, and those that only have something to tell.

        A job that raises ends alone; its error is its last item.
        """
        self._go_on(self._running.popleft())
        for job in [job for job in self._running if getattr(job.pieces, "is_ready", False)]:
            self._running.remove(job)
            self._go_on(job)
        self._engine.scheduler.is_shared = bool(self._running)

    def _go_on(self, job: _Running) -> None:
        try:
            item = next(job.pieces)
        except StopIteration:
            job.deliver(None, True)
        except Exception as error:
            job.deliver(error, True)
        else:
            self._running.append(job)
            if item is not None:
                job.deliver(item, False)

    def abort(self, name: str) -> bool:
        """End a job now; whether there was one."""
        for job in self._running:
            if job.name == name:
                self._running.remove(job)
                _close(job.pieces)
                self._engine.scheduler.is_shared = bool(self._running)
                return True
        return False


def _close(pieces: Iterator[Any]) -> None:
    close = getattr(pieces, "close", None)
    if close is not None:
        close()
