"""Logits of a GGUF file by llama.cpp, in a process of its own: it aborts on a file it does not like.

python llama_cpp_logits.py MODEL.gguf OUT.npy ID …
"""

from __future__ import annotations

import sys

import numpy as np


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
