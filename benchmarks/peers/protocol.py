"""A worker's side of the pipe: one JSON object per line in, one out. Standard library only.

Calls, each with the fields it takes and those of its answer:

    load        path, threads, max_tokens, max_streams      seconds, details
    prepare     streams, tokens (of each)                    –
    generate    prompts, num_tokens                          first_s, total_s, window_s, window_tokens, token_ids
    fidelity    golden, head, limit                          tokens, mean_kl, max_kl, agreement

A call that fails is answered with {"error": …}, and the worker goes on. It ends when its input does. What an engine
prints goes to stderr, so that it can not come between the answers.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Emitted = list[tuple[int, int]]
"""(stream, token id) of each token that one step produced."""
LEAD = 512
"""So many tokens more than are wanted of several streams are asked for: where an engine begins some of them long before
others, all still run while the last one makes its own."""
SHOWN_TOKENS = 16
"""First tokens of each stream that an answer holds: enough to see that two engines run the same model."""


class Engine(Protocol):
    """One engine, as a worker drives it."""

    def load(self, path: Path, threads: int, max_tokens: int, max_streams: int) -> dict[str, str]:
        """Get ready to serve that many tokens of context in all; gives back versions and settings worth printing."""
        ...

    def prepare(self, streams: int, tokens: int) -> None:
        """The next calls have so many streams of at most so many tokens each."""
        ...

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Generator[Emitted]:
        """Greedy, `num_tokens` for every prompt whatever they are; yields after each step.

        Whoever iterates may stop: what is unfinished then is given up.
        """
        ...

    def logits(self, token_ids: list[int]) -> Iterator[Any]:
        """Logits of one sequence as float32 arrays [R, vocab], at most 128 rows at a time."""
        ...


@dataclass(slots=True)
class Clock:
    """Times of one generation, fed step by step.

    The window opens when every stream has its first token and closes when all have `num_tokens`, or when one has
    `most`, its last: all streams run in it, so its tokens per second are those of a full batch.
    """

    num_streams: int
    num_tokens: int
    most: int
    begin: float
    token_ids: list[list[int]] = field(init=False)
    first: float = 0.0
    end: float = 0.0
    window_tokens: int = 0
    _num_started: int = 0

    def __post_init__(self) -> None:
        self.token_ids = [[] for _ in range(self.num_streams)]

    @property
    def is_over(self) -> bool:
        """Whether the window has closed."""
        lengths = [len(ids) for ids in self.token_ids]
        return min(lengths) >= self.num_tokens or max(lengths) >= self.most

    def add(self, emitted: Emitted, now: float) -> None:
        """Take in one step that ended at `now`."""
        was_full = self._num_started == self.num_streams
        for stream, token_id in emitted:
            ids = self.token_ids[stream]
            self._num_started += not ids
            ids.append(token_id)
        if was_full:
            self.window_tokens += len(emitted)
        elif self._num_started == self.num_streams:
            self.first = now
        self.end = now

    def answer(self) -> dict[str, Any]:
        """The answer to `generate`. Raises `RuntimeError` when there was no time in which all streams ran."""
        if self._num_started < self.num_streams or (self.num_tokens > 1 and not self.window_tokens):
            shortest = min(len(ids) for ids in self.token_ids)
            raise RuntimeError(
                f"{self.num_streams} streams never ran together: one had {self.most} tokens when the last "
                f"had {shortest}"
            )
        return {
            "first_s": self.first - self.begin,
            "total_s": self.end - self.begin,
            "window_s": self.end - self.first,
            "window_tokens": self.window_tokens,
            "token_ids": [ids[:SHOWN_TOKENS] for ids in self.token_ids],
        }


def timed(engine: Engine, prompts: list[list[int]], num_tokens: int) -> dict[str, Any]:
    """Generate and measure. Raises `RuntimeError` when the engine ends before every stream has its tokens."""
    most = num_tokens if len(prompts) == 1 else num_tokens + LEAD
    clock = Clock(len(prompts), num_tokens, most, time.perf_counter())
    with closing(engine.generate(prompts, most)) as steps:
        for emitted in steps:
            clock.add(emitted, time.perf_counter())
            if clock.is_over and most > num_tokens:
                break  # else it ends by itself, and what it keeps for the next call is whole
    if not clock.is_over:
        shortest = min(len(ids) for ids in clock.token_ids)
        raise RuntimeError(f"the engine ended with {shortest} of {num_tokens} tokens")
    return clock.answer()


def answer(engine: Engine, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request."""
    name = request["call"]
    if name == "load":
        begin = time.perf_counter()
        details = engine.load(Path(request["path"]), request["threads"], request["max_tokens"], request["max_streams"])
        return {"seconds": time.perf_counter() - begin, "details": details}
    if name == "prepare":
        engine.prepare(request["streams"], request["tokens"])
        return {}
    if name == "generate":
        return timed(engine, request["prompts"], request["num_tokens"])
    if name == "fidelity":
        from benchmarks.peers.fidelity import compare

        return compare(engine, Path(request["golden"]), Path(request["head"]), request["limit"])
    raise ValueError(f"unknown call {name!r}")


def serve(engine: Engine) -> None:
    """Answer calls until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        try:
            result = answer(engine, json.loads(line))
        except BaseException as error:  # an engine may raise anything; the run must go on without it
            if isinstance(error, KeyboardInterrupt):
                return
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(result) + "\n")
        answers.flush()
