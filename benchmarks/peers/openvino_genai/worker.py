"""OpenVINO GenAI's continuous batching pipeline, step by step, on the GGUF file itself."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.protocol import Emitted, serve

openvino = importlib.import_module("openvino")
genai = importlib.import_module("openvino_genai")
BLOCK = 32
"""Tokens in one KV block on the CPU."""


class OpenVinoEngine:
    """The pipeline with its own defaults of precision: activations and KV cache of 8 bits."""

    def load(self, path: Path, threads: int, max_tokens: int, max_streams: int) -> dict[str, str]:
        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = -(-max_tokens // BLOCK) + 2 * max_streams
        scheduler.max_num_batched_tokens = 512
        scheduler.max_num_seqs = max_streams
        scheduler.enable_prefix_caching = True
        self._pipeline = genai.ContinuousBatchingPipeline(
            str(path), scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
        )
        self._num_requests = 0
        return {"version": version("openvino-genai"), "openvino": version("openvino")}

    def prepare(self, streams: int, tokens: int) -> None:
        """Nothing: the cache was reserved when the pipeline was made."""

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Iterator[Emitted]:
        config = genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        handles = []
        for prompt in prompts:
            self._num_requests += 1
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(self._pipeline.add_request(self._num_requests, ids, config))
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            emitted: Emitted = []
            for stream, handle in enumerate(handles):
                while handle.can_read():
                    for output in handle.read().values():
                        emitted += [(stream, int(token)) for token in output.generated_ids]
            yield emitted

    def logits(self, token_ids: list[int]) -> Iterator[Any]:
        raise NotImplementedError("OpenVINO GenAI gives no full logits through its API")


if __name__ == "__main__":
    serve(OpenVinoEngine())
