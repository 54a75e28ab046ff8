"""How far from float32: KL and greedy agreement with the golden logits, per KV type and precision, and llama.cpp where
it imports.

    python benchmarks/fidelity.py [MODEL ...] [--threads 2] [--token-by-token]

MODEL is an alias or a GGUF file for which tests/golden has a fixture; both aliases when none is given. Every position
of every golden document is compared, fed in chunks of 128 rows. llama.cpp's path for single tokens is another
arithmetic than its path for many: `--token-by-token` measures it too. The last line is JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pellucid.config import KV_CACHE_DTYPES, EngineArgs, KVCacheDType, Precision
from pellucid.kernels.dispatch import make_backend
from pellucid.model_store.store import resolve
from pellucid.models.decoder import Decoder
from pellucid.models.loading import load_model

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from golden.fidelity import GOLDEN_DIR, Fidelity, Float32Array, Golden, Int32Array, apply_head, load_golden, row_chunks
from golden.replay import CHUNK, Replay, load_head

DEFAULT_MODELS = ("smollm2:135m", "gemma3:270m")


class Engine(Protocol):
    """Something that gives logits for one sequence, chunk by chunk."""

    name: str

    def start(self, num_tokens: int) -> None:
        """Begin a new sequence of that many tokens."""
        ...

    def push(self, token_ids: Int32Array) -> Float32Array:
        """Logits [R, vocab] of the next rows."""
        ...


class PellucidEngine:
    """The native backend with one KV type and one precision; fast means that every position is a prompt's."""

    def __init__(self, decoder: Decoder, kv_dtype: KVCacheDType, precision: Precision = "exact") -> None:
        self.name = f"pellucid {decoder.backend.isa}, KV {kv_dtype}, {precision}"
        self._decoder = decoder
        self._kv_dtype: KVCacheDType = kv_dtype
        self._precision: Precision = precision

    def start(self, num_tokens: int) -> None:
        self._replay = Replay(self._decoder, num_tokens, self._kv_dtype, self._precision)

    def push(self, token_ids: Int32Array) -> Float32Array:
        return self._decoder.compute_logits(self._replay.push(token_ids))


class LlamaCppEngine:
    """llama.cpp with its default KV type (float16), in chunks or one row at a time."""

    def __init__(self, path: Path, threads: int, token_by_token: bool) -> None:
        from benchmarks.peers.llama_cpp_python.worker import LlamaCppPythonEngine

        self.name = f"llama.cpp, {'one row' if token_by_token else f'{CHUNK} rows'} at a time"
        self._engine = LlamaCppPythonEngine()
        self._engine.load(path, threads, 0, 1)
        self._step = 1 if token_by_token else CHUNK

    def start(self, num_tokens: int) -> None:
        self._engine.prepare(1, num_tokens)
        self._engine.clear()
        self._length = 0

    def push(self, token_ids: Int32Array) -> Float32Array:
        parts = []
        for rows in row_chunks(len(token_ids), self._step):
            parts.append(self._engine.push(token_ids[rows].tolist(), self._length))
            self._length += len(parts[-1])
        return np.concatenate(parts)


def find_golden(path: Path) -> Golden:
    """The fixture made from exactly this file."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    fixtures = [load_golden(fixture) for fixture in sorted(GOLDEN_DIR.glob("*.npz"))]
    for golden in fixtures:
        if golden.meta["sha256"] == digest:
            return golden
    known = ", ".join(golden.meta["model"] for golden in fixtures)
    raise SystemExit(f"{path}: no fixture in {GOLDEN_DIR} was made from this file (those there: {known})")


def measure(golden: Golden, head: Float32Array, engines: Sequence[Engine]) -> list[dict[str, Any]]:
    """Run all documents through all engines side by side, so that the golden logits are computed once."""
    results = [Fidelity() for _ in engines]
    seconds = [0.0] * len(engines)
    for document in golden.documents.values():
        for engine in engines:
            engine.start(len(document))
        for rows in row_chunks(len(document), CHUNK):
            reference = apply_head(document.hidden[rows], head)
            for index, engine in enumerate(engines):
                begin = time.perf_counter()
                logits = engine.push(document.token_ids[rows])
                seconds[index] += time.perf_counter() - begin
                results[index].add(reference, logits)
    return [
        {"engine": engine.name, **result.summary(), "seconds": round(spent, 2)}
        for engine, result, spent in zip(engines, results, seconds, strict=True)
    ]


def main() -> None:
    """Measure the models one after the other and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=DEFAULT_MODELS)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--token-by-token", action="store_true")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    print(f"{'model':24s} {'engine':44s} {'tokens':>6s} {'mean KL':>9s} {'max KL':>9s} {'agreement':>9s}")
    for name in arguments.models:
        path = Path(resolve(name))
        golden = find_golden(path)
        decoder = load_model(path, make_backend("native", arguments.threads))
        engines: list[Engine] = [PellucidEngine(decoder, dtype) for dtype in KV_CACHE_DTYPES]
        engines.append(PellucidEngine(decoder, EngineArgs().kv_cache_dtype, "fast"))
        if importlib.util.find_spec("llama_cpp"):
            engines.append(LlamaCppEngine(path, arguments.threads, token_by_token=False))
            if arguments.token_by_token:
                engines.append(LlamaCppEngine(path, arguments.threads, token_by_token=True))
        for row in measure(golden, load_head(path), engines):
            results.append({"model": path.name, **row})
            print(
                f"{path.name:24s} {row['engine']:44s} {row['tokens']:6d} {row['mean_kl']:9.2e} {row['max_kl']:9.2e} "
                f"{row['agreement']:9.2%}"
            )
    print(json.dumps({"benchmark": "fidelity", "threads": arguments.threads, "results": results}))


if __name__ == "__main__":
    main()
