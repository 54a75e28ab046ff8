"""Embeddings: texts in, one vector each out. No scheduler and no sampling: a text is only computed, once.

Texts of one step share it up to its token budget. A causal model reads a long text in chunks; an encoder's tokens see
each other, so a text is computed whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt

from pellucid.config import ModelConfig
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.model_runner import Model
from pellucid.engine.step_pace import StepLoad
from pellucid.errors import InvalidParameterError, NonFiniteError
from pellucid.forward_batch import Float32Array, SequencePart, batch_of
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.pooling_params import EmbeddingOutput, Pooling, PoolingParams

Float64Array = npt.NDArray[np.float64]

PATIENCE = 64
"""Passes that texts lose for want of blocks before newcomers have to leave them some: a text that no block is left for
computes nothing, one that gives its blocks back has computed in vain."""
_FIRST_KEY = -1_000_000
"""Keys of texts count down from here: the scheduler's sequences have keys from 1 up, beams small negative ones."""


@dataclass(slots=True, eq=False)
class EmbeddingJob:
    """Texts of one caller; a vector of each comes out of `Embedder.step`."""

    params: PoolingParams
    pooling: Pooling
    waiting: deque[_Text] = field(default_factory=deque)
    num_left: int = 0
    """Texts whose vectors have not come out."""


@dataclass(slots=True, eq=False)
class _Text:
    job: EmbeddingJob
    index: int
    key: int
    tokens: Sequence[int]
    num_computed: int = 0
    num_passes: int = 0
    total: Float64Array | None = None
    """Sum of the vectors so far, for the mean."""
    vector: Float32Array | None = None

    def begin_again(self) -> None:
        self.num_computed, self.num_passes, self.total, self.vector = 0, 0, None, None


@dataclass(frozen=True, slots=True)
class Embedded:
    """A text's vector [dimensions], or why it has none."""

    job: EmbeddingJob
    index: int
    vector: Float32Array | NonFiniteError


def embed(engine: LLMEngine, prompts: Sequence[list[int]], params: PoolingParams) -> list[EmbeddingOutput]:
    """One vector for each prompt with the engine's model and KV cache, which nobody else uses meanwhile."""
    embedder = Embedder(
        engine.model, engine.storage, engine.kv, max_num_batched_tokens=engine.args.max_num_batched_tokens
    )
    vectors = embedder.embed(prompts, params)
    return [EmbeddingOutput(ids, vector) for ids, vector in zip(prompts, vectors, strict=True)]


