"""Embeddings as jobs beside streams: a piece is one forward pass over the texts of all of them, cut to a time.

Touched by the engine's thread only. The scheduler's requests come first: texts take the KV blocks that these leave,
give them back when they are needed, and beside them take a part of a step's time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pellucid.engine.embedding import Embedder, EmbeddingJob
from pellucid.engine.jobs import Job
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.step_pace import BACKGROUND_DIVISOR, LEAST_CHUNK, StepLoad
from pellucid.errors import NonFiniteError
from pellucid.forward_batch import Float32Array
from pellucid.pooling_params import EmbeddingOutput, PoolingParams

if TYPE_CHECKING:
    from typing import Self


class EmbeddingJobs:
    """The jobs of one engine, whose texts share passes."""

    def __init__(self) -> None:
        self._embedder: Embedder | None = None
        self._open: dict[EmbeddingJob, _Pieces] = {}

    def job(self, prompts: Sequence[list[int]], params: PoolingParams) -> Job:
        """A job whose only item is a list with the output of each prompt."""
        return lambda engine: _Pieces(self, engine, prompts, params)

    def embedder(self, engine: LLMEngine) -> Embedder:
        """The one that all texts go through."""
        if self._embedder is None:
            self._embedder = engine.kv.borrower = Embedder(
                engine.model, engine.storage, engine.kv, max_num_batched_tokens=engine.args.max_num_batched_tokens
            )
        return self._embedder

    def begin(self, job: EmbeddingJob, pieces: _Pieces) -> None:
        """Let the pieces take what comes out for the job."""
        self._open[job] = pieces

    def end(self, job: EmbeddingJob) -> None:
        """Forget the job."""
        self._open.pop(job, None)

    def compute(self, engine: LLMEngine) -> None:
        """One pass, as long as one may be beside what else the engine does; all jobs get what is done with it."""
        embedder = self.embedder(engine)
        began = time.perf_counter_ns()
        done, load = embedder.step(_budget(engine, embedder))
        if load.prompt_tokens:
            engine.scheduler.pace.observe(load, time.perf_counter_ns() - began)
        for one in done:
            if one.job in self._open:
                self._open[one.job].take(one.index, one.vector)


def _budget(engine: LLMEngine, embedder: Embedder) -> int:
    """Tokens of the next pass: a part of a step's time where requests wait for it, else a whole one's."""
    pace, is_shared = engine.scheduler.pace, engine.has_unfinished_requests()
    time_ns = pace.prompt_time(StepLoad(), is_streaming=is_shared)
    if is_shared:
        time_ns //= BACKGROUND_DIVISOR
    tokens = pace.tokens_within(time_ns, embedder.first_position, is_streaming=is_shared)
    return max(LEAST_CHUNK, min(embedder.max_num_batched_tokens, tokens))


class _Pieces(Iterator[list[EmbeddingOutput] | None]):
    """One job's iterator: None until all vectors are there."""

    def __init__(
        self, jobs: EmbeddingJobs, engine: LLMEngine, prompts: Sequence[list[int]], params: PoolingParams
    ) -> None:
        self._jobs = jobs
        self._engine = engine
        self._prompts = prompts
        self._outputs: list[EmbeddingOutput | None] = [None] * len(prompts)
        self._num_missing = len(prompts)
        self._error: NonFiniteError | None = None
        self._is_told = False
        self._job = jobs.embedder(engine).add(prompts, params)
        jobs.begin(self._job, self)

    @property
    def is_ready(self) -> bool:
        """Whether the next piece computes nothing."""
        return self._is_told or self._error is not None or self._num_missing == 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[EmbeddingOutput] | None:
        if self._is_told:
            raise StopIteration
        if not self.is_ready:
            try:
                self._jobs.compute(self._engine)
            except BaseException:
                self.close()
                raise
        if not self.is_ready:
            return None
        self._is_told = True
        self.close()
        if self._error is not None:
            raise self._error
        return [output for output in self._outputs if output is not None]

    def take(self, index: int, vector: Float32Array | NonFiniteError) -> None:
        """The vector of a prompt, or why it has none: then none of the others is computed."""
        if isinstance(vector, NonFiniteError):
            self._error = vector
            self.close()
            return
        self._outputs[index] = EmbeddingOutput(self._prompts[index], vector)
        self._num_missing -= 1

    def close(self) -> None:
        """Forget the texts; their blocks are free."""
        self._jobs.end(self._job)
        self._jobs.embedder(self._engine).drop(self._job)
