"""Clients that leave, stall or come together: nothing leaks and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from http_server import RunningServer, mock_engine, wait_for

from pellucid.server import gate
from pellucid.server.running import bind

LONG = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True}


def is_idle(server: RunningServer) -> bool:
    stats = server.async_llm.stats
    return stats.kv_blocks_used == 0 and stats.num_running == stats.num_waiting == server.async_llm.num_unfinished == 0


def connect(server: RunningServer, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """Send a request by hand, and read nothing."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def test_g65_a_long_prompt_stalls_no_stream() -> None:
    """In no step is more than its share of tokens computed, and the stream has its token in each of them."""
    steps: list[list[int]] = []
    with RunningServer(mock_engine(max_num_batched_tokens=256, speculative_method="off")) as server:
        with httpx.Client(timeout=60) as http:
            body = {**LONG, "stream": True}
            stream = http.send(http.build_request("POST", f"{server.url}/v1/completions", json=body), stream=True)
            lines = stream.iter_lines()
            next(lines)
            server.engine.model.on_forward = lambda batch: steps.append(np.diff(batch.query_start_loc).tolist())  # type: ignore[attr-defined]
            assert server.post("/v1/completions", {"prompt": "b" * 3000, "max_tokens": 1}).status_code == 200
            stream.close()
        wait_for(lambda: is_idle(server))
    beside = [lengths for lengths in steps if max(lengths) > 1]
    assert sum(map(sum, beside)) - len(beside) == 3000
    assert all(len(lengths) == 2 and min(lengths) == 1 and sum(lengths) <= 256 for lengths in beside)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_a53_a_client_that_leaves_ends_its_request(slow_server: RunningServer, stream: bool, n: int) -> None:
    connection = connect(slow_server, {**LONG, "stream": stream, "n": n})
    wait_for(lambda: slow_server.async_llm.stats.num_running == n)
    connection.close()
    assert wait_for(lambda: is_idle(slow_server)) < 1.0


def test_a53_kill_9_of_a_client_in_the_middle_of_its_stream(slow_server: RunningServer) -> None:
    script = f"""
        import httpx
        with httpx.stream("POST", "{slow_server.url}/v1/completions", json={ {**LONG, "stream": True}!r}) as answer:
            for line in answer.iter_lines():
                print(line, flush=True)
    """
    client = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline().startswith(b"data: ")
    assert slow_server.async_llm.stats.kv_blocks_used
    os.kill(client.pid, signal.SIGKILL)
    client.wait()
    client.stdout.close()
    assert wait_for(lambda: is_idle(slow_server)) < 1.0
    assert slow_server.client().completions.create(model="mock", prompt="a").choices


def test_16_clients_at_once_each_get_their_solo_answer(server: RunningServer) -> None:
    def options(i: int) -> dict[str, Any]:
        return {"prompt": f"client {i}", "max_tokens": 10 + 3 * i, "temperature": 1.0, "seed": i, "logprobs": 1}

    solo = [server.client().completions.create(model="mock", **options(i)).choices[0] for i in range(16)]

    async def together() -> list[tuple[str, list[float], str]]:
        async with server.async_client() as client:
            return await asyncio.gather(*(ask(client, i) for i in range(16)))

    async def ask(client: openai.AsyncOpenAI, i: int) -> tuple[str, list[float], str]:
        text, values, reason = "", [], ""
        async for chunk in await client.completions.create(model="mock", stream=True, **options(i)):
            for choice in chunk.choices:
                text += choice.text
                values += (choice.logprobs.token_logprobs if choice.logprobs else None) or []
                reason = choice.finish_reason or reason
        return text, values, reason

    for (text, values, reason), expected in zip(asyncio.run(together()), solo, strict=True):
        assert text == expected.text
        assert expected.logprobs is not None
        assert values == expected.logprobs.token_logprobs
        assert reason == expected.finish_reason


