"""llama.cpp's C interface as an engine: one context at a time, for so many streams of so many tokens.

Serves llama-cpp-python and ik-llama-cpp-python, whose modules have most functions in common; a subclass knows the rest.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.protocol import Emitted

BATCH = 512
"""Rows of one forward pass, llama.cpp's own default."""
Row = tuple[int, int, int, bool]
"""(token id, position, stream, whether its logits are wanted)."""


class LlamaCppEngine:
    """The model, and one context at a time."""

    def __init__(self, api: ModuleType) -> None:
        self._api = api
        self._context: Any = None
        self._shape = (0, 0)
        self._stored: list[int] = []

    def describe(self) -> dict[str, str]:
        """Version and what the library was built with."""
        raise NotImplementedError

    def model_params(self) -> Any:
        """How the model is loaded."""
        return self._api.llama_model_default_params()

    def context_params(self, streams: int) -> Any:
        """How a context is made."""
        return self._api.llama_context_default_params()

    def clear(self) -> None:
        """Forget all streams."""
        raise NotImplementedError

    def keep(self, tokens: int) -> None:
        """Forget what the first stream has after so many tokens."""
        raise NotImplementedError

    def load(self, path: Path, threads: int, max_tokens: int, max_streams: int) -> dict[str, str]:
        self._api.llama_backend_init()
        self._threads = threads
        self._model: Any = self._api.llama_model_load_from_file(str(path).encode(), self.model_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp can not load {path.name}")
        self._vocab_size: int = self._api.llama_vocab_n_tokens(self._api.llama_model_get_vocab(self._model))
        self._batch: Any = self._api.llama_batch_init(BATCH, 0, 1)
        return self.describe()

    def prepare(self, streams: int, tokens: int) -> None:
        """Each stream has its own part of the cache, so that attention does not run over the others' keys."""
        if self._shape[0] == streams and self._shape[1] >= tokens:
            return
        if self._context:
            self._api.llama_free(self._context)
        params = self.context_params(streams)
        params.n_ctx = streams * (-(-tokens // 256) * 256)
        params.n_seq_max, params.n_batch, params.n_ubatch = streams, BATCH, BATCH
        params.n_threads = params.n_threads_batch = self._threads
        self._context = self._api.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp can not make a context of {streams} x {tokens} tokens")
        self._shape = (streams, tokens)
        self._stored = []

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Generator[Emitted]:
        kept = self._kept_prefix(prompts)
        self._stored = []
        if kept:
            self.keep(kept)
        else:
            self.clear()
        rows: list[Row] = []
        for stream, prompt in enumerate(prompts):
            last = len(prompt) - 1
            rows += [(token, i, stream, i == last) for i, token in enumerate(prompt) if i >= kept]
        tokens: dict[int, int] = {}
        for start in range(0, len(rows), BATCH):
            chosen = self._greedy(rows[start : start + BATCH])
            tokens |= chosen
            yield list(chosen.items())
        for step in range(num_tokens - 1):
            rows = [(tokens[s], len(prompts[s]) + step, s, True) for s in range(len(prompts))]
            tokens = self._greedy(rows)
            yield list(tokens.items())
        if len(prompts) == 1:
            self._stored = list(prompts[0])

    def _kept_prefix(self, prompts: list[list[int]]) -> int:
        """What the package's own generator does: keep the prefix that the prompt shares with what is stored."""
        if len(prompts) != 1:
            return 0
        kept = 0
        for ours, theirs in zip(self._stored, prompts[0][:-1], strict=False):
            if ours != theirs:
                break
            kept += 1
        return kept

    def _greedy(self, rows: Sequence[Row]) -> dict[int, int]:
        """Run the rows; stream → most probable token of those whose logits were wanted."""
        self._run(rows)
        return {row[2]: int(self._logits_of(index).argmax()) for index, row in enumerate(rows) if row[3]}

    def _logits_of(self, index: int) -> npt.NDArray[np.float32]:
        pointer = self._api.llama_get_logits_ith(self._context, index)
        return np.ctypeslib.as_array(pointer, shape=(self._vocab_size,))

    def _run(self, rows: Sequence[Row]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token, position, stream, wanted) in enumerate(rows):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = stream
            batch.logits[index] = wanted
        status = self._api.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def push(self, token_ids: Sequence[int], start: int) -> npt.NDArray[np.float32]:
        """Run rows of the first stream at positions from `start`, at most 512; logits [R, vocab] of all of them."""
        self._run([(token, start + i, 0, True) for i, token in enumerate(token_ids)])
        return np.stack([self._logits_of(index) for index in range(len(token_ids))])

    def logits(self, token_ids: list[int]) -> Iterator[npt.NDArray[np.float32]]:
        self.clear()
        self._stored = []
        for start in range(0, len(token_ids), 128):
            yield self.push(token_ids[start : start + 128], start)
