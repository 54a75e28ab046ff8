"""WebSockets as an operator sees them: close codes, the log, metrics, limits, draining."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket as sockets
from collections.abc import Iterator
from typing import Any

import pytest
from http_server import RunningServer, mock_engine, wait_for
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from pellucid.server import sockets as sockets_module
from pellucid.server import type_ahead
from pellucid.server.app import create_app
from pellucid.server.prefill import prompt_ids

PATH = "/v1/prefill/ws"
CONNECTIONS = f'pellucid_websocket_connections{{route="{PATH}"}}'


@contextlib.contextmanager
def opened(server: RunningServer, path: str = PATH, **headers: str) -> Iterator[ClientConnection]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    with connect(f"ws://127.0.0.1:{server.port}{path}", additional_headers=given) as socket:
        yield socket


def say(socket: ClientConnection, value: Any) -> dict[str, Any]:
    socket.send(value if isinstance(value, str | bytes) else json.dumps(value))
    answer: dict[str, Any] = json.loads(socket.recv(10))
    return answer


def close_code(socket: ClientConnection) -> int:
    """The code with which the server ends the connection, after whatever it still says."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            socket.recv(10)
    assert socket.protocol.close_rcvd is not None
    return int(socket.protocol.close_rcvd.code)


def lines(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().err.splitlines()]


def test_one_line_and_the_metrics_of_a_connection(capfd: pytest.CaptureFixture[str]) -> None:
    with RunningServer(mock_engine(), access_log=True) as server:
        with opened(server, X_Request_Id="typed-1") as socket:
            assert socket.response is not None
            assert socket.response.headers["X-Request-Id"] == "typed-1"
            assert say(socket, {"user": "u1", "cache_salt": "salt"})["type"] == "ready"
            assert say(socket, {"prompt": "my own words, " * 5})["kept_tokens"] == 48
            assert say(socket, {"prompt": "my own words, " * 5 + "a"})["cached_tokens"] == 48
            assert say(socket, "{")["error"]["code"] == "invalid_json"
            assert say(socket, {"prompt": "a", "nonsense": 1})["error"]["param"] == "nonsense"
            assert server.metric(CONNECTIONS) == 1
        wait_for(lambda: server.metric(CONNECTIONS) == 0)
        assert server.metric(f'pellucid_websocket_messages_total{{route="{PATH}"}}') == 5
        assert server.metric(f'pellucid_websocket_closes_total{{code="1000",route="{PATH}"}}') == 1
        assert server.metric(f'pellucid_http_requests_total{{route="{PATH}",status="101"}}') == 1
        assert server.metric("pellucid_prefilled_ahead_tokens_total") == 48
        for reason in ("invalid_json", "unknown_field"):
            assert server.metric(f'pellucid_request_failures_total{{reason="{reason}"}}') == 1
        server.post("/v1/prefill", {"prompt": "b" * 40})
        assert server.metric("pellucid_prefilled_ahead_tokens_total") == 48 + 32
    [line] = [line for line in lines(capfd) if line["event"] == "websocket"]
    assert line.pop("seconds") > 0
    assert line.pop("time")
    assert line == {
        "level": "info",
        "event": "websocket",
        "request_id": "typed-1",
        "client": "127.0.0.1",
        "method": "GET",
        "path": PATH,
        "status": 101,
        "model": "mock",
        "user": "u1",
        "prefilled_tokens": 48,
        "close_code": 1000,
        "messages": 5,
        "errors": 2,
    }


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer(mock_engine(), api_key=("one", "two"), max_body_bytes=1000) as running:
        yield running


HELLO = json.dumps({"api_key": "two"})
PROMPT = json.dumps({"prompt": "a"})


@pytest.mark.parametrize(
    ("messages", "code", "error"),
    [
        (["{}"], 1008, "invalid_api_key"),
        (['{"api_key": "three"}'], 1008, "invalid_api_key"),
        (['{"api_key": 3}'], 1008, "invalid_parameter"),
        (['{"api_key": null}'], 1008, "invalid_api_key"),
        (['{"api_key": "one", "model": "x"}'], 1008, "model_not_found"),
        (['{"api_key": "one", "modle": "x"}'], 1008, "unknown_field"),
        (['{"api_key": "one", "cache_salt": ""}'], 1008, "invalid_parameter"),
        (["hello"], 1007, "invalid_json"),
        (["[]"], 1007, "invalid_json"),
        (['{"api_key": NaN}'], 1007, "invalid_json"),
        (['{"api_key": "one", "api_key": "two"}'], 1007, "invalid_json"),
        (["[" * 900], 1007, "invalid_json"),
        ([b"{}"], 1003, "unsupported_media_type"),
        ([HELLO, b'{"prompt": "a"}'], 1003, "unsupported_media_type"),
        ([HELLO, PROMPT, b"\x00"], 1003, "unsupported_media_type"),
    ],
)
def test_what_ends_a_connection_is_told_and_has_its_code(
    server: RunningServer, messages: list[str | bytes], code: int, error: str
) -> None:
    with opened(server) as socket:
        for message in messages[:-1]:
            assert say(socket, message)["type"] in ("ready", "prefilled")
        said = say(socket, messages[-1])
        assert said["type"] == "error"
        assert said["error"]["code"] == error
        assert close_code(socket) == code