class Embedder:
    """Runs texts through a model, a forward pass a `step`; those of several jobs share it, a text of each in turn.

    As the manager's borrower it gives up blocks whenever a request needs them: those texts are computed again. When it
    has lost `PATIENCE` passes in that way it is owed the blocks of its oldest text, until that is done.
    """

    def __init__(
        self, model: Model, storage: KVCacheStorage, kv: KVCacheManager, *, max_num_batched_tokens: int
    ) -> None:
        self._model = model
        self._storage = storage
        self._kv = kv
        self.max_num_batched_tokens = max_num_batched_tokens
        self._is_causal = model.config.causal
        self._keys = count(_FIRST_KEY, -1)
        self._jobs: deque[EmbeddingJob] = deque()
        """Those with texts that wait; the first is the next to be asked."""
        self._running: list[_Text] = []
        self._num_lost = 0
        """Passes lost for want of blocks since the oldest text of its time was done."""

    def add(self, prompts: Sequence[Sequence[int]], params: PoolingParams) -> EmbeddingJob:
        """Take texts. Raises `InvalidParameterError` for dimensions the model does not have."""
        check_dimensions(params, self._model.config)
        job = EmbeddingJob(params, params.pooling or self._model.config.pooling)
        job.waiting.extend(_Text(job, i, next(self._keys), tokens) for i, tokens in enumerate(prompts))
        job.num_left = len(job.waiting)
        if job.waiting:
            self._jobs.append(job)
        return job

    def drop(self, job: EmbeddingJob) -> None:
        """Forget a job; its blocks are free at once."""
        job.waiting.clear()
        if job in self._jobs:
            self._jobs.remove(job)
        for text in [text for text in self._running if text.job is job]:
            self._end(text)

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._jobs or self._running)

    @property
    def num_blocks(self) -> int:
        """KV blocks of texts that are partly computed."""
        return sum(self._kv.num_blocks_held(text.key) for text in self._running)

    @property
    def first_position(self) -> int:
        """Where the next chunk of the oldest text begins."""
        return self._running[0].num_computed if self._running else 0

    @property
    def num_owed(self) -> int:
        """Blocks of the oldest text, when it has been kept from them for too long."""
        if self._num_lost < PATIENCE or not self.has_work:
            return 0
        oldest = self._running[0] if self._running else self._jobs[0].waiting[0]
        return self._kv.blocks_for(len(oldest.tokens))

    def give_back(self, num_blocks: int) -> None:
        """Free at least so many blocks, or all; the newest texts wait again, before those that never began."""
        while self._running and num_blocks > 0:
            text = self._running.pop()
            num_blocks -= self._kv.num_blocks_held(text.key)
            self._kv.free(text.key, is_preempted=True)
            self._num_lost += 0 if self._running else text.num_passes
            text.begin_again()
            text.job.waiting.appendleft(text)
            if text.job in self._jobs:
                self._jobs.remove(text.job)
            self._jobs.appendleft(text.job)

    def embed(self, prompts: Sequence[Sequence[int]], params: PoolingParams) -> list[Float32Array]:
        """One vector [dimensions] for each prompt. Raises what `steps` raises."""
        vectors: list[Float32Array] = [np.empty(0, dtype=np.float32)] * len(prompts)
        for index, vector in self.steps(prompts, params):
            vectors[index] = vector
        return vectors

    def steps(self, prompts: Sequence[Sequence[int]], params: PoolingParams) -> Iterator[tuple[int, Float32Array]]:
        """(index, vector) of each prompt as it is done, with a forward pass or more between two.

        Raises `InvalidParameterError` for dimensions the model does not have, or where a text finds no room in the
        KV cache, and `NonFiniteError` where a vector is not finite. The blocks are free again in any case.
        """
        job = self.add(prompts, params)
        try:
            while job.num_left:
                done, load = self.step(self.max_num_batched_tokens)
                if load.prompt_tokens == 0:
                    raise InvalidParameterError(
                        "prompts",
                        f"a text of {len(job.waiting[0].tokens)} tokens finds no room in the KV cache, where "
                        f"{self._kv.num_unused} blocks of {self._kv.block_size} are free: wait for other requests, or "
                        "raise kv_cache_memory_bytes",
                    )
                for embedded in done:
                    if isinstance(embedded.vector, NonFiniteError):
                        raise embedded.vector
                    yield embedded.index, embedded.vector
        finally:
            self.drop(job)

    def step(self, budget: int) -> tuple[list[Embedded], StepLoad]:
        """One forward pass over about `budget` tokens: what is done with it, and what it computed.

        It computes nothing where no text has begun and the next one finds no room among the unused blocks.
        """
        work, load = self._next_work(max(1, budget)), StepLoad()
        for text, num_tokens in work:
            load.add(text.num_computed, num_tokens, is_answer=False)
        done: list[Embedded] = []
        if not work:
            self._num_lost += self.has_work
        else:
            failed = self._run(work)
            for text in [text for text, _ in work if text in failed or text.num_computed == len(text.tokens)]:
                if text is self._running[0]:
                    self._num_lost = 0
                self._end(text)
                done.append(Embedded(text.job, text.index, failed.get(text) or self._finished(text)))
        return done, load

    def _end(self, text: _Text) -> None:
        self._running.remove(text)
        self._kv.free(text.key)
        text.job.num_left -= 1

    def _next_work(self, budget: int) -> list[tuple[_Text, int]]:
        """Texts and how many of their tokens are computed next; at least one text goes on."""
        work: list[tuple[_Text, int]] = []
        for text in self._running:
            num_tokens = min(len(text.tokens) - text.num_computed, budget)
            if num_tokens:
                work.append((text, num_tokens))
                budget -= num_tokens
        while self._jobs and (budget > 0 or not work):
            job = self._jobs[0]
            text = job.waiting[0]
            num_tokens = min(len(text.tokens), budget) if self._is_causal else len(text.tokens)
            if work and num_tokens > budget:
                break
            # The manager would ask its borrower, which is this one, for what lacks.
            if self._kv.blocks_for(len(text.tokens)) > self._kv.num_unused:
                break
            if not self._kv.grow(text.key, len(text.tokens)):
                raise AssertionError(f"{self._kv.num_unused} blocks are unused, but a text cannot have its own")
            self._jobs.popleft()
            self._running.append(job.waiting.popleft())
            if job.waiting:
                self._jobs.append(job)
            work.append((text, num_tokens))
            budget -= num_tokens
        return work

    def _run(self, work: list[tuple[_Text, int]]) -> dict[_Text, NonFiniteError]:
        """Compute the parts and pool what comes out; gives back the texts that failed, and why."""
        parts = [
            SequencePart(
                text.tokens[text.num_computed : text.num_computed + num_tokens],
                text.num_computed,
                self._kv.block_table(text.key),
            )
            for text, num_tokens in work
        ]
        output = self._model.forward(batch_of(parts, self._kv.block_size), self._storage)
        failed: dict[_Text, NonFiniteError] = {}
        row = 0
        for text, num_tokens in work:
            rows = output.hidden[row : row + num_tokens]
            if output.nonfinite[row : row + num_tokens].any():
                failed[text] = NonFiniteError(f"a key or value of text {text.index} is not finite")
            row += num_tokens
            first, text.num_computed = text.num_computed, text.num_computed + num_tokens
            text.num_passes += 1
            _pool(text, rows, is_first=first == 0)
        for text in failed:
            self._storage.clear(list(self._kv.block_table(text.key)))
        return failed

    def _finished(self, text: _Text) -> Float32Array | NonFiniteError:
        pooled = text.vector if text.total is None else text.total / len(text.tokens)
        assert pooled is not None
        params = text.job.params
        vector = pooled.astype(np.float64)[: params.dimensions]
        if not np.isfinite(vector).all():
            return NonFiniteError(f"the vector of text {text.index} is not finite")
        length = float(np.sqrt(np.square(vector).sum()))
        normalize = self._model.config.normalize_embeddings if params.normalize is None else params.normalize
        if normalize and length > 0:
            vector = vector / length
        return vector.astype(np.float32)


