"""Pellucid's own command line from the outside: a new process to its first text, and its peak memory.

    python -m benchmarks.command_line MODEL.gguf THREADS

Prints one JSON line. The harness runs it as a process of its own: Linux counts what the parent held when it made a
child into the child's peak (`ru_maxrss` is not reset by exec), so the parent must be small.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

PROMPT = "The capital of France is"


def run(model: str, threads: str, max_tokens: int) -> tuple[float, float]:
    """Seconds to the first byte on stdout and peak resident bytes."""
    command = [sys.executable, "-m", "pellucid", "generate", PROMPT, "-m", model, "-t", threads]
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
        raise SystemExit(f"pellucid generate ended with exit code {process.returncode}")
    return first, usage.ru_maxrss * 1024.0


def measure(path: Path, threads: int) -> dict[str, float]:
    """The figures by name; empty where the command fails."""
    command = [sys.executable, "-m", "benchmarks.command_line", str(path), str(threads)]
    root = str(Path(__file__).resolve().parent.parent)
    python_path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    environment = {**os.environ, "PYTHONPATH": python_path}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    return cast(dict[str, float], json.loads(done.stdout)) if done.returncode == 0 else {}


if __name__ == "__main__":
    seconds, _ = run(sys.argv[1], sys.argv[2], 1)
    _, peak = run(sys.argv[1], sys.argv[2], 64)
    print(json.dumps({"cli-first-token": seconds, "cli-peak-rss": peak / 1e6}))
