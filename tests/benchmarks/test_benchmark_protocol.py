"""The worker's side: what the clock counts, what a call answers, that errors and prints do no harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers.pellucid.worker import PellucidEngine
from benchmarks.peers.protocol import SHOWN_TOKENS, Clock, Emitted, answer, timed

ROOT = Path(__file__).resolve().parents[2]


class StepEngine:
    """Gives every stream one token a step, its prompt's first id each time."""

    def load(self, path: Path, threads: int, max_tokens: int, max_streams: int) -> dict[str, str]:
        return {"path": path.name, "threads": str(threads)}

    def prepare(self, streams: int, tokens: int) -> None:
        self.prepared = (streams, tokens)

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Generator[Emitted]:
        for _ in range(num_tokens):
            yield [(stream, prompt[0]) for stream, prompt in enumerate(prompts)]

    def logits(self, token_ids: list[int]) -> Iterator[Any]:
        raise NotImplementedError("no logits here")


def test_the_window_opens_when_all_have_a_token_and_closes_when_all_have_theirs() -> None:
    clock = Clock(num_streams=2, num_tokens=3, most=12, begin=10.0)
    for now in (10.5, 11.0, 11.5):
        clock.add([(0, 7)], now)
    clock.add([(0, 7), (1, 8)], 12.0)  # now both have begun; what came so far is not in the window
    clock.add([(0, 7), (1, 8)], 13.5)
    assert not clock.is_over
    clock.add([(0, 7), (1, 8)], 14.0)
    assert clock.is_over
    result = clock.answer()
    assert result["first_s"] == 2.0
    assert result["total_s"] == 4.0
    assert (result["window_tokens"], result["window_s"]) == (4, 2.0)
    assert result["token_ids"] == [[7] * 6, [8] * 3]


def test_the_window_closes_when_one_has_its_last_and_must_have_been_open() -> None:
    clock = Clock(num_streams=2, num_tokens=3, most=4, begin=0.0)
    clock.add([(0, 7), (0, 7)], 1.0)
    clock.add([(0, 7), (1, 8)], 2.0)
    clock.add([(0, 7), (1, 8)], 3.0)
    assert clock.is_over
    assert clock.answer()["window_tokens"] == 2
    late = Clock(num_streams=2, num_tokens=3, most=4, begin=0.0)
    for now in range(1, 5):
        late.add([(0, 7)], float(now))
    assert late.is_over
    with pytest.raises(RuntimeError, match="2 streams never ran together: one had 4 tokens when the last had 0"):
        late.answer()


def test_one_stream_counts_all_tokens_but_the_first() -> None:
    result = timed(StepEngine(), [[5]], 40)
    assert result["window_tokens"] == 39
    assert result["token_ids"] == [[5] * SHOWN_TOKENS]


def test_one_stream_comes_to_its_end_with_what_it_keeps() -> None:
    ended = []

    class Keeping(StepEngine):
        def generate(self, prompts: list[list[int]], num_tokens: int) -> Generator[Emitted]:
            yield from super().generate(prompts, num_tokens)
            ended.append(num_tokens)

    timed(Keeping(), [[5]], 4)
    assert ended == [4]


def test_several_streams_are_asked_for_more_and_given_up_when_the_window_has_closed() -> None:
    given_up = []

    class Unequal(StepEngine):
        def generate(self, prompts: list[list[int]], num_tokens: int) -> Generator[Emitted]:
            try:
                for step in range(num_tokens):
                    yield [(0, 1), (1, 2)] if step >= 5 else [(0, 1)]
            finally:
                given_up.append(step)

    assert timed(Unequal(), [[1], [2]], 3)["window_tokens"] == 4
    assert given_up == [7]


def test_a_stream_that_ends_early_is_an_error() -> None:
    class Short(StepEngine):
        def generate(self, prompts: list[list[int]], num_tokens: int) -> Generator[Emitted]:
            yield [(0, 1), (1, 1)]
            yield [(0, 1)]

    with pytest.raises(RuntimeError, match="the engine ended with 1 of 2 tokens"):
        timed(Short(), [[1], [2]], 2)


def test_the_fidelity_of_fast_prompts_is_measured_with_fast_prompts(smollm2_path: Path) -> None:
    rows = {}
    for precision in (None, "exact", "fast"):
        engine = PellucidEngine(precision)
        engine.load(smollm2_path, 2, 1024, 1)
        rows[precision] = np.concatenate(list(engine.logits(list(range(1000, 1040)))))
    assert np.array_equal(rows[None], rows["exact"])
    assert not np.array_equal(rows["fast"], rows["exact"])


def test_calls() -> None:
    engine = StepEngine()
    loaded = answer(engine, {"call": "load", "path": "a/b.gguf", "threads": 2, "max_tokens": 8, "max_streams": 1})
    assert loaded["details"] == {"path": "b.gguf", "threads": "2"}
    assert answer(engine, {"call": "prepare", "streams": 3, "tokens": 9}) == {}
    assert engine.prepared == (3, 9)
    with pytest.raises(ValueError, match="unknown call 'guess'"):
        answer(engine, {"call": "guess"})


def test_a_worker_answers_line_by_line_and_survives_errors_and_prints() -> None:
    program = (
        "from benchmarks.peers.protocol import serve\n"
        "class Loud:\n"
        "    def prepare(self, streams, tokens):\n"
        "        print('a library says hello')\n"
        "        if streams == 13: raise OSError('no luck')\n"
        "serve(Loud())\n"
    )
    calls = [{"call": "prepare", "streams": n, "tokens": 1} for n in (1, 13, 2)]
    done = subprocess.run(
        [sys.executable, "-c", program],
        input="".join(json.dumps(call) + "\n" for call in calls),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=60,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{}, {"error": "OSError: no luck"}, {}]
    assert done.stderr.count("a library says hello") == 3
