"""Metrics, request ids, the access log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from http_server import RunningServer, mock_engine, wait_for

from pellucid.server.logs import Log
from pellucid.server.metrics import METRICS

COMPLETIONS_PATH = "/v1/completions"


def test_a57_every_finished_request_is_counted() -> None:
    with RunningServer(mock_engine(step_seconds=0.001)) as server:
        client = server.client()
        num_output = 0
        for i in range(6):
            options: dict[str, Any] = {"prompt": "abc", "max_tokens": 8, "seed": i, "extra_body": {"ignore_eos": True}}
            if i % 2:
                list(client.completions.create(model="mock", stream=True, **options))
                num_output += 8
            else:
                answer = client.completions.create(model="mock", n=2, **options)
                assert answer.usage is not None
                num_output += answer.usage.completion_tokens
        assert server.metric("pellucid_requests_finished_total") == 6
        assert server.metric('pellucid_request_success_total{finished_reason="length"}') == 9
        assert server.metric("pellucid_prompt_tokens_total") == 18
        assert server.metric("pellucid_generation_tokens_total") == num_output
        for name in (
            "time_to_first_token",
            "request_time_per_output_token",
            "e2e_request_latency",
            "request_decode_time",
        ):
            assert server.metric(f"pellucid_{name}_seconds_count") == 6
            assert server.metric(f"pellucid_{name}_seconds_sum") > 0
        assert server.metric("pellucid_inter_token_latency_seconds_count") == 6 * 7
        assert server.metric("pellucid_num_requests_running") == 0
        assert server.metric("pellucid_num_requests_waiting") == 0
        assert server.metric("pellucid_kv_blocks_used") == 0
        assert server.metric("pellucid_kv_cache_usage_perc") == 0
        assert server.metric("pellucid_kv_blocks") == server.engine.stats.kv_blocks_total
        server.refused(COMPLETIONS_PATH, {"prompt": "a", "n": 0})
        ok = f'pellucid_http_requests_total{{route="{COMPLETIONS_PATH}",status="200"}}'
        assert server.metric(ok) == 6
        assert server.metric(ok.replace("200", "400")) == 1


def test_every_metric_of_the_table_is_there(server: RunningServer) -> None:
    server.client().completions.create(model="mock", prompt="a")
    text = server.get("/metrics").text
    for metric in METRICS:
        name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
        assert f"# TYPE {name}" in text
        assert f"# TYPE {metric.name} {metric.kind}" in text or f"# TYPE {name} {metric.kind}" in text
    shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and "_created" not in line}
    assert {name for name in shown if not name.startswith("process_")} == {metric.name for metric in METRICS}


def test_an_abort_is_counted() -> None:
    with RunningServer(mock_engine(step_seconds=0.005)) as server:
        stream = server.client().completions.create(
            model="mock", prompt="abc", stream=True, max_tokens=4000, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        assert server.metric("pellucid_num_requests_running") == 1
        assert server.metric("pellucid_kv_blocks_used") > 0
        stream.close()
        wait_for(lambda: server.async_llm.num_unfinished == 0)
        assert server.metric('pellucid_request_success_total{finished_reason="abort"}') == 1


def test_request_ids_go_in_and_out(server: RunningServer) -> None:
    given = server.post(COMPLETIONS_PATH, {"prompt": "a"}, headers={"X-Request-Id": "mine-1"})
    assert given.headers["X-Request-Id"] == "mine-1"
    made = {server.post(COMPLETIONS_PATH, {"prompt": "a", "n": 0}).headers["X-Request-Id"] for _ in range(3)}
    assert len(made) == 3
    bad = server.get("/health", headers={"X-Request-Id": "a b" + "x" * 200})
    assert bad.headers["X-Request-Id"].startswith("req-")


@pytest.mark.parametrize("log_prompts", [False, True])
def test_the_access_log_has_prompts_only_when_asked(capfd: pytest.CaptureFixture[str], log_prompts: bool) -> None:
    with RunningServer(mock_engine(), access_log=True, log_prompts=log_prompts, api_key=("topsecretkey",)) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="topsecretkey")
        client.completions.create(model="mock", prompt="my own words", user="u1", max_tokens=3)
        list(client.chat.completions.create(model="mock", messages=[{"role": "user", "content": "hé"}], stream=True))
        server.get("/nothing?secret=1")
    text = capfd.readouterr().err
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["path"] for line in lines] == [COMPLETIONS_PATH, "/v1/chat/completions", "/nothing"]
    first, second, third = lines
    assert {line["level"] for line in lines} == {"info"}
    assert first["model"] == "mock"
    assert 0 <= first["queue_seconds"] <= first["ttft_seconds"] <= first["seconds"]
    assert first["tpot_seconds"] > 0
    assert (first["status"], first["user"], first["stream"]) == (200, "u1", False)
    assert (first["prompt_tokens"], first["completion_tokens"], len(first["finish_reasons"])) == (12, 3, 1)
    assert first["id"].startswith("cmpl-")
    assert second["stream"] is True
    assert second["completion_tokens"] > 0
    assert (third["status"], third["error"]) == (401, "invalid_api_key")
    assert ("my own words" in text) is log_prompts
    assert "secret=1" not in text
    assert "topsecretkey" not in text


def test_text_lines_and_levels(capfd: pytest.CaptureFixture[str]) -> None:
    with RunningServer(mock_engine(), access_log=True, log_format="text") as server:
        server.post(COMPLETIONS_PATH, {"prompt": "my own words", "user": "a b\nc"}, headers={"X-Request-Id": "r1"})
    [line] = capfd.readouterr().err.splitlines()
    assert f"INFO POST {COMPLETIONS_PATH} 200 request_id=r1" in line
    assert 'user="a b\\nc"' in line
    assert "prompt_tokens=12" in line
    assert "my own words" not in line
    with RunningServer(mock_engine(), access_log=True, log_level="warning") as server:
        server.post(COMPLETIONS_PATH, {"prompt": "a"})
        server.post(COMPLETIONS_PATH, {"prompt": ""})
        asyncio.run(server.models.close())
        server.post(COMPLETIONS_PATH, {"prompt": "a"})
    [line] = capfd.readouterr().err.splitlines()
    assert (json.loads(line)["status"], json.loads(line)["level"]) == (503, "warning")


def test_the_servers_own_words_are_lines_of_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    with Log("json", "info").installed():
        try:
            raise ValueError("two\nlines")
        except ValueError:
            logging.getLogger("uvicorn.error").exception("Exception in ASGI application\n")
        logging.getLogger("uvicorn.error").info("Started")
    [line] = capfd.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["event"], entry["logger"]) == ("error", "log", "uvicorn.error")
    assert "ValueError: two" in entry["traceback"]


def test_failures_are_counted_by_reason() -> None:
    with RunningServer(mock_engine(step_seconds=0.002), max_queue=0, api_key=("k",)) as server:
        http = httpx.Client(headers={"Authorization": "Bearer k"}, base_url=server.url)
        for body in ({"prompt": "a", "n": 0}, {"prompt": "a" * 5000}, {"prompt": "#"}, {"prompt": "a", "model": "x"}):
            assert http.post(COMPLETIONS_PATH, json=body).status_code >= 400
        server.post(COMPLETIONS_PATH, {"prompt": "a"})
        with (
            contextlib.suppress(httpx.ReadTimeout),
            http.stream(
                "POST", COMPLETIONS_PATH, json={"prompt": "a", "max_tokens": 3000, "ignore_eos": True}, timeout=0.1
            ),
        ):
            pass
        wait_for(lambda: server.async_llm.num_unfinished == 0)
        page = http.get("/metrics").text
        http.close()
    found = re.findall(r'pellucid_request_failures_total\{reason="(\w+)"\} ([\d.]+)', page)
    reasons = (
        "invalid_parameter",
        "context_length_exceeded",
        "request_failed",
        "model_not_found",
        "invalid_api_key",
        "client_gone",
    )
    assert dict(found) == dict.fromkeys(reasons, "1.0")


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    path = Path(__file__).parents[2] / "docs" / "grafana" / "pellucid.json"
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    known = {metric.name for metric in METRICS}
    for metric in METRICS:
        if metric.kind == "histogram":
            known |= {f"{metric.name}_{part}" for part in ("bucket", "sum", "count")}
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    asked = {name for query in queries for name in re.findall(r"\bpellucid_\w+", query)}
    assert len(queries) >= 12
    assert asked <= known
    assert {"pellucid_time_to_first_token_seconds_bucket", "pellucid_kv_cache_usage_perc"} <= asked
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_the_page_has_every_metric_and_no_other() -> None:
    """docs/serving.md against /metrics itself, not against the table that both are made from."""
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `(pellucid_\w+)` \| (\w+) \|", page, re.MULTILINE))
    with RunningServer(mock_engine()) as server:
        server.client().completions.create(model="mock", prompt="a")
        text = server.get("/metrics").text
    shown = dict(re.findall(r"^# TYPE (pellucid_\w+) (\w+)$", text, re.MULTILINE))
    shown = {name: kind for name, kind in shown.items() if not name.endswith("_created")}
    assert shown == documented
