"""Embedding jobs beside requests on a machine whose time is known: no flood of the one keeps the other out, and streams
go on."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mock_model import make_engine
from test_step_pace import MS, Machine, machines

from pellucid.engine import embedding_jobs, llm_engine
from pellucid.engine.embedding import PATIENCE
from pellucid.engine.embedding_jobs import EmbeddingJobs
from pellucid.engine.engine_thread import EngineThread
from pellucid.engine.step_pace import LEAST_CHUNK, StepLoad, StepPace
from pellucid.forward_batch import ForwardBatch
from pellucid.outputs import RequestOutput
from pellucid.pooling_params import PoolingParams
from pellucid.sampling_params import SamplingParams

SLOWEST_GAP = 400 * MS
"""What a stream waits for its next token at most."""


class Run:
    """The work of an engine's thread, without the thread: its clock is the machine's."""

    def __init__(self, machine: Machine, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.machine, self.now = machine, 0
        clock = SimpleNamespace(perf_counter_ns=lambda: self.now, monotonic=lambda: self.now / 1e9)
        monkeypatch.setattr(llm_engine, "time", clock)
        monkeypatch.setattr(embedding_jobs, "time", clock)
        self.engine = make_engine(**options)
        self.engine.scheduler.pace = StepPace(250)  # without what the mock's sizes say of pairs
        self.engine.model.on_forward = self._spend  # type: ignore[attr-defined]
        self._thread = EngineThread(self.engine, max_sequences=1000, observer=self._note)
        self._embeddings = EmbeddingJobs()
        self.jobs_done: dict[str, int] = {}
        """By name: in which round the job ended."""
        self.jobs_open: set[str] = set()
        self.finished: set[str] = set()
        self.last_token: dict[str, int] = {}
        self.gaps: list[int] = []
        self.num_rounds = 0

    def _spend(self, batch: ForwardBatch) -> None:
        load = StepLoad()
        for start, end, length in zip(batch.query_start_loc, batch.query_start_loc[1:], batch.seq_lens, strict=False):
            load.add(int(length) - int(end - start), int(end - start), is_answer=False)
        self.now += self.machine.time(load)

    def _note(self, output: RequestOutput) -> None:
        name = output.request_id
        if name in self.last_token:
            self.gaps.append(self.now - self.last_token[name])
        if output.outputs[0].token_ids:
            self.last_token[name] = self.now
        if output.finished:
            self.finished.add(name)
            self.last_token.pop(name, None)

    def ask(self, num_prompt: int, num_output: int) -> str:
        name = f"request {len(self.finished)} {self.engine.stats.num_waiting} {self.num_rounds} {random.random()}"
        params = SamplingParams(max_tokens=num_output, ignore_eos=True, seed=1)
        prompt = [97 + i % 7 for i in range(num_prompt)]
        self.engine.add_request(name, [*prompt[:-1], 97 + self.num_rounds % 7], params)
        return name

    def embed(self, *lengths: int) -> str:
        name = f"job {len(self.jobs_done) + len(self.jobs_open)}"

        def deliver(item: Any, is_last: bool) -> None:
            if is_last:
                assert not isinstance(item, BaseException), item
                self.jobs_done[name] = self.num_rounds
                self.jobs_open.discard(name)

        job = self._embeddings.job([[120] * length for length in lengths], PoolingParams())
        self._thread._jobs.begin(name, job, deliver)
        self.jobs_open.add(name)
        return name

    def round(self) -> None:
        """What the thread does between two looks at its commands."""
        self.num_rounds += 1
        self._thread._work()

    @property
    def is_idle(self) -> bool:
        return not (self.jobs_open or self.engine.has_unfinished_requests())


SMALL_POOL = {"num_blocks": 16, "max_num_batched_tokens": 64}


def test_requests_without_end_do_not_keep_a_job_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take every block that becomes free, and the text needs more than one of them leaves."""
    run = Run(Machine(5 * MS, MS, 0), monkeypatch, **SMALL_POOL)
    for number in range(2000):
        while run.engine.stats.num_waiting < 3:
            run.ask(40, 20)
        if number == 10:
            run.embed(130, 130)
        run.round()
        if run.jobs_done:
            break
    assert run.jobs_done
    assert run.num_rounds < 10 + 2 * (PATIENCE + 40)
    assert len(run.finished) > 10


