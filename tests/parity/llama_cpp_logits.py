"""Logits of a GGUF file by llama.cpp, in a process of its own: it aborts on a file it does not like.

python llama_cpp_logits.py MODEL.gguf OUT.npy ID …
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


def llama_cpp_logits(path: Path, token_ids: list[int]) -> np.ndarray:
    """[T, vocab]; skips the test where llama.cpp is not installed."""
    if importlib.util.find_spec("llama_cpp") is None:
        pytest.skip("needs pip install llama-cpp-python==0.3.36, which compiles for some ten minutes")
    out = path.with_suffix(".npy")
    subprocess.run([sys.executable, __file__, str(path), str(out), *map(str, token_ids)], check=True, timeout=120)
    return np.asarray(np.load(out))


def main(path: str, out: str, token_ids: list[int]) -> None:
    import llama_cpp

    model = llama_cpp.Llama(
        path, n_ctx=64, n_batch=64, n_ubatch=64, logits_all=True, n_gpu_layers=0, n_threads=1, n_threads_batch=1,
        verbose=False, flash_attn=False, type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32,
    )  # fmt: skip
    model.eval(token_ids)
    np.save(out, np.array(model.scores[: len(token_ids)]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(t) for t in sys.argv[3:]])