def test_a_slow_reader_holds_up_nobody() -> None:
    """Its socket is full; the engine goes on, the others get their answers, and it gets all of its own at last."""
    with RunningServer(mock_engine()) as server:
        body = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 800, "ignore_eos": True}
        slow = connect(server, {**body, "stream": True, "logprobs": True, "top_logprobs": 200}, "/v1/chat/completions")
        for i in range(3):
            assert server.client().completions.create(model="mock", prompt=f"{i}", max_tokens=5).choices
        wait_for(lambda: is_idle(server), 30)  # its request has ended although nothing was read
        slow.settimeout(20)
        received = bytearray()
        while not received.endswith(b"0\r\n\r\n"):
            part = slow.recv(1 << 20)
            assert part
            received += part
        assert len(received) > 8_000_000  # more than the sockets' buffers hold
        assert b"data: [DONE]" in received[-200:]
        slow.close()


def test_a_slow_reader_that_leaves_frees_its_blocks(slow_server: RunningServer) -> None:
    slow = connect(slow_server, {**LONG, "stream": True, "logprobs": 100})
    wait_for(lambda: slow_server.async_llm.stats.num_running == 1)
    time.sleep(0.3)
    slow.close()
    assert wait_for(lambda: is_idle(slow_server)) < 1.0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_never_reads_is_given_up(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is larger than all buffers between; it must hold neither blocks nor its model for ever."""
    monkeypatch.setattr(gate, "WRITE_SECONDS", 0.3)
    with RunningServer(mock_engine(step_seconds=0.001)) as server:
        body = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 600, "ignore_eos": True}
        stalled = connect(
            server, {**body, "stream": stream, "logprobs": True, "top_logprobs": 200}, "/v1/chat/completions"
        )
        for i in range(3):
            assert server.client().completions.create(model="mock", prompt=f"{i}", max_tokens=5).choices
        model = server.models.models[0]
        wait_for(lambda: is_idle(server) and not model.num_users, 30)
        if stream:  # a whole answer is in the hands of the system at once
            assert 'pellucid_request_failures_total{reason="client_gone"} 1.0' in server.get("/metrics").text
        stalled.settimeout(20)
        while part := stalled.recv(1 << 20):  # what was on its way, then the end of the connection or of the answer
            if part.endswith((b"}", b"0\r\n\r\n")):
                break
        stalled.close()


def test_connections_notice_machines_that_vanish() -> None:
    with socket.socket() as client, bind("127.0.0.1", 0) as listening:
        listening.listen()
        client.connect(listening.getsockname())
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert 0 < accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
            assert 0 < accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 60_000


def test_a_half_open_socket_disturbs_nobody(server: RunningServer) -> None:
    """Half a request, then silence; and a client that has closed its sending side, but still reads."""
    half = socket.create_connection(("127.0.0.1", server.port))
    half.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    )
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    assert server.client().completions.create(model="mock", prompt="a").choices
    assert is_idle(server)
    shut = connect(server, {"prompt": "abc", "max_tokens": 5})
    shut.shutdown(socket.SHUT_WR)
    wait_for(lambda: is_idle(server))
    for connection in (half, shut, *silent):
        connection.close()
    assert server.client().completions.create(model="mock", prompt="a").choices


def test_bytes_that_are_no_http(server: RunningServer) -> None:
    for data in (b"\x16\x03\x01" * 50, b"GET / HTTP/9\r\n\r\n", b"A" * 200_000):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(data)
            connection.settimeout(5)
            connection.recv(100)
    assert server.get("/health").status_code == 200


def test_an_engine_that_dies_is_said_everywhere() -> None:
    with RunningServer(mock_engine(step_seconds=0.005)) as server, httpx.Client(timeout=30) as http:
        request = http.build_request("POST", server.url + "/v1/completions", json={**LONG, "stream": True})
        streaming = http.send(request, stream=True)

        def fail(batch: object) -> None:
            raise RuntimeError("a wire has come loose")

        server.engine.model.on_forward = fail  # type: ignore[attr-defined]
        events = [line for line in streaming.iter_lines() if line]
        assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == "engine_dead"
        assert events[-1] == "data: [DONE]"
        assert server.post("/v1/completions", {"prompt": "a"}).status_code == 503
        assert server.get("/health").status_code == 503
        assert server.get("/ready").status_code == 503
        assert server.get("/version").status_code == 200
