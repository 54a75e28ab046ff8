"""llama.cpp through llama-cpp-python's C interface: one context for one stream, one for each batch size."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.protocol import Emitted, serve

llama_cpp = importlib.import_module("llama_cpp")
BATCH = 512
"""Rows of one forward pass, llama.cpp's own default."""
Row = tuple[int, int, int, bool]
"""(token id, position, stream, whether its logits are wanted)."""


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _silent(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    """The library reports every tensor it loads."""


class LlamaCppEngine:
    """The model, and one context at a time."""

    def load(self, path: Path, threads: int, max_tokens: int, max_streams: int) -> dict[str, str]:
        llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._threads = threads
        self._context: Any = None
        self._shape = (0, 0)
        self._stored: list[int] = []
        self._model: Any = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp can not load {path.name}")
        self._vocab_size: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch: Any = llama_cpp.llama_batch_init(BATCH, 0, 1)
        system = bytes(llama_cpp.llama_print_system_info()).decode()
        sets = [part.split("=")[0].strip(" :|") for part in system.split("|") if part.strip().endswith("= 1")]
        return {"version": version("llama-cpp-python"), "built with": " ".join(s.split()[-1] for s in sets)}

    def prepare(self, streams: int, tokens: int) -> None:
        """Each stream has its own part of the cache, so that attention does not run over the others' keys."""
        if self._shape[0] == streams and self._shape[1] >= tokens:
            return
        if self._context:
            llama_cpp.llama_free(self._context)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = streams * (-(-tokens // 256) * 256)
        params.n_seq_max, params.n_batch, params.n_ubatch = streams, BATCH, BATCH
        params.n_threads = params.n_threads_batch = self._threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp can not make a context of {streams} x {tokens} tokens")
        self._shape = (streams, tokens)
        self._stored = []

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Iterator[Emitted]:
        memory = llama_cpp.llama_get_memory(self._context)
        kept = self._kept_prefix(prompts)
        if kept:
            llama_cpp.llama_memory_seq_rm(memory, 0, kept, -1)
        else:
            llama_cpp.llama_memory_clear(memory, True)
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
        self._stored = list(prompts[0]) if len(prompts) == 1 else []

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
        chosen = {}
        for index, (_, _, stream, wanted) in enumerate(rows):
            if wanted:
                pointer = llama_cpp.llama_get_logits_ith(self._context, index)
                chosen[stream] = int(np.ctypeslib.as_array(pointer, shape=(self._vocab_size,)).argmax())
        return chosen

    def _run(self, rows: Sequence[Row]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token, position, stream, wanted) in enumerate(rows):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = stream
            batch.logits[index] = wanted
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def logits(self, token_ids: list[int]) -> Iterator[npt.NDArray[np.float32]]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        self._stored = []
        for start in range(0, len(token_ids), 128):
            chunk = token_ids[start : start + 128]
            self._run([(token, start + i, 0, True) for i, token in enumerate(chunk)])
            pointer = llama_cpp.llama_get_logits(self._context)
            yield np.ctypeslib.as_array(pointer, shape=(len(chunk), self._vocab_size)).copy()


if __name__ == "__main__":
    serve(LlamaCppEngine())
