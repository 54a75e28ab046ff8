"""What no client sends, over bare sockets: the server answers in a sentence or closes, logs no mistake, and goes on."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from http_server import RunningServer, mock_engine, wait_for

from pellucid.server import protocols
from pellucid.server.logs import Log

CLOSE = b"Connection: close"
BODY = b'{"prompt": "a", "max_tokens": 1}'
DEEP = 900
"""Brackets that JSON's parser still takes; Python's stack has 1000 places."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer(mock_engine()) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_was_a_mistake(server: RunningServer, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert server.post("/v1/completions", json.loads(BODY)).status_code == 200


def talk(server: RunningServer, *parts: bytes, half: bool = False) -> bytes:
    """All that comes back until the server closes the connection. A second part is sent after an answer to one."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        answers = []
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # it has not read all that was sent
            for i, part in enumerate(parts):
                if i:
                    answers.append(connection.recv(65536))
                connection.sendall(part)
            if half:
                connection.shutdown(socket.SHUT_WR)
            while answer := connection.recv(65536):
                answers.append(answer)
        return b"".join(answers)


def request(
    body: bytes = BODY,
    *headers: bytes,
    path: bytes = b"/v1/completions",
    method: bytes = b"POST",
    kind: bytes = b"application/json",
) -> bytes:
    lines = [b"Host: 127.0.0.1", b"Content-Type: " + kind, *headers, CLOSE]
    if not any(b"Transfer-Encoding" in line for line in headers):
        lines.append(b"Content-Length: %d" % len(body))
    return b"%s %s HTTP/1.1\r\n" % (method, path) + b"\r\n".join(lines) + b"\r\n\r\n" + body


def get(path: bytes, *headers: bytes, method: bytes = b"GET") -> bytes:
    return request(b"", *headers, path=path, method=method)


def handshake(*headers: bytes, method: bytes = b"GET") -> bytes:
    upgrade = (
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    return get(b"/v1/prefill/ws", *upgrade, *headers, method=method).replace(CLOSE + b"\r\n", b"")


def chat(extra: bytes) -> bytes:
    body = b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, ' + extra + b"}"
    return request(body, path=b"/v1/chat/completions")


def nested(count: int, opening: bytes = b"[", closing: bytes = b"]", inside: bytes = b"") -> bytes:
    return opening * count + inside + closing * count


CHUNKED = b"Transfer-Encoding: chunked"
NO_HEAD = "this is no valid HTTP request"
REFUSED: dict[str, tuple[bytes, int, str]] = {
    "garbage": (b"\x00\xff\xfe garbage\r\n\r\n", 400, NO_HEAD),
    "TLS": (bytes.fromhex("16030100a5010000a10303") + bytes(160), 400, NO_HEAD),
    "HTTP/0.9": (b"GET /health\r\n\r\n", 400, NO_HEAD),
    "no Host": (b"GET /health HTTP/1.1\r\n\r\n", 400, "Missing mandatory Host: header"),
    "no header": (b"GET /health HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400, NO_HEAD),
    "NUL in a header": (get(b"/health", b"A: b\x00"), 400, NO_HEAD),
    "a large head": (get(b"/health", b"A: " + b"a" * 200_000), 431, "its head is too large"),
    "many headers": (get(b"/health", *(b"H%d: v" % i for i in range(20_000))), 431, "its head is too large"),
    "a long path": (get(b"/" + b"a" * 50_000), 404, "there is no /aaaa"),
    "half characters in a path": (get(b"/%ff%00"), 404, "there is no /"),
    "half characters in a name": (get(b"/v1/models/%ed%a0%80"), 404, "is not served here"),
    "above the root": (get(b"/glass/%2e%2e/%2e%2e/etc/passwd"), 404, "there is no /glass"),
    "a header's end in a path": (get(b"/v1/traces/a%0d%0aX-Evil:%20y"), 404, "there is no trace"),
    "another method": (request(method=b"FROB"), 405, "FROB is not served here"),
    "the wrong method": (get(b"/v1/completions"), 405, "GET is not served here"),
    "two lengths": (request(BODY, b"Content-Length: 5"), 400, "conflicting Content-Length"),
    "a length below 0": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400, "bad Content-Length"),
    "a length without end": (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: 99999999999999999999\r\n\r\n{", 413, "larger than"),
    "no chunk": (request(b"zz\r\n{}\r\n0\r\n\r\n", CHUNKED), 400, "illegal chunk header"),
    "chunks without end": (request(b"10000\r\n" + b" " * 65536 + b"\r\n" + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 80,
        CHUNKED), 413, "larger than"),
    "another coding": (request(b"", b"Transfer-Encoding: gzip, chunked"), 400, "Only Transfer-Encoding: chunked"),
    "gzip": (request(gzip.compress(BODY), b"Content-Encoding: gzip"), 415, "without a Content-Encoding"),
    "deflate": (request(zlib.compress(BODY), b"Content-Encoding: deflate"), 415, "without a Content-Encoding"),
    "gzip that is not named": (request(gzip.compress(BODY)), 400, "byte 1 is 0x8b"),
    "a form": (request(kind=b"application/x-www-form-urlencoded"), 415, "must be application/json"),
    "parts": (request(kind=b"multipart/form-data; boundary=x"), 415, "must be application/json"),
    "nothing": (request(b""), 400, "not valid JSON"),
    "a scalar": (request(b"5"), 400, "must be a JSON object"),
    "two values": (request(b"{} {}"), 400, "Extra data"),
    "a byte order mark": (request(b"\xef\xbb\xbf" + BODY), 400, "it begins with a byte order mark"),
    "UTF-16": (request(BODY.decode().encode("utf-16")), 400, "byte 0 is 0xff, where UTF-8 has no such byte"),
    "Latin-1": (request('{"prompt": "é"}'.encode("latin-1")), 400, "byte 12 is 0xe9"),
    "NaN": (request(b'{"prompt": "a", "temperature": NaN}'), 400, "NaN is not JSON"),
    "infinity": (request(b'{"prompt": "a", "temperature": 1e999}'), 400, "temperature is inf"),
    "minus infinity": (request(b'{"prompt": "a", "logit_bias": {"65": -1e999}}'), 400, "logit_bias[65] is -inf"),
    "a long number": (request(b'{"max_tokens": ' + b"9" * 5000 + b"}"), 400, "a number has more than 4300 digits"),
    "a name twice": (request(b'{"prompt": "a", "prompt": "b"}'), 400, "'prompt' stands in one object twice"),
    "depth": (request(b'{"prompt": ' + nested(100_000) + b"}"), 400, "the body is nested too deeply"),
    "deep ids": (request(b'{"prompt": ' + nested(DEEP) + b"}"), 400, "prompt has [[["),
    "deep messages": (chat(b'"stop": ' + nested(DEEP)), 400, "stop"),
    "a deep schema": (
        chat(b'"structured_outputs": {"json": ' + nested(DEEP, b'{"items": ', b"}", b"{}") + b"}"), 400,
        "nests schemas more than 100 deep"),
    "deep variables": (
        chat(b'"chat_template_kwargs": {"a": ' + nested(DEEP) + b"}"), 400, "... is nested more than 64 levels deep"),
    "deep metadata": (chat(b'"metadata": {"a": ' + nested(DEEP) + b"}"), 400, "metadata must have"),
    "half a pair in a text": (
        request(rb'{"prompt": "\ud83e"}'), 400, "prompt has half a surrogate pair"),
    "half a pair in a list": (
        request(rb'{"prompt": ["a", "\uDD99\ud83e"]}'), 400, "prompt[1] has half a surrogate pair"),
    "half a pair in a message": (
        chat(rb'"tools": [{"function": {"name": "\ud83e"}}]'), 400, "tools[0].function.name has half a surrogate pair"),
    "half a pair in a name": (chat(rb'"metadata": {"\ud83e": "a"}'), 400, "a name in metadata has half a surrogate"),
    "half a pair very deep": (
        request(b'{"a": ' + nested(DEEP, b'{"' + b"a" * 1000 + b'": ', b"}", rb'"\ud83e"') + b"}"), 400, "aaa has"),
    "a handshake by POST": (
        handshake(method=b"POST"), 400, "this is no handshake of a WebSocket: unsupported HTTP method"),
    "a handshake with many headers": (
        handshake(*(b"H%d: v" % i for i in range(300))), 400, "this is no handshake of a WebSocket"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_one_sentence(server: RunningServer, name: str) -> None:
    data, status, words = REFUSED[name]
    head, _, body = talk(server, data).partition(b"\r\n\r\n")
    assert head.split()[1] == str(status).encode(), (head, body)
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert len(error["message"]) <= 1000
    assert error["param"] is None or len(error["param"]) <= 200


TAKEN: dict[str, tuple[bytes, int]] = {
    "HTTP/1.0": (request().replace(b"HTTP/1.1", b"HTTP/1.0"), 200),
    "chunks of one byte": (request(b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n", CHUNKED), 200),
    "bytes that are no ASCII in headers": (
        request(BODY, b"X-Request-Id: \xe9\xff", b"Authorization: Bearer \xe9"),
        200,
    ),
    "a body of a GET": (b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab", 200),
    "whole pairs": (request(rb'{"prompt": "\ud83e\udd99", "max_tokens": 1}'), 200),
    "an unknown upgrade": (request(BODY, b"Upgrade: h2c"), 200),
    "HEAD": (get(b"/health", method=b"HEAD"), 200),
    "HEAD of the models": (get(b"/v1/models", method=b"HEAD"), 200),
    "HEAD of the page": (get(b"/", method=b"HEAD"), 200),
    "HEAD of nothing": (get(b"/nothing", method=b"HEAD"), 404),
}


@pytest.mark.parametrize("name", TAKEN)
def test_it_is_unusual_and_taken(server: RunningServer, name: str) -> None:
    data, status = TAKEN[name]
    head, _, body = talk(server, data).partition(b"\r\n\r\n")
    assert head.split()[1] == str(status).encode(), (head, body)
    if name.startswith("HEAD"):
        assert body == b""
        assert int(head.lower().partition(b"content-length: ")[2].split()[0]) > 0


def test_requests_one_after_the_other_without_waiting(server: RunningServer) -> None:
    keep = request().replace(CLOSE, b"A: b")
    bad, missing = keep.replace(b"{", b"["), keep.replace(b"/v1/completions", b"/v1/nothing")
    large = request(b" " * 5_000_000).replace(CLOSE, b"A: b")
    answers = talk(server, keep + bad + missing + large + request())
    assert re.findall(rb"HTTP/1\.1 (\d+)", answers) == [b"200", b"400", b"404", b"413", b"200"]


@pytest.mark.parametrize("data", [request()[:-5], b"POST /v1/comp", b"", request()[:60]])
def test_a_client_that_ends_in_the_middle_is_let_go(server: RunningServer, data: bytes) -> None:
    assert talk(server, data, half=True) == b""


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_head_that_does_not_come_ends_the_connection(
    server: RunningServer, sent: bytes, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocols, "HEAD_SECONDS", 0.1)
    if not (is_first or sent):
        return  # uvicorn's keep-alive
    first = [] if is_first else [request().replace(CLOSE, b"A: b")]
    answers = talk(server, *first, sent)
    head, _, body = answers[answers.index(b"HTTP/1.1 408") :].partition(b"\r\n\r\n")
    assert head.split()[1] == b"408"
    assert json.loads(body)["error"]["code"] == "head_timeout"


def test_what_is_wrong_with_the_rest_of_a_body_does_not_answer_twice(server: RunningServer) -> None:
    """The answer is out before the body is read; then the body turns out to be none."""
    data = request(b"", CHUNKED, kind=b"text/plain").replace(CLOSE, b"A: b")
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(data)
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 415")
        connection.sendall(b"zz\r\n")
        rest = b""
        while part := connection.recv(65536):
            rest += part
    assert b"HTTP/1.1" not in rest


def test_a_client_that_leaves_in_the_middle_of_a_stream(server: RunningServer) -> None:
    body = b'{"prompt": "a", "max_tokens": 3000, "ignore_eos": true, "stream": true}'
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(request(body))
            assert connection.recv(100)
    wait_for(lambda: server.async_llm.num_unfinished == 0)


def test_the_log_has_who_it_was_and_no_key(
    server: RunningServer, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with Log("json", "info").installed():
        talk(server, get(b"/health", b"Authorization: Bearer secret\x00"))
        talk(server, handshake(b"Origin: http://elsewhere"))
    [line] = capfd.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "no HTTP request from 127.0.0.1: illegal header line"


def frame(data: bytes, first: int = 0x81, *, masked: bool = True) -> bytes:
    length = bytes([len(data)]) if len(data) < 126 else b"\x7e" + len(data).to_bytes(2, "big")
    if not masked:
        return bytes([first]) + length + data
    return bytes([first, length[0] | 0x80]) + length[1:] + bytes(4) + data


FRAMES: dict[str, tuple[bytes, int]] = {
    "no mask": (frame(b"{}", masked=False), 1002),
    "a reserved bit": (frame(b"{}", 0xA1), 1002),
    "an unknown kind": (frame(b"{}", 0x83), 1002),
    "the rest of nothing": (frame(b"{}", 0x80), 1002),
    "a ping in parts": (frame(b"a", 0x09), 1002),
    "a long ping": (frame(b"a" * 200, 0x89), 1002),
    "2^63 bytes to come": (b"\x81\xff" + b"\x7f" + b"\xff" * 7 + bytes(4), 1009),
    "a close with half a code": (frame(b"\x03", 0x88), 1002),
    "a close with a code of its own": (frame(b"\x03\xed", 0x88), 1002),
    "text in parts that is too large": (frame(b"a" * 60_000, 0x01) + frame(b"a" * 60_000, 0x00) * 80, 1009),
    "half a character": (frame(b'{"a": "\xc3"}'), 1007),
    "pings": (frame(b"", 0x89) * 1000 + frame(b"\x03\xe8", 0x88), 1000),
}


@pytest.mark.parametrize("name", FRAMES)
def test_frames_that_no_library_sends(server: RunningServer, name: str) -> None:
    data, code = FRAMES[name]
    answer = talk(server, handshake(), frame(b"{}"), data)
    head, _, frames = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101")
    closing = frames.rindex(b"\x88")
    assert int.from_bytes(frames[closing + 2 : closing + 4], "big") == code


WRONG: Any = [None, True, -1, 1.5, 10**400, "", "x\x00", [None], {}, {"": None}, [[[[[[[[]]]]]]]]]


def test_wrong_types_in_every_field_of_a_websocket(server: RunningServer) -> None:
    from websockets.sync.client import connect

    fields = ("model", "cache_salt", "user", "tools", "tool_choice", "chat_template_kwargs", "api_key", "x")
    url = f"ws://127.0.0.1:{server.port}/v1/prefill/ws"
    for name in fields:
        for value in WRONG:
            with connect(url) as client:
                client.send(json.dumps({name: value}))
                if json.loads(client.recv(10))["type"] == "error":
                    continue
                for body in ({"prompt": "a" * 40}, {"messages": [{"role": "user", "content": "a" * 40}]}):
                    client.send(json.dumps(body))
                    assert "internal_error" not in str(client.recv(10))
    with connect(url) as client:
        client.send("{}")
        client.recv(10)
        for name in ("prompt", "messages", "x"):
            for value in WRONG:
                client.send(json.dumps({name: value}))
                assert "internal_error" not in str(client.recv(10))
