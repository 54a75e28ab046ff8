"""Metrics, request ids, the access log."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from http_server import RunningServer, mock_engine, wait_for

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
    assert (first["status"], first["user"], first["stream"]) == (200, "u1", False)
    assert (first["prompt_tokens"], first["completion_tokens"], len(first["finish_reasons"])) == (12, 3, 1)
    assert first["id"].startswith("cmpl-")
    assert second["stream"] is True
    assert second["completion_tokens"] > 0
    assert (third["status"], third["error"]) == (401, "invalid_api_key")
    assert ("my own words" in text) is log_prompts
    assert "secret=1" not in text
    assert "topsecretkey" not in text