def test_a_text_that_always_loses_its_blocks_gets_them_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the requests the text begins; it takes 7 passes, and the next request comes after 5."""
    run = Run(Machine(250 * MS, 50 * MS, 0), monkeypatch, **SMALL_POOL)
    run.embed(112)
    for number in range(1000):
        if number % 5 == 0 and not run.engine.stats.num_waiting:
            run.ask(200, 1)
        run.round()
        if run.jobs_done:
            break
    assert run.jobs_done
    assert run.num_rounds > PATIENCE, "the case is what it says"


def test_jobs_without_end_do_not_keep_a_request_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(Machine(5 * MS, MS, 0), monkeypatch, **SMALL_POOL)
    for number in range(600):
        while len(run.jobs_open) < 5:
            run.embed(200, 50)
        if number % 100 == 50:
            run.ask(150, 30)
        run.round()
    assert len(run.finished) == 6
    assert len(run.jobs_done) > 20


@settings(max_examples=20)
@given(st.integers(0, 2**32), machines)
def test_whatever_comes_everyone_ends(number: int, machine: Machine) -> None:
    """Floods of both, for a while, in pools that hold one request or a few."""
    rng = random.Random(number)
    with pytest.MonkeyPatch.context() as patch:
        run = Run(machine, patch, num_blocks=rng.choice((16, 24, 40)), max_num_batched_tokens=64)
        asked, jobs = set(), set()
        for _ in range(rng.choice((30, 120))):
            if len(asked) - len(run.finished) < rng.choice((1, 8)):
                asked.add(run.ask(rng.randint(1, 200), rng.randint(1, 50)))
            if len(run.jobs_open) < rng.choice((1, 6)):
                jobs.add(run.embed(*(rng.randint(1, 256) for _ in range(rng.randint(1, 4)))))
            run.round()
            if rng.random() < 0.05:
                run.engine.check_integrity()
        for _ in range(20_000):
            if run.is_idle:
                break
            run.round()
        assert run.finished == asked
        assert run.jobs_done.keys() == jobs
        run.engine.check_integrity()


@settings(max_examples=25)
@given(st.integers(0, 2**32), machines)
def test_no_stream_waits_however_many_jobs_there_are(number: int, machine: Machine) -> None:
    rng = random.Random(number)
    streams, prompts = rng.choice((1, 3, 8)), rng.choice((0, 0.1, 1))
    with pytest.MonkeyPatch.context() as patch:
        run = Run(machine, patch, num_blocks=1200, max_model_len=1024, max_num_batched_tokens=512, max_num_seqs=12)
        for _ in range(streams):
            run.ask(rng.randint(1, 40), 60)
        while len(run.last_token) < streams:
            run.round()
        run.gaps.clear()
        for _ in range(60):
            while len(run.jobs_open) < 20:
                run.embed(*(rng.randint(1, 1000) for _ in range(rng.randint(1, 20))))
            if rng.random() < prompts and run.engine.stats.num_waiting == 0:
                run.ask(rng.randint(1, 900), 2)
            run.round()
    answers = StepLoad()
    for _ in range(8):
        answers.add(1024, 1, is_answer=True)
    prompt, text = StepLoad(), StepLoad()
    for part in (prompt, text):
        part.add(1024, LEAST_CHUNK, is_answer=False)
    least = machine.time(answers) + machine.time(prompt) + machine.time(text)
    assert len(run.gaps) >= 60 * streams - 60
    assert max(run.gaps) <= SLOWEST_GAP or least > 250 * MS
