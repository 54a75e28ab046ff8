"""Large texts and long compilations beside requests: they wait for each other, and nobody else for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from http_server import RunningServer, mock_engine, wait_for

from pellucid.engine.side_work import LARGE, text_size

LARGE_TEXT = "x" * LARGE
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
MANY = 40
"""More than asyncio has threads."""


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with RunningServer(mock_engine()) as running:
        yield running


class Held:
    """Calls of a function that wait to be let go; others pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_held: Any) -> None:
        self.go = threading.Event()
        self.num_begun = self.num_at_once = self.most_at_once = 0
        plain, lock = getattr(owner, name), threading.Lock()

        def held(*arguments: Any, **options: Any) -> Any:
            if is_held(*arguments):
                with lock:
                    self.num_begun += 1
                    self.num_at_once += 1
                    self.most_at_once = max(self.most_at_once, self.num_at_once)
                self.go.wait(30)
                with lock:
                    self.num_at_once -= 1
            return plain(*arguments, **options)

        monkeypatch.setattr(owner, name, held)


MARK = "the first of many"


def is_large(text: Any) -> bool:
    return len(text) >= LARGE or text == MARK


BODIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tokenize": ("encode", "/tokenize", {"prompt": LARGE_TEXT}),
    "detokenize": ("decode", "/detokenize", {"tokens": [120] * LARGE}),
    "prompt": ("encode", "/v1/completions", {"prompt": LARGE_TEXT, "overflow": "truncate_left", "max_tokens": 1}),
    "embeddings": ("encode", "/v1/embeddings", {"input": [MARK, LARGE_TEXT]}),
}


@pytest.mark.parametrize("kind", BODIES)
def test_large_texts_keep_no_request_waiting(server: RunningServer, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    method, path, body = BODIES[kind]
    held = Held(monkeypatch, server.engine.tokenizer, method, is_large)
    with ThreadPoolExecutor(MANY) as pool:
        asked = [pool.submit(server.post, path, body) for _ in range(MANY)]
        wait_for(lambda: held.num_begun)
        for _ in range(3):
            assert server.post("/v1/chat/completions", HELLO).status_code == 200
        assert not any(one.done() for one in asked)
        held.go.set()
        assert {one.result().status_code for one in asked} <= {200, 400, 429}
    assert held.num_begun == MANY
    assert held.most_at_once == 1, "the engine keeps its cores"


def test_grammars_that_take_long_keep_no_request_waiting(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = server.engine.grammars
    shaped = {**HELLO, "structured_outputs": {"regex": "a|b"}}
    assert server.post("/v1/chat/completions", shaped).status_code == 200
    held = Held(monkeypatch, type(compiler), "compile", lambda *_: True)
    with ThreadPoolExecutor(MANY) as pool:
        bodies = [{**HELLO, "structured_outputs": {"regex": f"{i}"}} for i in range(MANY)]
        asked = [pool.submit(server.post, "/v1/chat/completions", body) for body in bodies]
        wait_for(lambda: held.num_begun)
        assert server.post("/v1/chat/completions", HELLO).status_code == 200
        held.go.set()
        assert {one.result().status_code for one in asked} == {200}


def test_what_a_prompt_s_size_is() -> None:
    assert text_size("abc") == 3
    assert text_size([1, 2, 3]) == 0
    assert text_size(["abc", "de"]) == 5
    assert text_size([{"role": "user", "content": "abc"}, {"content": [{"type": "text", "text": "de"}]}, {}]) == 5
    assert text_size(None) == 0
