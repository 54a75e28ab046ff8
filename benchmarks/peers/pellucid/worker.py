"""Pellucid through LLMEngine.add_request and LLMEngine.step."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.protocol import Emitted, serve
from pellucid import __version__
from pellucid.config import EngineArgs, engine_arg_names
from pellucid.engine.llm_engine import LLMEngine
from pellucid.sampling_params import SamplingParams


class PellucidEngine:
    """The engine with its own defaults but for speculation, which is off: prompt lookup guesses greedy answers to
    random prompts, which repeat themselves, and the figure would say nothing of the kernels.

    `precision` is handed on where this version knows it.
    """

    def __init__(self, precision: str | None) -> None:
        self._precision = precision
        self._num_requests = 0

    def load(self, path: Path, threads: int, max_tokens: int, max_streams: int) -> dict[str, str]:
        options: dict[str, Any] = {"model": str(path), "threads": threads, "speculative_method": "off"}
        if self._precision is not None:
            if "precision" not in engine_arg_names():
                raise RuntimeError("this version has no --precision")
            options["precision"] = self._precision
        self._engine = LLMEngine.from_args(EngineArgs(**options))
        backend: Any = getattr(self._engine.model, "backend", None)
        return {"version": __version__, "isa": getattr(backend, "isa", ""), "kv": self._engine.args.kv_cache_dtype}

    def prepare(self, streams: int, tokens: int) -> None:
        """Nothing: blocks are taken as they are needed."""

    def generate(self, prompts: list[list[int]], num_tokens: int) -> Generator[Emitted]:
        params = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        streams = {}
        for stream, prompt in enumerate(prompts):
            self._num_requests += 1
            request_id = str(self._num_requests)
            streams[request_id] = stream
            self._engine.add_request(request_id, prompt, params)
        try:
            while self._engine.has_unfinished_requests():
                outputs = self._engine.step()
                yield [(streams[o.request_id], token) for o in outputs for one in o.outputs for token in one.token_ids]
        finally:
            for request_id in streams:
                self._engine.abort(request_id)

    def logits(self, token_ids: list[int]) -> Iterator[Any]:
        sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests"))
        from golden.replay import CHUNK, Replay

        decoder: Any = self._engine.model
        replay = Replay(decoder, len(token_ids), self._engine.args.kv_cache_dtype, self._precision or "exact")
        for start in range(0, len(token_ids), CHUNK):
            rows = replay.push(np.array(token_ids[start : start + CHUNK], dtype=np.int32))
            yield decoder.compute_logits(rows)


if __name__ == "__main__":
    serve(PellucidEngine(sys.argv[1] if len(sys.argv) > 1 else None))
