"""Embeddings: texts in, one vector each out. No scheduler and no sampling: every text is computed once, at once.

Texts of one step share it up to the token budget. A causal model reads a long text in chunks; an encoder's tokens see
each other, so a text is computed whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.model_runner import Model
from pellucid.errors import InvalidParameterError, NonFiniteError
from pellucid.forward_batch import Float32Array, SequencePart, batch_of
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.pooling_params import EmbeddingOutput, Pooling, PoolingParams

Float64Array = npt.NDArray[np.float64]

_FIRST_KEY = -1_000_000
"""Keys of texts count down from here: the scheduler's sequences have keys from 1 up, beams small negative ones."""


@dataclass(slots=True)
class _Text:
    index: int
    key: int
    tokens: Sequence[int]
    num_computed: int = 0
    total: Float64Array | None = None
    """Sum of the vectors so far, for the mean."""
    vector: Float32Array | None = None


def embed(engine: LLMEngine, prompts: Sequence[list[int]], params: PoolingParams) -> list[EmbeddingOutput]:
    """One vector for each prompt with the engine's model and KV cache, which nobody else uses meanwhile."""
    embedder = Embedder(
        engine.model, engine.storage, engine.kv, max_num_batched_tokens=engine.args.max_num_batched_tokens
    )
    vectors = embedder.embed(prompts, params)
    return [EmbeddingOutput(ids, vector) for ids, vector in zip(prompts, vectors, strict=True)]


class Embedder:
    """Runs texts through a model; `steps` gives control back after each forward pass."""

    def __init__(
        self, model: Model, storage: KVCacheStorage, kv: KVCacheManager, *, max_num_batched_tokens: int
    ) -> None:
        self._model = model
        self._storage = storage
        self._kv = kv
        self._budget = max_num_batched_tokens
        self._is_causal = model.config.causal

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
        size = self._model.config.hidden_size
        if params.dimensions is not None and params.dimensions > size:
            raise InvalidParameterError(
                "dimensions", f"dimensions is {params.dimensions}, but the model's vectors have {size} numbers"
            )
        pooling = params.pooling or self._model.config.pooling
        waiting = [_Text(i, _FIRST_KEY - i, tokens) for i, tokens in enumerate(prompts)]
        waiting.reverse()
        running: list[_Text] = []
        try:
            while waiting or running:
                work = self._next_step(waiting, running)
                self._run(work, pooling)
                for text in [text for text in running if text.num_computed == len(text.tokens)]:
                    running.remove(text)
                    self._kv.free(text.key)
                    yield text.index, self._finished(text, params)
        finally:
            for text in running:
                self._kv.free(text.key)

    def _next_step(self, waiting: list[_Text], running: list[_Text]) -> list[tuple[_Text, int]]:
        """Texts and how many of their tokens are computed next; at least one text goes on."""
        work: list[tuple[_Text, int]] = []
        budget = self._budget
        for text in running:
            count = min(len(text.tokens) - text.num_computed, budget)
            if count:
                work.append((text, count))
                budget -= count
        while waiting and (budget > 0 or not work):
            text = waiting[-1]
            count = len(text.tokens) if not self._is_causal else min(len(text.tokens), budget)
            if work and count > budget:
                break
            if not self._kv.grow(text.key, len(text.tokens)):
                if work:
                    break
                raise InvalidParameterError(
                    "prompts",
                    f"a text of {len(text.tokens)} tokens finds no room in the KV cache, where "
                    f"{self._kv.num_available} blocks of {self._kv.block_size} are free: wait for other requests, or "
                    "raise kv_cache_memory_bytes",
                )
            running.append(waiting.pop())
            work.append((text, count))
            budget -= count
        return work

    def _run(self, work: list[tuple[_Text, int]], pooling: Pooling) -> None:
        parts = [
            SequencePart(
                text.tokens[text.num_computed : text.num_computed + count],
                text.num_computed,
                self._kv.block_table(text.key),
            )
            for text, count in work
        ]
        output = self._model.forward(batch_of(parts, self._kv.block_size), self._storage)
        if output.nonfinite.any():
            raise NonFiniteError("a key or value of a text to be embedded is not finite")
        row = 0
        for text, count in work:
            rows = output.hidden[row : row + count]
            row += count
            first, text.num_computed = text.num_computed, text.num_computed + count
            if pooling == "mean":
                # In float64 and token by token, so that chunks do not show in the bits.
                total = np.zeros(rows.shape[1], dtype=np.float64) if text.total is None else text.total
                text.total = _added(total, rows)
            elif pooling == "cls" and first == 0:
                text.vector = rows[0].copy()
            elif pooling == "last" and text.num_computed == len(text.tokens):
                text.vector = rows[-1].copy()

    def _finished(self, text: _Text, params: PoolingParams) -> Float32Array:
        pooled = text.vector if text.total is None else text.total / len(text.tokens)
        assert pooled is not None
        vector = pooled.astype(np.float64)[: params.dimensions]
        if not np.isfinite(vector).all():
            raise NonFiniteError(f"the vector of text {text.index} is not finite")
        length = float(np.sqrt(np.square(vector).sum()))
        normalize = self._model.config.normalize_embeddings if params.normalize is None else params.normalize
        if normalize and length > 0:
            vector = vector / length
        return vector.astype(np.float32)


def _added(total: Float64Array, rows: Float32Array) -> Float64Array:
    for row in rows:
        total = total + row
    return total
