"""Traces over HTTP: who may see what, and that answers do not change."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from http_server import RunningServer, mock_engine

from pellucid.server.settings import ServerSettings
from pellucid.server.traces import _Names


def _checks() -> ModuleType:
    path = Path(__file__).parent.parent / "trace" / "trace_checks.py"
    spec = importlib.util.spec_from_file_location("trace_checks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


checks = _checks()
VIEWER = "a" * 32
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "seed": 1}


class Follower:
    """A page that follows its requests."""

    def __init__(self, server: RunningServer, viewer: str) -> None:
        self.events: list[dict[str, Any]] = []
        self._client = httpx.Client(base_url=server.url, timeout=30)
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(viewer,), daemon=True)
        self._thread.start()
        assert self._begun.wait(10)

    def _read(self, viewer: str) -> None:
        with self._client.stream("GET", "/v1/traces/live", headers={"X-Pellucid-Viewer": viewer}) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            try:
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        self.events.append(json.loads(line.removeprefix("data: ")))
                        self._begun.set()
            except httpx.HTTPError:
                pass

    def wait_for(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        for _ in range(500):
            found = [event for event in self.events if event["type"] == kind]
            if len(found) >= count:
                return found
            threading.Event().wait(0.02)
        raise AssertionError(f"no {kind} among {[event['type'] for event in self.events]}")


def test_a_trace_has_the_answers_id(server: RunningServer) -> None:
    plain = server.post("/v1/chat/completions", CHAT).json()
    traced = server.post("/v1/chat/completions", {**CHAT, "trace": 2}).json()
    assert traced["choices"] == plain["choices"]
    answer = server.get(f"/v1/traces/{traced['id']}")
    assert answer.headers["content-type"] == "application/x-ndjson"
    events = checks.valid(answer.text.splitlines(keepends=True))
    [request] = checks.of_type(events, "request", req=traced["id"])
    assert request["template"] is not None
    assert "user:hello" in request["rendered"]
    [finish] = checks.of_type(events, "finish")
    assert finish["reason"] == traced["choices"][0]["finish_reason"]
    assert len(checks.of_type(events, "sample")) == traced["usage"]["completion_tokens"]
    checks.check_parts(finish)


def test_other_endpoints_and_several_prompts(server: RunningServer) -> None:
    answer = server.post("/v1/completions", {"prompt": ["ab", "cd"], "max_tokens": 2, "trace": 1}).json()
    events = checks.valid(server.get(f"/v1/traces/{answer['id']}").text.splitlines(keepends=True))
    assert [e["req"] for e in checks.of_type(events, "request")] == [f"{answer['id']}-0", f"{answer['id']}-1"]
    answer = server.post("/v1/responses", {"input": "hello", "max_output_tokens": 2, "trace": 2}).json()
    events = checks.valid(server.get(f"/v1/traces/{answer['id']}").text.splitlines(keepends=True))
    assert len(checks.of_type(events, "finish")) == 1


def test_untraced_and_unknown_requests_have_none(server: RunningServer) -> None:
    answer = server.post("/v1/chat/completions", CHAT).json()
    for name in (answer["id"], "chatcmpl-nothing", "request-0"):
        refusal = server.get(f"/v1/traces/{name}")
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (404, "trace_not_found")


@pytest.mark.parametrize("level", [-1, 4, "2", True, 1.5])
def test_levels_that_are_none(server: RunningServer, level: Any) -> None:
    refusal = server.post("/v1/chat/completions", {**CHAT, "trace": level})
    assert refusal.status_code == 400
    assert refusal.json()["error"]["param"] == "trace"


def test_a_page_sees_its_own_requests_and_no_names_of_others(slow_server: RunningServer) -> None:
    page, stranger = Follower(slow_server, VIEWER), Follower(slow_server, "b" * 32)
    headers = {"X-Pellucid-Viewer": VIEWER}
    done = threading.Thread(
        target=lambda: slow_server.post("/v1/chat/completions", {**CHAT, "max_tokens": 60, "trace": 2})
    )
    done.start()
    with httpx.Client(base_url=slow_server.url, timeout=30) as client:
        mine = client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 20, "trace": 2}, headers=headers).json()
    done.join()
    page.wait_for("finish")
    assert page.events[0]["type"] == "header"
    assert page.events[0]["redacted"]
    for kind in ("request", "sample", "emit", "finish"):
        assert {e["req"] for e in page.events if e["type"] == kind} == {mine["id"]}
    names = {seq["req"] for e in page.events if e["type"] == "step" for seq in e["seqs"]}
    names |= {e["req"] for e in page.events if e["type"] == "kv" and e["req"]}
    assert mine["id"] in names
    assert all(name.startswith("other-") for name in names - {mine["id"]})
    assert {e["type"] for e in stranger.events} <= {"header", "mem", "kv"}
    assert all(e["req"] is None or e["req"].startswith("other-") for e in stranger.events if e["type"] == "kv")
    assert all(e["hash"] is None for e in stranger.events if e["type"] == "kv")


def test_a_stream_needs_a_name(server: RunningServer) -> None:
    for viewer in ("", "short", "x" * 200, "a b" * 10):
        refusal = httpx.get(f"{server.url}/v1/traces/live", headers={"X-Pellucid-Viewer": viewer})
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (400, "viewer_needed")


@pytest.fixture(scope="module")
def keyed() -> Iterator[RunningServer]:
    with RunningServer(mock_engine(), api_key=("one", "two"), trace_level=3) as running:
        yield running


def test_with_keys_a_trace_is_for_the_key_that_asked(keyed: RunningServer) -> None:
    def key(name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {name}"}

    url = f"{keyed.url}/v1/chat/completions"
    answer = httpx.post(url, json={**CHAT, "trace": 3}, headers=key("one")).json()
    url = f"{keyed.url}/v1/traces/{answer['id']}"
    assert httpx.get(url, headers=key("one")).status_code == 200
    assert httpx.get(url, headers=key("two")).status_code == 404
    assert httpx.get(url).status_code == 401
    assert httpx.get(f"{keyed.url}/v1/traces/live").status_code == 401


def test_the_server_says_how_much_it_traces() -> None:
    assert ServerSettings().most_trace_level == 2
    assert ServerSettings(host="0.0.0.0").most_trace_level == 0
    assert ServerSettings(host="0.0.0.0", trace_level=1).most_trace_level == 1
    with RunningServer(mock_engine(), trace_level=0) as running:
        refusal = running.post("/v1/chat/completions", {**CHAT, "trace": 1})
        assert refusal.status_code == 400
        assert "traces up to level 0" in refusal.json()["error"]["message"]
        assert running.get("/v1/traces/live").status_code == 404


def test_everything_where_the_operator_says_so() -> None:
    with RunningServer(mock_engine(), playground_all=True) as running:
        page = Follower(running, "")
        answer = running.post("/v1/chat/completions", {**CHAT, "trace": 1}).json()
        assert [e["req"] for e in page.wait_for("finish")] == [answer["id"]]
        assert not page.events[0]["redacted"]


@pytest.mark.parametrize("path", ["/v1/traces/live", "/v1/traces/cmpl-1"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "rebound.example"}, 403),
        ({"Host": "rebound.example:8000", "Origin": "http://rebound.example:8000"}, 403),
        ({"Origin": "https://other.example"}, 403),
        ({"Host": "localhost"}, None),
        ({}, None),
    ],
)
def test_a_foreign_name_reads_no_traces(
    server: RunningServer, path: str, headers: dict[str, str], status: int | None
) -> None:
    """DNS rebinding: a page whose name was made to point here reads like one of this server."""
    answer = httpx.get(f"http://127.0.0.1:{server.port}{path}", headers=headers)
    assert answer.status_code == status or (status is None and answer.status_code in (400, 404))
    if status == 403:
        assert answer.json()["error"]["code"] == "foreign_origin"


def test_a_page_sees_that_its_own_blocks_went_and_nothing_of_others() -> None:
    own, other = {"mine": None}, "theirs"
    names = _Names(own)

    def block(op: str, req: str | None, name: str) -> dict[str, Any]:
        return names.hide({"type": "kv", "op": op, "req": req, "hash": name, "parent": None})

    assert block("cache", "mine", "a")["hash"] == "a"
    assert block("cache", other, "b")["hash"] is None
    assert block("hit", other, "a") == {"type": "kv", "op": "hit", "req": "other-1", "hash": None, "parent": None}
    assert block("evict", None, "a")["hash"] == "a"
    assert block("evict", None, "b")["hash"] is None
