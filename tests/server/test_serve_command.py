"""`pellucid serve` as a process: its line, its refusals, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_server import mock_engine, wait_for
from tiny_model import write_tiny_model
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from pellucid.cli.serve import room
from pellucid.engine.async_llm import AsyncLLM
from pellucid.errors import PellucidWarning
from pellucid.model_store.progress import format_bytes

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
BYTES_A_TOKEN = mock_engine().storage.nbytes // 16384
SMALL = ("--max-model-len", "512", "--port", "0")


@contextmanager
def serving(*arguments: str, env: dict[str, str] | None = None) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """(process, its line, its URL)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pellucid", "serve", *SMALL, *arguments],
        env={**ENVIRONMENT, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://[\d.]+:\d+", line)
    try:
        assert found is not None, (line, process.stderr.read() if process.stderr else "")
        yield process, line, found[0]
    finally:
        process.kill()
        process.communicate()


def refusal(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pellucid", "serve", *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done
    [line] = done.stderr.splitlines()
    return line.removeprefix("error: ")


def test_one_line_then_answers_and_ctrl_c_drains(smollm2_path: Path) -> None:
    with serving("smollm2:135m", "--served-model-name", "small", env={"PELLUCID_API_KEY": "k"}) as (process, line, url):
        assert line == (
            f"Pellucid serves small on {url}/v1 · KV cache 48.7 MB: 128 blocks of 16, 2048 tokens; "
            "at most 512 a request (--max-model-len; the model has 8192), 4 of that length at once\n"
        )
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/version").status_code == 200
        body: dict[str, Any] = {"prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True}
        headers = {"Authorization": "Bearer k"}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            rest = [text for text in lines if text]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        assert out == ""
        logged = [json.loads(text) for text in err.splitlines()]
        assert [entry["status"] for entry in logged] == [401, 200, 200]
        assert "Once" not in err


def test_a_second_signal_does_not_wait(smollm2_path: Path) -> None:
    with serving("--no-access-log") as (process, _, url):
        body = {"prompt": "Once", "max_tokens": 500, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            wait_for(lambda: httpx.get(f"{url}/ready").status_code == 503)  # it drains, and still answers
            refused = httpx.post(f"{url}/v1/completions", json=body)
            assert (refused.json()["error"]["code"], refused.headers["Retry-After"]) == ("shutting_down", "5")
            process.send_signal(signal.SIGTERM)
            rest = [text for text in lines if text]
        assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "shutting_down"
        process.communicate(timeout=30)
        assert process.returncode == 0


def test_the_deadline_ends_what_runs_waits_and_stalls(tmp_path: Path) -> None:
    """Streams, one that waits in the queue, a reader that does not read, half a body, and silent connections."""
    model = write_tiny_model(tmp_path / "tiny.gguf")
    flags = ("--shutdown-timeout", "0.3", "--max-num-seqs", "2", "--no-access-log")
    with serving(str(model), *flags) as (process, _, url):
        body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True, "logprobs": 100}
        port = int(url.rpartition(":")[2])
        data = json.dumps(body).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(6)]
            for one in sockets[:4]:
                one.sendall(head + str(len(data)).encode() + b"\r\n\r\n" + data)
            sockets[4].sendall(head + b"99\r\n\r\n{")
            sockets[0].recv(10)  # the others read nothing
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            for _ in range(20):  # an impatient person
                process.send_signal(signal.SIGINT)
                time.sleep(0.01)
            _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "traceback" not in err.lower()


def test_a_websocket_ends_when_the_draining_begins(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    with serving(str(model), "--served-model-name", "tiny") as (process, _, url):
        address = f"{url.replace('http', 'ws', 1)}/v1/prefill/ws"
        body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with connect(address) as typed, httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
            typed.send("{}")
            assert json.loads(typed.recv(10))["model"] == "tiny"
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert json.loads(typed.recv(10))["error"]["code"] == "shutting_down"
            with pytest.raises(ConnectionClosed):
                typed.recv(10)
            assert typed.close_code == 1012
            assert [text for text in lines if text][-1] == "data: [DONE]"  # and what runs goes on to its end
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    logged = [json.loads(text) for text in err.splitlines()]
    assert [entry.get("close_code") for entry in logged] == [1012, None]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "1024 blocks of 16, 16384 tokens; at most 4096 a request (the model's limit), 4 of that length at once"),
        (
            {"max_model_len": 1000},
            "252 blocks of 16, 4032 tokens; at most 1000 a request (--max-model-len; the model has 4096), "
            "4 of that length at once",
        ),
        (
            {"max_model_len": 5000, "kv_cache_memory_bytes": 6000 * BYTES_A_TOKEN},
            "375 blocks of 16, 6000 tokens; at most 5000 a request (--max-model-len; the model was trained for 4096), "
            "1 of that length at once",
        ),
    ],
)
def test_what_the_cache_has_room_for_is_told(fields: dict[str, Any], told: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PellucidWarning)
        engine = mock_engine(**fields)
    llm = AsyncLLM(engine)
    assert room(llm) == f"KV cache {format_bytes(engine.storage.nbytes)}: {told}"
    asyncio.run(llm.close())


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ("--max-model-len", "10000000000"),
            r"a request of max_model_len (?P<asked>\d+) needs \d+ bytes of KV cache \((?P<each>\d+) a token\), but "
            r"(?P<room>\d+) bytes of memory are free: set max_model_len to (?P<fits>\d+) or less, or kv_cache_dtype to "
            "int8 or int4",
        ),
        (
            ("--max-model-len", "100000", "--kv-cache-memory-bytes", "1000000"),
            r"kv_cache_memory_bytes is (?P<room>1000000), room for \d+ tokens of (?P<each>\d+) bytes, but a request of "
            r"max_model_len (?P<asked>\d+) needs \d+: raise kv_cache_memory_bytes or lower max_model_len to "
            r"(?P<fits>\d+)",
        ),
    ],
)
def test_a_context_that_does_not_fit_is_one_sentence(
    tmp_path: Path, flags: tuple[str, ...], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from pellucid.cli.main import main

    model = write_tiny_model(tmp_path / "tiny.gguf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PellucidWarning)
        assert main(["serve", str(model), "--port", "0", *flags]) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    found = re.fullmatch(f"error: {sentence}", line)
    assert found is not None, line
    asked, each, room, fits = (int(found[name]) for name in ("asked", "each", "room", "fits"))
    assert fits * each <= room < (fits + 16) * each < asked * each, "the largest that fits, in whole blocks"


def test_a_port_in_use_is_one_sentence_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        sentence = refusal("no-such-model-is-looked-for", "--port", port)
        assert port in sentence
        assert "address already in use" in sentence


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--port", "70000"), "port"),
        (("--max-queue", "-1"), "max_queue"),
        (("--max-body-bytes", "0"), "max_body_bytes"),
        (("--shutdown-timeout", "-1"), "shutdown_timeout"),
        (("--host", "no.such.host.invalid"), "host"),
        (("--api-key", ""), "api_key"),
        (("--port", "0", "--max-num-seqs", "0"), "max_num_seqs"),
        (("-m", "a", "b"), "two models"),
    ],
)
def test_bad_settings_are_one_sentence(
    arguments: tuple[str, ...], word: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from pellucid.cli.main import main

    assert main(["serve", *arguments]) == 2
    [line] = capfd.readouterr().err.splitlines()
    assert word in line


def test_help_imports_no_web_framework() -> None:
    script = "import sys; from pellucid.cli.main import main; main(['serve', '--help']); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True).stdout
    assert "--api-key" in out
    assert not {"fastapi", "uvicorn", "starlette", "pydantic", "prometheus_client"} & set(out.split())