@pytest.mark.parametrize(
    ("is_text", "message", "code", "reason"),
    [(True, b"\xff\xfe", 1007, "invalid_utf8"), (False, b"x" * 1001, 1009, "body_too_large")],
)
def test_what_the_protocol_itself_refuses(
    is_text: bool,
    message: bytes,
    code: int,
    reason: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stubborn(*arguments: Any, **options: Any) -> list[int]:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        return await prompt_ids(*arguments, **options)

    monkeypatch.setattr(type_ahead, "prompt_ids", stubborn)
    with RunningServer(mock_engine(step_seconds=0.01), access_log=True, max_body_bytes=1000) as server:
        with opened(server) as socket:
            say(socket, {})
            socket.send(PROMPT)  # what is said of it finds nobody
            socket.send(message, text=is_text)
            assert close_code(socket) == code
        wait_for(lambda: server.metric(CONNECTIONS) == 0)
        assert server.metric(f'pellucid_request_failures_total{{reason="{reason}"}}') == 1
        wait_for(lambda: server.async_llm.num_unfinished == 0)
    [line] = [line for line in lines(capfd) if line["event"] == "websocket"]
    assert (line["close_code"], line["error"], line["level"]) == (code, reason, "info")
    # uvicorn logs a traceback of the bad text, which the server's log leaves out
    assert {record.getMessage() for record in caplog.records if record.levelname == "ERROR"} <= {
        "Invalid UTF-8 sequence received from client."
    }


def test_keys_in_the_headers(server: RunningServer) -> None:
    with opened(server, Authorization="Bearer one") as socket:
        assert say(socket, {})["type"] == "ready"
    with opened(server, Authorization="Bearer one") as socket:
        assert say(socket, {"api_key": "three"})["error"]["code"] == "invalid_api_key"
    for headers, path, status, code in (
        ({"Authorization": "Bearer three"}, PATH, 401, "invalid_api_key"),
        ({}, "/v1/elsewhere", 401, "invalid_api_key"),
        ({}, "/", 401, "invalid_api_key"),
        ({"Authorization": "Bearer two"}, "/v1/elsewhere", 404, "not_found"),
        ({"Authorization": "Bearer two"}, "/v1/completions", 404, "not_found"),
        ({"Origin": "https://page.example"}, PATH, 403, "foreign_origin"),
    ):
        with pytest.raises(InvalidStatus) as caught, opened(server, path, **headers):
            pass
        answer = caught.value.response
        assert answer.status_code == status
        assert json.loads(answer.body)["error"]["code"] == code
        assert answer.headers["X-Request-Id"].startswith("req-")


def test_an_ordinary_request_is_told_what_is_there(server: RunningServer) -> None:
    answer = server.get(PATH, headers={"Authorization": "Bearer one"})
    assert (answer.status_code, answer.headers["Upgrade"]) == (426, "websocket")
    assert answer.json()["error"]["code"] == "upgrade_required"


def test_who_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type_ahead, "FIRST_MESSAGE_SECONDS", 0.05)
    with RunningServer(mock_engine()) as server, opened(server) as socket:
        assert json.loads(socket.recv(5))["error"]["code"] == "body_timeout"
        assert close_code(socket) == 1008


def test_one_too_many_is_told_to_come_later() -> None:
    with RunningServer(mock_engine(), max_websockets=1, api_key=("k",)) as server:
        with opened(server) as silent, opened(server) as first:
            assert say(first, {"api_key": "k"})["type"] == "ready"
            with opened(server) as second:
                assert say(second, {"api_key": "k"})["error"]["code"] == "too_many_websockets"
                assert close_code(second) == 1013
            assert say(silent, {})["error"]["code"] == "invalid_api_key"  # who has no key is not told of limits
        with opened(server) as third:
            wait_for(lambda: server.metric(CONNECTIONS) == 1)
            assert say(third, {"api_key": "k"})["type"] == "ready"


def test_a_full_queue_is_told_and_the_next_text_counts() -> None:
    long: Any = {"prompt": "a", "max_tokens": 3000, "extra_body": {"ignore_eos": True}}
    with (
        RunningServer(mock_engine(step_seconds=0.005, max_num_seqs=1), max_queue=0) as server,
        server.client().completions.create(model="mock", stream=True, **long) as stream,
        opened(server) as socket,
    ):
        next(iter(stream))
        say(socket, {})
        assert say(socket, {"prompt": "a" * 40})["error"]["code"] == "queue_full"
        stream.close()
        wait_for(lambda: server.async_llm.num_unfinished == 0)
        assert say(socket, {"prompt": "a" * 40})["kept_tokens"] == 32


