"""vLLM's own server on the dequantised model: `python -m …server FILE PORT THREADS NAME CONTEXT STREAMS`."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from benchmarks.peers.dequantized import export_folder


def main() -> None:
    path, port, threads, name, context, streams = sys.argv[1:]
    folder = export_folder(Path(path))
    if not (folder / "tokenizer_config.json").exists():
        transformers = importlib.import_module("transformers")
        file = Path(path)
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
        tokenizer.save_pretrained(folder)
    cores = sorted(os.sched_getaffinity(0))[: int(threads)]
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    flags = ["--port", port, "--dtype", "bfloat16", "--served-model-name", name]
    flags += ["--max-model-len", context, "--max-num-seqs", streams]
    os.execv(
        sys.executable, [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), *flags]
    )


if __name__ == "__main__":
    main()
