"""POST /v1/prefill and the WebSocket for text that is still being typed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from http_server import RunningServer, mock_engine
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

MESSAGES = [{"role": "user", "content": "abcdefg" * 12}]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer(mock_engine(), api_key=("one", "two"), cors_origin=("https://page.example",)) as running:
        yield running


def url(server: RunningServer) -> str:
    return f"ws://127.0.0.1:{server.port}/v1/prefill/ws"


def say(socket: ClientConnection, value: Any) -> dict[str, Any]:
    socket.send(json.dumps(value))
    answer: dict[str, Any] = json.loads(socket.recv(10))
    return answer


def post(server: RunningServer, body: Any, path: str = "/v1/prefill") -> Any:
    return server.post(path, body, headers={"Authorization": "Bearer one"})


def test_the_request_that_follows_finds_it(server: RunningServer) -> None:
    answer = post(server, {"messages": MESSAGES, "user": "u"}).json()
    num_tokens = len("user:") + 84 + 2 + 1 + len("assistant:")
    assert answer == {
        "object": "prefill",
        "model": "mock",
        "prompt_tokens": num_tokens,
        "cached_tokens": 0,
        "kept_tokens": num_tokens // 16 * 16,
    }
    asked = post(server, {"messages": MESSAGES, "max_tokens": 1}, "/v1/chat/completions").json()
    assert asked["usage"]["prompt_tokens_details"]["cached_tokens"] == num_tokens // 16 * 16
    salted = post(server, {"messages": MESSAGES, "cache_salt": "s"}).json()
    assert salted["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": "a", "max_tokens": 3}, "max_tokens"),
        ({"prompt": "a", "continue_final_message": True}, "continue_final_message"),
        ({"prompt": "a" * 5000}, "prompt"),
        ({"messages": [{"role": "user", "content": "a" * 5000}]}, "messages"),
        ({"prompt": "a", "model": 3}, "model"),
        ({"prompt": "a", "user": 3}, "user"),
        ({"prompt": "a" * 40, "cache_salt": ""}, "cache_salt"),
    ],
)
def test_refusals(server: RunningServer, body: Any, param: str) -> None:
    response = post(server, body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_typed_text_is_computed_ahead(server: RunningServer) -> None:
    text = "The text that somebody types, letter by letter, until it is sent. " * 3
    with connect(url(server)) as socket:
        assert say(socket, {"api_key": "two", "cache_salt": "ws"}) == {"type": "ready", "model": "mock"}
        for end in (30, 31, 100, len(text)):
            answer = say(socket, {"prompt": text[:end]})
            assert answer["type"] == "prefilled"
            assert answer["prompt_tokens"] == end
            assert answer["kept_tokens"] == max(0, end - 8) // 16 * 16
    asked = post(server, {"prompt": text + "a", "max_tokens": 1, "cache_salt": "ws"}, "/v1/completions").json()
    assert asked["usage"]["prompt_tokens_details"]["cached_tokens"] == answer["kept_tokens"] > 150


def test_messages_are_left_open(server: RunningServer) -> None:
    content = "a question that is long enough for some blocks of sixteen"
    with connect(url(server)) as socket:
        say(socket, {"api_key": "one", "cache_salt": "open"})
        answer = say(socket, {"messages": [{"role": "user", "content": content}]})
        assert answer["kept_tokens"] == (1 + len("user:") + len(content) - 8) // 16 * 16
    body = {"messages": [{"role": "user", "content": content + " and more"}], "max_tokens": 1, "cache_salt": "open"}
    asked = post(server, body, "/v1/chat/completions").json()
    assert asked["usage"]["prompt_tokens_details"]["cached_tokens"] == answer["kept_tokens"]


def test_a_wrong_key_ends_it(server: RunningServer) -> None:
    with connect(url(server)) as socket:
        answer = say(socket, {"api_key": "three"})
        assert answer["error"]["code"] == "invalid_api_key"
        with pytest.raises(ConnectionClosed):
            socket.recv(5)


def test_a_bad_message_is_refused_and_the_next_one_counts(server: RunningServer) -> None:
    with connect(url(server)) as socket:
        say(socket, {"api_key": "one"})
        for text in ("{", "[]", '{"prompt": [1, 2]}', '{"max_tokens": 1}', '{"prompt": "a", "messages": []}'):
            socket.send(text)
            assert json.loads(socket.recv(5))["type"] == "error"
        assert say(socket, {"prompt": "b" * 40})["kept_tokens"] == 32


@pytest.mark.parametrize(
    ("headers", "may"),
    [
        ({}, True),
        ({"Origin": "http://127.0.0.1:{port}"}, True),
        ({"Origin": "https://page.example"}, True),
        ({"Origin": "https://other.example"}, False),
        ({"Origin": "null"}, False),
        ({"Host": "rebound.example:{port}", "Origin": "http://rebound.example:{port}"}, False),
        ({"Host": "localhost:{port}", "Origin": "http://localhost:{port}"}, True),
    ],
)
def test_who_may_connect(server: RunningServer, headers: dict[str, str], may: bool) -> None:
    from starlette.datastructures import Headers

    from pellucid.server.origins import may_connect

    own = {"host": f"127.0.0.1:{server.port}", **{k.lower(): v.format(port=server.port) for k, v in headers.items()}}
    assert may_connect(Headers(own), server.settings) == may
    origin = own.get("origin")
    if "Host" not in headers:
        if may:
            with connect(url(server), origin=origin) as socket:  # type: ignore[arg-type]
                assert say(socket, {"api_key": "one"})["type"] == "ready"
        else:
            with pytest.raises(InvalidStatus), connect(url(server), origin=origin):  # type: ignore[arg-type]
                pass


def test_a_client_that_leaves_ends_what_it_started(server: RunningServer) -> None:
    with connect(url(server)) as socket:
        say(socket, {"api_key": "one"})
        socket.send(json.dumps({"prompt": "c" * 3000}))
    assert post(server, {"prompt": "d" * 40}).json()["kept_tokens"] == 32
