"""OpenVINO GenAI's continuous batching pipeline, step by step, on the GGUF file itself."""

from __future__ import annotations

import importlib
from collections.abc import Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.peers.protocol import Emitted, serve

openvino = importlib.import_module("openvino")
genai = importlib.import_module("openvino_genai")
BLOCK = 32
"""Tokens in one KV block on the CPU."""


class OpenVinoEngine:
    """The pipeline with its own defaults of precision: where the CPU has bfloat16, that, and a KV cache of 8 bits."""

    def load(self, path: Path, threads: int, max_tokens: int, max_streams: int) -> dict[str, str]:
        self._path, self._threads = path, threads
        self._request: Any = None
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

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Generator[Emitted]:
        config = genai.GenerationConfig()
        config.max_new_tokens = num_tokens
        config.ignore_eos = True
        config.do_sample = False
        handles = []
        for prompt in prompts:
            self._num_requests += 1
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(self._pipeline.add_request(self._num_requests, ids, config))
        try:
            while self._pipeline.has_non_finished_requests():
                self._pipeline.step()
                emitted: Emitted = []
                for stream, handle in enumerate(handles):
                    while handle.can_read():
                        for output in handle.read().values():
                            emitted += [(stream, int(token)) for token in output.generated_ids]
                yield emitted
        finally:
            for handle in handles:
                handle.stop()
            while self._pipeline.has_non_finished_requests():
                self._pipeline.step()

    def logits(self, token_ids: list[int]) -> Iterator[Any]:
        """GenAI gives no full logits: the model that it made from the file is saved and run by OpenVINO itself."""
        if self._request is None:
            self._request = self._compile()
        self._request.reset_state()
        for start in range(0, len(token_ids), 128):
            chunk = token_ids[start : start + 128]
            end = start + len(chunk)
            inputs = {
                "input_ids": np.array([chunk], dtype=np.int64),
                "attention_mask": np.ones((1, end), dtype=np.int64),
                "position_ids": np.arange(start, end, dtype=np.int64)[None],
                "beam_idx": np.zeros(1, dtype=np.int32),
            }
            yield self._request.infer(inputs)[0][0]

    def _compile(self) -> Any:
        with TemporaryDirectory() as folder:
            link = Path(folder) / self._path.name  # the model is saved beside the file it was made from
            link.symlink_to(self._path.resolve())
            genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
            properties = {"INFERENCE_NUM_THREADS": self._threads}
            model = openvino.Core().compile_model(str(Path(folder) / "openvino_model.xml"), "CPU", properties)
            return model.create_infer_request()


if __name__ == "__main__":
    serve(OpenVinoEngine())
