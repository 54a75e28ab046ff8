"""How long a new process takes, from the outside: help, the first token, the peak of memory.

    python benchmarks/startup.py [--runs 5] [--model smollm2:135m]

Each figure is the median over fresh processes; the last line is JSON. The model is fetched first if it is not here.
Bytecode is kept even where PYTHONDONTWRITEBYTECODE is set, as an installation has it: compiling takes 0.3 s and more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

PELLUCID = [sys.executable, "-m", "pellucid"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
PROMPT = "The capital of France is"


def run(arguments: list[str]) -> tuple[float, float, float]:
    """Seconds to the first byte on stdout, seconds to the end, peak resident bytes of one process."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [*PELLUCID, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT
    )
    assert process.stdout is not None
    process.stdout.read(1)
    first = time.perf_counter() - start
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} ended with exit code {process.returncode}")
    return first, time.perf_counter() - start, usage.ru_maxrss * 1024


def packed_bytes(model: str) -> tuple[int, int]:
    """Bytes of the packed weights, and KV bytes a token takes."""
    from pellucid.config import DEFAULT_KV_CACHE_DTYPE
    from pellucid.kernels.dispatch import make_backend
    from pellucid.model_store.store import resolve
    from pellucid.models.loading import load_model

    decoder = load_model(Path(resolve(model)), make_backend("native"))
    return decoder.weight_bytes, decoder.config.kv_bytes_per_token(DEFAULT_KV_CACHE_DTYPE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--model", default="smollm2:135m")
    options = parser.parse_args()
    subprocess.run([*PELLUCID, "pull", options.model], check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    weights, kv = packed_bytes(options.model)
    generate = ["generate", PROMPT, "-m", options.model, "--preset", "greedy", "--max-tokens"]
    helps = [run(["--help"])[1] for _ in range(options.runs)]
    firsts = [run([*generate, "1"])[0] for _ in range(options.runs)]
    peaks = [run([*generate, "64"])[2] for _ in range(options.runs)]
    figures = {
        "model": options.model,
        "help_s": round(statistics.median(helps), 3),
        "first_token_s": round(statistics.median(firsts), 3),
        "peak_rss_mb": round(statistics.median(peaks) / 1e6, 1),
        "packed_weights_mb": round(weights / 1e6, 1),
        "kv_in_use_mb": round(80 * kv / 1e6, 1),
        "rest_mb": round((statistics.median(peaks) - weights - 80 * kv) / 1e6, 1),
    }
    for name, value in figures.items():
        print(f"{name:20} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