def test_draining_ends_what_is_open_and_lets_nobody_in(capfd: pytest.CaptureFixture[str]) -> None:
    with RunningServer(mock_engine(step_seconds=0.02), access_log=True) as server:
        with opened(server) as computing, opened(server) as idle, opened(server) as late:
            for socket in (computing, idle):
                say(socket, {})
            computing.send(json.dumps({"prompt": "a" * 3000}))
            wait_for(lambda: server.async_llm.num_unfinished > 0)
            asyncio.run(server.models.close())
            for socket in (computing, idle):
                assert close_code(socket) == 1012
            assert say(late, {})["error"]["code"] == "shutting_down"
            assert close_code(late) == 1012
        wait_for(lambda: server.metric(CONNECTIONS) == 0)
    ended = [line for line in lines(capfd) if line["event"] == "websocket"]
    assert [(line["close_code"], line["error"]) for line in ended] == [(1012, "shutting_down")] * 3


def test_a_mistake_of_ours_is_1011_and_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(type_ahead, "prompt_ids", fail)
    with RunningServer(mock_engine(), access_log=True) as server:
        with opened(server, X_Request_Id="it-1") as socket:
            say(socket, {})
            said = say(socket, {"prompt": "a"})
            assert said["error"]["code"] == "internal_error"
            assert "secret" not in json.dumps(said)
            assert close_code(socket) == 1011
        wait_for(lambda: server.metric(CONNECTIONS) == 0)
        [record] = [record for record in caplog.records if record.name == "pellucid"]
        assert "it-1" in record.getMessage()
        assert record.exc_info is not None
        assert "secret" in str(record.exc_info[1])
    [line] = [line for line in lines(capfd) if line["event"] == "websocket"]
    assert (line["level"], line["close_code"], line["error"]) == ("error", 1011, "internal_error")


def test_an_engine_that_has_failed_is_1011() -> None:
    engine = mock_engine()
    with RunningServer(engine) as server, opened(server) as socket:
        say(socket, {})

        def fail() -> None:
            raise SystemError("broken")

        engine.step = fail  # type: ignore[method-assign, assignment]
        assert say(socket, {"prompt": "a" * 40})["error"]["code"] == "engine_dead"
        assert close_code(socket) == 1011


def test_a_connection_that_breaks_off_is_1006(capfd: pytest.CaptureFixture[str], caplog: Any) -> None:
    with RunningServer(mock_engine(step_seconds=0.01), access_log=True) as server:
        for says_farewell, code in ((False, 1006), (True, 1001)):
            with opened(server) as socket:
                say(socket, {})
                socket.send(json.dumps({"prompt": "a" * 3000}))
                wait_for(lambda: server.async_llm.num_unfinished > 0)
                if says_farewell:
                    socket.close(1001)
                else:
                    socket.socket.shutdown(sockets.SHUT_RDWR)
            wait_for(lambda: server.metric(CONNECTIONS) == 0)
            wait_for(lambda: server.async_llm.num_unfinished == 0)  # what it began is ended
            assert server.metric(f'pellucid_websocket_closes_total{{code="{code}",route="{PATH}"}}') == 1
    assert [line["close_code"] for line in lines(capfd) if line["event"] == "websocket"] == [1006, 1001]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_what_is_sent_after_the_end_is_no_mistake_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn raises RuntimeError for it while a client that does not read keeps the connection from closing."""
    server = RunningServer(mock_engine())
    said: list[str] = []
    coming = iter([{"type": "websocket.connect"}, {"type": "websocket.receive", "text": "{}"}])

    async def send(message: Any) -> None:
        said.append(message["type"])
        if message["type"] == "websocket.send":
            raise RuntimeError("Unexpected ASGI message 'websocket.send', after sending 'websocket.close'.")

    async def receive() -> Any:
        return next(coming)

    scope = {"type": "websocket", "path": PATH, "query_string": b"", "headers": [(b"host", b"127.0.0.1")]}
    asyncio.run(create_app(server.models, server.settings)(scope, receive, send))
    asyncio.run(server.models.close())
    assert said == ["websocket.accept", "websocket.send"]
    assert not caplog.records


def test_who_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sockets_module, "WRITE_SECONDS", 0.2)
    with RunningServer(mock_engine(), access_log=True) as server:
        raw = sockets.socket()
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 1024)
        raw.connect(("127.0.0.1", server.port))
        with raw, contextlib.suppress(OSError):
            key = "dGhlIHNhbXBsZSBub25jZQ=="
            raw.sendall(
                f"GET {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
            )
            raw.settimeout(1)
            assert b" 101 " in raw.recv(1000)
            mask = bytes(4)
            name = json.dumps("\U0001f600" * 64, ensure_ascii=False)  # the refusal shows it in escapes
            long = f"{{{name}: 1, {name}: 1}}".encode()
            raw.sendall(bytes([0x81, 0x80 | 2]) + mask + b"{}")
            while True:  # refusals pile up until nothing more fits on the way
                raw.sendall((bytes([0x81, 0x80 | 126]) + len(long).to_bytes(2, "big") + mask + long) * 100)
        wait_for(lambda: server.metric(CONNECTIONS) == 0, 30)
    [line] = [line for line in lines(capfd) if line["event"] == "websocket"]
    assert line["close_code"] == 1006
