"""Spans, as an exporter gets them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import openai
import pytest
from http_server import RunningServer, mock_engine, wait_for

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pellucid.glass.perfetto import chrome_trace
from pellucid.server.tracing import Tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Traced:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        engine = mock_engine(step_seconds=0.002)
        self.server = RunningServer(engine, tracing=Tracing(self.exporter, version="1.2", is_immediate=True))

    def one(self) -> ReadableSpan:
        wait_for(lambda: self.exporter.get_finished_spans())
        [span] = self.exporter.get_finished_spans()
        self.exporter.clear()
        return span


@pytest.fixture(scope="module")
def traced() -> Iterator[Traced]:
    traced = Traced()
    with traced.server:
        yield traced


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_request_is_one_span(traced: Traced, stream: bool) -> None:
    began = time.time_ns()
    body = {
        "messages": [{"role": "user", "content": "secret words"}],
        "max_tokens": 5,
        "temperature": 0.5,
        "seed": 7,
        "n": 2,
        "ignore_eos": True,
        "stream": stream,
    }
    response = traced.server.post(
        "/v1/chat/completions", body, headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b"}
    )
    assert response.status_code == 200
    span = traced.one()
    found = attributes(span)
    assert span.name == "chat mock"
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT
    assert span.kind.name == "SERVER"
    assert span.status.is_ok or span.status.status_code.name == "UNSET"
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "pellucid",
        "gen_ai.request.model": "mock",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.stream": stream,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.response.finish_reasons": ("length", "length"),
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found["gen_ai.usage.input_tokens"] > 10
    assert found["gen_ai.response.id"].startswith("chatcmpl-")
    assert found["gen_ai.response.time_to_first_chunk"] > 0
    assert [event.name for event in span.events] == ["queue", "prefill", "decode", "done"]
    moments = [span.start_time, *(event.timestamp for event in span.events), span.end_time]
    for before, after in pairwise(moments):
        assert before is not None
        assert after is not None
        assert after >= before - 1_000_000  # two clocks
    assert span.start_time is not None
    assert span.start_time >= began
    assert "secret" not in span.to_json()
    assert span.resource.attributes["service.name"] == "pellucid"


def test_refusals_failures_and_clients_that_leave(traced: Traced) -> None:
    server = traced.server
    server.refused("/v1/completions", {"prompt": "x", "top_p": 2})
    span = traced.one()
    assert (attributes(span)["error.type"], span.status.status_code.name) == ("invalid_parameter", "UNSET")
    assert span.parent is None
    server.refused("/v1/completions", {"prompt": "#"}, 500)
    span = traced.one()
    assert (attributes(span)["error.type"], span.status.status_code.name) == ("request_failed", "ERROR")
    stream = server.client().completions.create(
        model="mock", prompt="abc", stream=True, max_tokens=3000, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    span = traced.one()
    assert span.name == "text_completion mock"
    assert (attributes(span)["error.type"], span.status.status_code.name) == ("client_gone", "ERROR")
    assert [event.name for event in span.events] == ["queue", "prefill", "decode", "done"]


def test_what_monitors_ask_makes_no_spans(traced: Traced) -> None:
    for path in ("/health", "/metrics", "/v1/models"):
        assert traced.server.get(path).status_code == 200
    assert not traced.exporter.get_finished_spans()
    assert traced.server.post("/tokenize", {"prompt": "a"}).status_code == 200
    assert traced.one().name == "POST /tokenize"


def test_a_traceparent_that_is_none_is_ignored(traced: Traced) -> None:
    client = openai.OpenAI(base_url=traced.server.base_url, api_key="none", default_headers={"traceparent": "x" * 99})
    client.completions.create(model="mock", prompt="a")
    assert traced.one().parent is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_span_leads_to_the_requests_trace(traced: Traced, stream: bool) -> None:
    body = {"prompt": "ab", "max_tokens": 3, "stream": stream}
    traced.server.post("/v1/completions", {**body, "trace": 1})
    found = attributes(traced.one())
    assert found["pellucid.trace.level"] == 1
    assert found["pellucid.trace.path"] == f"/v1/traces/{found['gen_ai.response.id']}"
    lines = traced.server.get(found["pellucid.trace.path"]).text.splitlines()
    assert {json.loads(line)["req"] for line in lines if '"type":"finish"' in line.replace(" ", "")} == {
        found["gen_ai.response.id"]
    }
    traced.server.post("/v1/completions", body)
    assert not any(name.startswith("pellucid.trace") for name in attributes(traced.one()))


def test_the_timeline_of_several_requests_for_perfetto(traced: Traced) -> None:
    answer = traced.server.post("/v1/completions", {"prompt": ["ab", "cd", "efg"], "max_tokens": 4, "trace": 1}).json()
    events = [json.loads(line) for line in traced.server.get(f"/v1/traces/{answer['id']}").text.splitlines()]
    made = chrome_trace(events)["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in made if e["ph"] == "M"}
    assert {f"{answer['id']}-{i}" for i in range(3)} <= set(tracks.values())
    slices = [e for e in made if e["ph"] == "X"]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in slices)
    steps = [e for e in slices if e["name"].startswith("step ")]
    assert len(steps) == sum(e["type"] == "step" for e in events)
    for name in tracks.values():
        if name.startswith("cmpl-"):
            mine = [e for e in slices if tracks[e["tid"]] == name and not e["name"].startswith("waiting")]
            begun = [(e["ts"], e["ts"] + e["dur"]) for e in sorted(mine, key=lambda e: e["ts"])]
            assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(begun))
