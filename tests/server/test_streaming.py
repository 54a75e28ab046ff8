"""The short way of a stream's pieces: from the engine's call into the event loop to the connection, without a task."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from http_server import RunningServer, mock_engine
from hypothesis import given
from hypothesis import strategies as st

from pellucid.engine.streams import Stream
from pellucid.server.wire import dump, dump_text

REQUEST = {"prompt": 'a "b"\n\x00é', "max_tokens": 40, "seed": 5, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer(mock_engine(speculative_method="off")) as running:  # guesses that come true are told together
        yield running


def poured(items: list[tuple[Any, bool]], take: Any, *, read_first: int = 0) -> tuple[bool, Stream[Any]]:
    """Pour a stream of one request, to which `items` come while the reading task waits."""

    async def body() -> tuple[bool, Stream[Any]]:
        stream: Stream[Any] = Stream(["one"], lambda _: None)
        stream.receive(None, False)  # it is queued
        for item, is_last in items[:read_first]:
            stream.receive(item, is_last)
        pouring = asyncio.create_task(stream.pour(take))
        await asyncio.sleep(0)
        for item, is_last in items[read_first:]:
            stream.receive(item, is_last)
        return await pouring, stream

    return asyncio.run(body())


@pytest.mark.parametrize("read_first", [0, 1, 3])
def test_items_are_handed_on_as_they_come(read_first: int) -> None:
    """None is a message without an item."""
    taken: list[int] = []
    items = [(1, False), (2, False), (None, False), (3, True)]
    goes_on, _ = poured(items, lambda item: taken.append(item) is None, read_first=read_first)
    assert taken == [1, 2, 3]
    assert not goes_on


def test_no_task_runs_between_an_item_and_its_taker() -> None:
    async def body() -> None:
        stream: Stream[int] = Stream(["one"], lambda _: None)
        stream.receive(None, False)
        taken: list[int] = []
        pouring = asyncio.create_task(stream.pour(lambda item: taken.append(item) is None))
        await asyncio.sleep(0)
        for item in range(5):
            stream.receive(item, False)
            assert taken[-1] == item  # in this very call
        stream.abort()
        assert not await pouring

    asyncio.run(body())


@pytest.mark.parametrize("read_first", [0, 2])
def test_a_taker_that_is_full_gets_the_rest_later(read_first: int) -> None:
    taken: list[int] = []

    async def rest(stream: Stream[int]) -> bool:
        return await stream.pour(lambda item: taken.append(item) is None)

    goes_on, stream = poured(
        [(1, False), (2, False), (3, True)], lambda item: taken.append(item) is not None, read_first=read_first
    )
    assert taken == [1]
    assert goes_on
    assert not asyncio.run(rest(stream))
    assert taken == [1, 2, 3]


@pytest.mark.parametrize("read_first", [0, 1])
def test_what_a_taker_raises_is_its_task_s_alone(read_first: int) -> None:
    def take(item: int) -> bool:
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 1"):  # and not out of `receive`, which goes on to other streams
        poured([(1, False), (2, True)], take, read_first=read_first)
    with pytest.raises(OSError, match="broken"):
        poured([(OSError("broken"), True)], take, read_first=read_first)


def test_a_cancelled_pour_aborts() -> None:
    async def body() -> list[tuple[str, ...]]:
        aborted: list[tuple[str, ...]] = []
        taken: list[int] = []
        stream: Stream[int] = Stream(["one", "two"], aborted.append)
        stream.receive(None, False)
        pouring = asyncio.create_task(stream.pour(lambda item: taken.append(item) is None))
        await asyncio.sleep(0)
        pouring.cancel()
        stream.receive(1, False)
        await asyncio.gather(pouring, return_exceptions=True)
        assert pouring.cancelled()
        assert not taken
        return aborted

    assert asyncio.run(body()) == [("one", "two")]


@given(st.text(st.characters()))
def test_a_text_alone_is_encoded_as_in_a_value(text: str) -> None:
    assert dump_text(text) == dump(text)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("options", [{}, {"n": 3}, {"logprobs": 3}, {"stream_options": {"include_usage": True}}])
def test_frames_are_whole_whoever_frames_them(server: RunningServer, path: str, options: dict[str, Any]) -> None:
    """http.client takes the chunks apart; a client of HTTP/1.0 gets the same bytes without, until the connection ends.

    Every chunk of an answer is what encoding it as one value gives.
    """
    body = {**REQUEST, **options}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        if "logprobs" in body:
            body |= {"logprobs": True, "top_logprobs": 3}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.headers["Transfer-Encoding"] == "chunked"
    chunked = response.read()
    connection.request("GET", "/health")  # the connection goes on where the stream ended
    assert connection.getresponse().status == 200
    connection.close()

    *frames, end = chunked.split(b"\n\n")
    assert not end
    assert frames.pop() == b"data: [DONE]"
    assert len(frames) > 30
    for frame in frames:
        content = frame.removeprefix(b"data: ")
        assert dump(json.loads(content)) == content
    # of several answers those that come in one step may be told in another order
    assert sorted(unnamed(old_http(server.port, path, body)).split(b"\n")) == sorted(unnamed(chunked).split(b"\n"))


def old_http(port: int, path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + content)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    head_lines, _, rest = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head_lines.lower()
    return rest


def unnamed(stream: bytes) -> bytes:
    """Without what differs from request to request: its id and its time."""
    return re.sub(rb'"id":"[^"]+","(object":"[^"]+)","created":\d+', rb'"\1"', stream)
