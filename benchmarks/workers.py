"""A worker process as the benchmark sees it: calls with a time limit, its peak memory, its end."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.environments import ROOT
from benchmarks.peers.registry import Peer


class WorkerError(Exception):
    """The engine answered with an error, took too long, or ended."""


class Worker:
    """One engine in a process of its own; what it prints goes to `log`."""

    def __init__(self, peer: Peer, python: Path, threads: int, log: Path) -> None:
        self.peer = peer
        self.begin = time.perf_counter()
        """When the process was started."""
        path = str(ROOT)
        if peer.is_ours and os.environ.get("PYTHONPATH"):
            path += os.pathsep + os.environ["PYTHONPATH"]
        self._log = log.open("ab")
        self._buffer = b""
        self._process = subprocess.Popen(
            [str(python), "-m", peer.worker, *peer.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "OMP_NUM_THREADS": str(threads),
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "false",
            },
        )

    def call(self, name: str, timeout: float, **fields: Any) -> dict[str, Any]:
        """Send one call and wait for its answer, at most `timeout` seconds. Raises `WorkerError`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"call": name, **fields}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise WorkerError(f"the process ended with exit code {self._process.poll()}") from error
        answer: dict[str, Any] = json.loads(self._read_line(timeout))
        if "error" in answer:
            raise WorkerError(str(answer["error"]).strip())
        return answer

    def _read_line(self, timeout: float) -> bytes:
        assert self._process.stdout is not None
        end = time.perf_counter() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = end - time.perf_counter()
                if left <= 0 or not selector.select(left):
                    self.close()
                    raise WorkerError(f"no answer within {timeout:.0f} s")
                data = os.read(self._process.stdout.fileno(), 1 << 20)
                if not data:
                    raise WorkerError(f"the process ended with exit code {self._process.wait()}")
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def peak_rss_bytes(self) -> int:
        """The largest resident memory so far (VmHWM); 0 where the system does not say."""
        try:
            status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        except OSError:
            return 0
        kilobytes = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(kilobytes[0]) * 1024 if kilobytes else 0

    def close(self) -> None:
        """End the process: first by closing its input, then by force."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
