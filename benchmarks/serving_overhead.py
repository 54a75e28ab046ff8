"""What HTTP costs: one stream of the same ids by the engine's own steps in a worker, and over HTTP.

Two clients ask over HTTP: the one of `pellucid bench serve`, whose Python takes processor time on the same cores, and
one that sleeps from the first piece of the answer to its end, so that what is left is the server's own. Both without
speculation, so that every token is a step and a piece of the stream.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks.peers.registry import OURS, PEERS
from benchmarks.peers.serving import CONTEXT, MODEL, Server, ServerError
from benchmarks.serving_scenarios import Figure, ScenarioError
from benchmarks.workers import Worker, WorkerError
from pellucid.cli.load.client import COMPLETIONS, PATHS, Target, ask
from pellucid.cli.load.driver import new_client
from pellucid.cli.load.workload import sentences

if TYPE_CHECKING:
    from benchmarks.serving import Run

OVERHEAD = "overhead"
OVERHEAD_FIGURES = {
    OVERHEAD: Figure("one stream over HTTP, Python client: time per token above the engine's own", "%"),
    "overhead-server": Figure("the same, a client that sleeps until the end", "%"),
    "overhead-processor": Figure("the same: processor time of the server's event loop per token", "µs"),
}
TIMEOUT = 600.0
_UNREACHED = 1 << 30


def measure_overhead(run: Run, python: Path, path: Path, rounds: int, tokenizer: Any) -> None:
    """All rounds; what went wrong is noted in the run."""
    log = run.out / "overhead.log"
    with (
        Worker(PEERS[OURS], python, run.threads, log) as worker,
        Server(OURS, python, path, run.threads, log, ("--speculative-method", "off")) as server,
    ):
        try:
            server.wait()
            fields = {"path": str(path), "threads": run.threads, "max_tokens": CONTEXT, "max_streams": 1}
            worker.call("load", TIMEOUT, **fields)
            for round_ in range(rounds * run.sizes.overhead_repeats):
                run.add(OURS, round_, _compare(run, worker, server, round_, tokenizer))
        except (WorkerError, ServerError, ScenarioError) as error:
            run.note(OURS, OVERHEAD, str(error))


def _compare(run: Run, worker: Worker, server: Server, round_: int, tokenizer: Any) -> dict[str, float]:
    """Ordinary words are answered with ordinary words, of which every token is a piece of the stream.

    The engine's own time is the mean of a stream before and one after those over HTTP.
    """
    num_tokens = run.sizes.overhead_tokens
    ids = tokenizer.encode(sentences(np.random.default_rng(round_), run.sizes.prompt_tokens))
    body = Target(MODEL, COMPLETIONS, {"ignore_eos": True, "prompt": ids}).body([], num_tokens)

    def inside() -> float:
        answer = worker.call("generate", TIMEOUT, prompts=[ids], num_tokens=num_tokens)
        return float(answer["window_s"] / answer["window_tokens"])

    before = inside()
    with_python = asyncio.run(_python_client(server, body))
    began = _loop_seconds(server)
    asleep = _sleeping_client(server, body)
    ended = _loop_seconds(server)
    own = (before + inside()) / 2
    found = {OVERHEAD: 100 * (with_python / own - 1), "overhead-server": 100 * (asleep / own - 1)}
    if began is not None and ended is not None:
        found["overhead-processor"] = 1e6 * (ended - began) / num_tokens
    print_line = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
    run.say(f"overhead: {own * 1e3:.3f} ms a token inside, {asleep * 1e3:.3f} over HTTP; {print_line}")
    return found


async def _python_client(server: Server, body: dict[str, Any]) -> float:
    async with new_client(server.url, None, TIMEOUT) as client:
        result = await ask(client, PATHS[COMPLETIONS], body, time.perf_counter())
    if result.failure is not None or result.tpot is None:
        raise ScenarioError(f"{result.failure}: {result.detail}")
    return result.tpot


def _sleeping_client(server: Server, body: dict[str, Any]) -> float:
    """Seconds a token. Once the first piece is there, the system does not wake the reader before the end."""
    url, content = urlsplit(server.url), json.dumps(body).encode()
    head = f"POST {url.path}{PATHS[COMPLETIONS]} HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    answer = b""
    with socket.create_connection((url.hostname or "", url.port or 80), timeout=TIMEOUT) as connection:
        connection.sendall(head.encode() + content)
        while b"data: " not in answer:
            answer += _received(connection, answer)
        first = time.perf_counter()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _UNREACHED)
        while not answer.endswith(b"0\r\n\r\n"):
            answer += _received(connection, answer)
        last = time.perf_counter()
    return (last - first) / (body["max_tokens"] - 1)


def _received(connection: socket.socket, before: bytes) -> bytes:
    part = connection.recv(1 << 20)
    if not part:
        raise ScenarioError(f"the answer ended early: {(before or b'nothing')[-200:]!r}")
    return part


def _loop_seconds(server: Server) -> float | None:
    """Processor time so far of the process's first thread, the event loop; None where the system does not say."""
    try:
        text = Path(f"/proc/{server.pid}/task/{server.pid}/schedstat").read_text(encoding="ascii")
    except OSError:
        return None
    return int(text.split()[0]) / 1e9
