"""Pellucid's own command line from the outside: a new process to its first text, and its peak memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.workers import WorkerError

PROMPT = "The capital of France is"


def run(path: Path, threads: int, max_tokens: int) -> tuple[float, float]:
    """Seconds to the first byte on stdout and peak resident bytes. Raises `WorkerError` when the command fails."""
    command = [sys.executable, "-m", "pellucid", "generate", PROMPT, "-m", str(path), "-t", str(threads)]
    begin = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--temperature", "0", "--max-tokens", str(max_tokens)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    process.stdout.read(1)
    first = time.perf_counter() - begin
    process.stdout.read()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise WorkerError(f"pellucid generate ended with exit code {process.returncode}")
    return first, usage.ru_maxrss * 1024.0


def measure(path: Path, threads: int) -> dict[str, float]:
    """Two processes: one for a single token, one for 64 of them."""
    first, _ = run(path, threads, 1)
    _, peak = run(path, threads, 64)
    return {"cli-first-token": first, "cli-peak-rss": peak / 1e6}
