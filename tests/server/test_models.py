"""Several models in one server: loaded on demand, closed for room, kept while they are used."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from http_server import RunningServer, error_of, mock_engine, wait_for

from pellucid.engine.async_llm import AsyncLLM
from pellucid.engine.llm_engine import LLMEngine
from pellucid.engine.turns import Turns
from pellucid.errors import InvalidParameterError, ModelFileError
from pellucid.server import models as models_module
from pellucid.server.api_errors import ApiError
from pellucid.server.models import Model, ModelPool

COMPLETIONS = "/v1/completions"
NAMES = ("a", "b", "c")


class Zoo:
    """A pool of mock models of one size, and what happened to them."""

    def __init__(self, room_for: int | None = 2, *, step_seconds: float = 0.0, load_seconds: float = 0.0) -> None:
        self.loads: list[str] = []
        self.engines: dict[str, LLMEngine] = {}
        self.failures: dict[str, Exception] = {}
        self.turns = Turns()
        size = mock_engine().storage.nbytes

        def model(name: str) -> Model:
            def load() -> AsyncLLM:
                self.loads.append(name)
                time.sleep(load_seconds)
                if name in self.failures:
                    raise self.failures[name]
                self.engines[name] = mock_engine(step_seconds=step_seconds, model=name)
                return AsyncLLM(self.engines[name], turns=self.turns)

            return Model(name, load, lambda: size)

        self.pool = ModelPool([model(name) for name in NAMES], None if room_for is None else room_for * size)

    def server(self) -> RunningServer:
        self.pool.preload()
        return RunningServer(self.engines["a"], models=self.pool)

    @property
    def loaded(self) -> set[str]:
        return {model.name for model, _ in self.pool.loaded()}


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "pellucid-engine"}


def ask(server: RunningServer, model: str | None = None, prompt: str = "abc", **fields: Any) -> str:
    named = {} if model is None else {"model": model}
    response = server.post(COMPLETIONS, {"prompt": prompt, "seed": 1, **named, **fields})
    assert response.status_code == 200, response.text
    assert response.json()["model"] == (model or "a")
    text: str = response.json()["choices"][0]["text"]
    return text


def test_models_are_loaded_when_they_are_asked_for() -> None:
    zoo = Zoo(room_for=None)
    with zoo.server() as server:
        listed = server.get("/v1/models").json()["data"]
        assert [(one["id"], one["max_model_len"]) for one in listed] == [("a", 4096), ("b", None), ("c", None)]
        assert ask(server) == ask(server, "a")
        assert zoo.loads == ["a"]
        assert ask(server, "b", max_tokens=30) == ask(server, "a", max_tokens=30)
        assert server.post("/tokenize", {"model": "c", "prompt": "xy"}).json()["count"] == 2
        assert zoo.loads == ["a", "b", "c"]
        assert server.get("/v1/models/c").json()["max_model_len"] == 4096
        error = server.refused(COMPLETIONS, {"model": "d", "prompt": "x"}, 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "'a', 'b', 'c'" in error["message"]
        assert server.get("/v1/models/d").status_code == 404
        assert server.refused(COMPLETIONS, {"model": 3, "prompt": "x"})["param"] == "model"


def test_the_model_unused_for_longest_makes_room() -> None:
    before, zoo = engine_threads(), Zoo()
    with zoo.server() as server:
        for name in ("b", "a", "c"):
            ask(server, name)
        assert zoo.loaded == {"a", "c"}
        ask(server, "b")
        assert zoo.loaded == {"b", "c"}
        assert zoo.loads == ["a", "b", "c", "b"]
        page = server.get("/metrics").text
        assert 'pellucid_model_evictions_total{model_name="a"} 1.0' in page
        assert 'pellucid_model_loads_total{model_name="b"} 2.0' in page
        assert 'pellucid_model_loaded{model_name="a"} 0.0' in page
        assert 'pellucid_requests_finished_total{model_name="b"} 2.0' in page
        assert 'pellucid_num_requests_running{model_name="a"}' not in page
        assert server.get("/ready").status_code == 200
    for engine in zoo.engines.values():
        engine.check_integrity()
    assert engine_threads() == before


def test_requests_in_flight_keep_their_model_and_others_wait_for_room() -> None:
    zoo = Zoo(step_seconds=0.005)
    solo = mock_engine()
    with RunningServer(solo) as alone:
        expected = ask_text(alone, "mock", 100)
    with zoo.server() as server:
        with ThreadPoolExecutor(4) as threads:
            running = [threads.submit(ask_text, server, name, 100) for name in ("a", "b")]
            wait_for(lambda: zoo.loaded == {"a", "b"} and all(llm.num_unfinished for _, llm in zoo.pool.loaded()))
            third = threads.submit(ask_text, server, "c", 100)
            time.sleep(0.1)
            assert zoo.loaded == {"a", "b"}
            assert [future.result() for future in (*running, third)] == [expected] * 3
        assert len(zoo.loaded) == 2
        assert "c" in zoo.loaded


def ask_text(server: RunningServer, model: str, num_tokens: int) -> str:
    """Streamed, so that the answer lasts longer than the handler."""
    client = openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=30)
    stream = client.completions.create(
        model=model, prompt="abc", max_tokens=num_tokens, seed=1, stream=True, extra_body={"ignore_eos": True}
    )
    return "".join(chunk.choices[0].text for chunk in stream)


def test_no_room_is_said_with_a_time_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_module, "ROOM_WAIT_SECONDS", 0.05)
    zoo = Zoo(room_for=1, step_seconds=0.005)
    with zoo.server() as server:
        stream = server.client().completions.create(
            model="a", prompt="abc", stream=True, max_tokens=4000, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        response = server.post(COMPLETIONS, {"model": "b", "prompt": "x"})
        assert error_of(response, 503)["code"] == "model_no_room"
        assert int(response.headers["Retry-After"]) > 0
        assert next(iter(stream)).choices  # it goes on
        stream.close()
        wait_for(lambda: not zoo.pool.models[0].num_users)
        ask(server, "b")


@pytest.mark.parametrize(
    "error",
    [
        ModelFileError("it is cut"),
        InvalidParameterError("max_model_len", "it is too long"),
        MemoryError(),
        OSError(5, "x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_model_that_cannot_be_loaded_is_that_requests_failure(error: Exception) -> None:
    zoo = Zoo()
    zoo.failures["b"] = error
    with zoo.server() as server:
        refusal = server.refused(COMPLETIONS, {"model": "b", "prompt": "x"}, 503)
        assert refusal["code"] == "model_load_failed"
        assert str(error) in refusal["message"]
        assert server.get("/health").status_code == server.get("/ready").status_code == 200
        ask(server, "a")
        zoo.failures.clear()
        ask(server, "b")
        assert 'pellucid_request_failures_total{reason="model_load_failed"} 1.0' in server.get("/metrics").text


def test_a_model_larger_than_the_limit_names_the_flag() -> None:
    zoo = Zoo()
    zoo.pool.models[1].needed_bytes = lambda: 10**15
    with zoo.server() as server:
        assert "--model-memory-bytes" in server.refused(COMPLETIONS, {"model": "b", "prompt": "x"}, 503)["message"]
        assert zoo.loaded == {"a"}
        ask(server)


def test_many_who_ask_at_once_load_it_once_and_a_client_that_leaves_holds_nothing() -> None:
    zoo = Zoo(load_seconds=0.1)
    with zoo.server() as server:
        zoo.loads.clear()

        async def many() -> list[Any]:
            async with server.async_client() as client:
                one = client.completions.create(model="b", prompt="abc", timeout=0.02)
                rest = [client.completions.create(model="b", prompt="abc", seed=1) for _ in range(8)]
                return await asyncio.gather(one, *rest, return_exceptions=True)

        first, *rest = asyncio.run(many())
        assert isinstance(first, openai.APITimeoutError)
        assert len({answer.choices[0].text for answer in rest}) == 1
        assert zoo.loads == ["b"]
        wait_for(lambda: not any(model.num_users for model in zoo.pool.models))


def test_who_leaves_while_a_model_is_loaded_does_not_lose_it() -> None:
    """A load cannot be broken off: begun again for each who comes, models would fill the memory."""
    zoo = Zoo(None, load_seconds=0.2)

    async def come_and_go() -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02), zoo.pool.using("b"):
                    pass
        async with zoo.pool.using("b") as used:
            assert used.name == "b"
        zoo.failures["c"] = ModelFileError("broken")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02), zoo.pool.using("c"):
                pass
        with pytest.raises(ApiError, match="broken"):
            async with zoo.pool.using("c"):
                pass
        await zoo.pool.close()

    before = engine_threads()
    asyncio.run(come_and_go())
    assert zoo.loads == ["b", "c"]
    assert all(model.num_users == 0 and model.loading is None for model in zoo.pool.models)
    assert engine_threads() == before


def test_closing_while_a_model_is_loaded() -> None:
    before, zoo = engine_threads(), Zoo(load_seconds=0.2)
    with zoo.server() as server, ThreadPoolExecutor(1) as threads:
        asked = threads.submit(server.post, COMPLETIONS, {"model": "b", "prompt": "x"})
        wait_for(lambda: "b" in zoo.loads)
        asyncio.run(zoo.pool.close())
        assert error_of(asked.result(), 503)["code"] == "shutting_down"
        assert int(asked.result().headers["Retry-After"]) > 0
    assert engine_threads() == before


def test_two_engines_step_in_turns() -> None:
    """Neither runs ahead of the other while both have work, and never two at once."""
    turns, steps, inside = Turns(), [], []

    def work(name: str, begin: Callable[[], Any]) -> None:
        begin()
        for _ in range(50):
            with turns:
                inside.append(name)
                assert len(inside) == 1
                steps.append(name)
                time.sleep(0.0005)
                inside.pop()

    barrier = threading.Barrier(3)
    threads = [threading.Thread(target=work, args=(name, barrier.wait)) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(steps) == 150
    middle = steps[9:-9]
    assert all(set(middle[i : i + 3]) == set(NAMES) for i in range(0, len(middle) - 3))