def check_dimensions(params: PoolingParams, config: ModelConfig) -> None:
    """Raises `InvalidParameterError` for dimensions that the model does not have."""
    wanted, size = params.dimensions, config.hidden_size
    if wanted is None:
        return
    if wanted > size:
        raise InvalidParameterError(
            "dimensions", f"dimensions is {wanted}, but the model's vectors have {size} numbers"
        )
    if wanted == size:
        return
    if not config.can_shorten_embeddings:
        raise InvalidParameterError(
            "dimensions",
            f"dimensions is {wanted}, but the model does not say that its vectors of {size} numbers can be shortened "
            "(is_matryoshka or matryoshka_dimensions in config.json)",
        )
    if config.embedding_sizes and wanted not in config.embedding_sizes:
        allowed = ", ".join(map(str, sorted({*config.embedding_sizes, size})))
        raise InvalidParameterError("dimensions", f"dimensions is {wanted}, but must be one of {allowed}")


def _pool(text: _Text, rows: Float32Array, *, is_first: bool) -> None:
    if text.job.pooling == "mean":
        # In float64 and token by token, so that chunks do not show in the bits.
        total = np.zeros(rows.shape[1], dtype=np.float64) if text.total is None else text.total
        for row in rows:
            total = total + row
        text.total = total
    elif text.job.pooling == "cls" and is_first:
        text.vector = rows[0].copy()
    elif text.job.pooling == "last" and text.num_computed == len(text.tokens):
        text.vector = rows[-1].copy()
