"""llama.cpp's model and context through llama-cpp-python's C interface, as little of it as benchmarks need."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _silent(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    """The library reports every tensor it loads on stderr."""


def system_info() -> str:
    """What the library was built with and finds on this machine."""
    return bytes(llama_cpp.llama_print_system_info()).decode().strip()


class LlamaContext:
    """One model, one context, one sequence. Its arrays are NumPy copies."""

    def __init__(self, path: Path, threads: int, max_tokens: int = 1024, batch: int = 512) -> None:
        llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model: Any = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise SystemExit(f"llama.cpp can not load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = max_tokens, batch, batch
        params.n_threads = params.n_threads_batch = threads
        self._context: Any = llama_cpp.llama_init_from_model(self._model, params)
        self._vocab: Any = llama_cpp.llama_model_get_vocab(self._model)
        self.vocab_size: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self._batch: Any = llama_cpp.llama_batch_init(batch, 0, 1)
        self.length = 0

    def __enter__(self) -> LlamaContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def tokenize(self, text: str) -> list[int]:
        """Ids of a text with the beginning token the model wants; control strings are text."""
        data = text.encode()
        buffer = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(self._vocab, data, len(data), buffer, len(buffer), True, False)
        return list(buffer[:count])

    def clear(self) -> None:
        """Forget the sequence."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        self.length = 0

    def push(self, token_ids: Sequence[int], all_logits: bool = False) -> npt.NDArray[np.float32]:
        """Run the next rows in one call; logits [R, vocab] of all of them, or [1, vocab] of the last."""
        batch, count = self._batch, len(token_ids)
        batch.n_tokens = count
        for row, token_id in enumerate(token_ids):
            batch.token[row] = token_id
            batch.pos[row] = self.length + row
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
            batch.logits[row] = all_logits or row == count - 1
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        self.length += count
        rows = count if all_logits else 1
        logits = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, shape=(rows, self.vocab_size)).copy()
