"""`pellucid bench serve`: counts and figures against a server that does what it is told, and against our own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_server import FakeServer, begin_stream, event, piece, send
from http_server import RunningServer, mock_engine

from pellucid.cli.load.client import Result
from pellucid.cli.load.driver import arrivals
from pellucid.cli.load.report import PERCENTILES, parse_slo, report
from pellucid.cli.load.workload import WORDS_PER_TOKEN, Mix
from pellucid.cli.main import main
from pellucid.errors import InvalidParameterError

GAP = 0.02


def bench(
    capsys: pytest.CaptureFixture[str], url: str, *arguments: str, code: int = 0
) -> tuple[dict[str, Any], str, str]:
    """(the last line, what stands above it, stderr)."""
    assert main(["bench", "serve", "--base-url", url, *arguments]) == code
    out, err = capsys.readouterr()
    *table, last = out.splitlines()
    return json.loads(last), "\n".join(table), err


async def four_pieces(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """A role, then 5 tokens in 4 pieces, the second of which has two; GAP before each."""
    await begin_stream(writer)
    await event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    for text in ("a", "bb", "c", "d"):
        await asyncio.sleep(GAP)
        await event(writer, piece(text))
    await event(writer, piece("", "length"))
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    await event(writer, {"choices": [], "usage": usage})
    await event(writer, b"[DONE]")


def test_times_and_counts_of_a_server_that_does_what_it_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    details = tmp_path / "details.jsonl"
    with FakeServer(four_pieces) as fake:
        arguments = (
            "--num-prompts",
            "12",
            "--max-concurrency",
            "3",
            "--slo",
            "ttft:100000,tpot:0.01",
            "--api-key",
            "k",
        )
        result, table, _ = bench(capsys, fake.url, *arguments, "--details", str(details))
    assert (result["requests"], result["good"], result["failures"]) == (12, 12, {})
    assert (result["output_tokens"], result["prompt_tokens"], result["cached_tokens"]) == (60, 120, 48)
    assert (result["model"], result["counts_pieces"]) == ("fake", False)
    assert fake.most_open == 3
    assert all("Authorization: Bearer k" in head for head in fake.headers)
    rows = [json.loads(line) for line in details.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 12
    for row in rows:  # sleeping is never shorter than asked
        assert row["ttft"] >= GAP
        assert len(row["itl"]) == 3
        assert row["tpot"] == pytest.approx(sum(row["itl"]) / 4)
        assert row["e2e"] >= row["ttft"] + sum(row["itl"])
    for name, values in (
        ("ttft", [row["ttft"] for row in rows]),
        ("tpot", [row["tpot"] for row in rows]),
        ("itl", [t for row in rows for t in row["itl"]]),
        ("e2e", [row["e2e"] for row in rows]),
    ):
        for p in PERCENTILES:
            assert result[f"{name}_p{p}_ms"] == pytest.approx(float(np.percentile(values, p)) * 1000)
        assert result[f"{name}_mean_ms"] == pytest.approx(float(np.mean(values)) * 1000)
    assert result["output_tokens_per_second"] == pytest.approx(60 / result["seconds"])
    assert result["goodput_requests_per_second"] == 0  # no TPOT is below 0.01 ms
    assert "12 of 12 requests went well" in table
    assert "TTFT" in table


def test_percentiles_are_numpys_and_goodput_counts_whole_requests() -> None:
    random = np.random.default_rng(1)
    results = []
    for _ in range(200):
        gaps = random.exponential(0.05, 6)
        times = np.cumsum(gaps).tolist()
        results.append(Result(0.0, token_times=times, end=times[-1], num_output_tokens=6, has_usage=True))
    results.append(Result(0.0, end=9.0, failure="429 queue_full", detail="full"))
    summary = report(results, 10.0, {"ttft": 60.0, "tpot": 55.0})
    good = results[:-1]
    ttft, tpot = np.array([r.token_times[0] for r in good]), np.array([r.tpot for r in good])
    assert summary.times["ttft"]["p95"] == pytest.approx(np.percentile(ttft, 95) * 1000)
    assert summary.times["itl"]["p99"] == pytest.approx(
        np.percentile(np.concatenate([np.diff(r.token_times) for r in good]), 99) * 1000
    )
    met = int(((ttft <= 0.06) & (tpot <= 0.055)).sum())
    assert 0 < met < 200
    assert summary.rates["goodput_requests_per_second"] == pytest.approx(met / 10)
    assert (summary.num_requests, summary.num_good, summary.failures) == (201, 200, {"429 queue_full": 1})


def test_failures_are_counted_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    async def reply(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        number = len(fake.bodies)
        if number == 1:
            await send(writer, '{"error": {"code": "queue_full", "message": "the queue is full"}}', "429 Too Many")
        elif number == 2:
            await send(writer, "<html>oops</html>", "502 Bad Gateway")
        elif number in (3, 4, 5, 6):
            await begin_stream(writer)
            await event(writer, piece("a"))
            if number == 4:
                await event(writer, {"error": {"code": "request_failed", "message": "no"}})
            elif number == 5:
                await event(writer, b"{not json")
            elif number == 6:
                await asyncio.sleep(5)
        else:
            await four_pieces(body, writer)

    with FakeServer(reply) as fake:
        arguments = ("--num-prompts", "8", "--max-concurrency", "1", "--timeout", "0.3")
        result, table, _ = bench(capsys, fake.url, *arguments)
    assert result["good"] == 2
    kinds = ("429 queue_full", "502", "cut answer", "error in stream request_failed", "unreadable answer", "timeout")
    assert result["failures"] == dict.fromkeys(kinds, 1)
    assert "1 × 429 queue_full: the queue is full" in table


def test_a_server_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(four_pieces) as fake:
        url = fake.url
    assert main(["bench", "serve", "--base-url", url]) == 2
    assert "/models cannot be read" in capsys.readouterr().err
    result, _, err = bench(capsys, url, "--model", "m", "--num-prompts", "2", code=2)
    assert result["failures"] == {"no connection": 2}
    assert "no request went well" in err


def test_answers_without_usage_count_their_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    async def reply(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        assert body["prompt"]
        await begin_stream(writer)
        for text in ("x", "y", "z"):
            await event(writer, {"choices": [{"text": text, "finish_reason": None}]})
        await event(writer, {"choices": [{"text": "", "finish_reason": "stop"}]})

    with FakeServer(reply) as fake:
        arguments = ("--num-prompts", "3", "--endpoint", "completions", "--extra-body", '{"top_k": 3}', "--ignore-eos")
        result, table, _ = bench(capsys, fake.url, *arguments)
        assert (fake.bodies[0]["top_k"], fake.bodies[0]["ignore_eos"]) == (3, True)
    assert (result["output_tokens"], result["counts_pieces"]) == (9, True)
    assert "their pieces were counted" in table


def test_turns_carry_what_was_said_and_share_the_system_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(four_pieces) as fake:
        arguments = (
            "--num-prompts",
            "4",
            "--turns",
            "3",
            "--shared-prefix-len",
            "50",
            "--request-rate",
            "100",
            "--json",
        )
        result, table, _ = bench(capsys, fake.url, *arguments)
        bodies = fake.bodies
    assert table == ""
    assert result["requests"] == 12
    assert len({body["messages"][0]["content"] for body in bodies}) == 1
    assert sorted(len(body["messages"]) for body in bodies) == [2] * 4 + [4] * 4 + [6] * 4
    last = max(bodies, key=lambda body: len(body["messages"]))["messages"]
    assert [message["role"] for message in last] == ["system", *["user", "assistant"] * 2, "user"]
    assert last[2]["content"] == "abbcd"


def test_the_mix_is_the_same_for_a_seed_and_has_the_lengths_it_says() -> None:
    mix = Mix(max_len=100_000)
    made = mix.conversations(3000, 5)
    assert made == mix.conversations(3000, 5)
    assert made != mix.conversations(3000, 6)
    lengths = np.array([len(one.turns[0].text.split()) / WORDS_PER_TOKEN for one in made])
    outputs = np.array([one.turns[0].max_tokens for one in made])
    assert np.mean(lengths) == pytest.approx(161, rel=0.07)
    assert np.mean(outputs) == pytest.approx(338, rel=0.07)
    assert np.std(np.log(outputs)) == pytest.approx(0.9, rel=0.07)
    assert max(turn.max_tokens for one in Mix(max_len=200).conversations(200, 1) for turn in one.turns) == 200
    assert len({one.turns[0].text[:40] for one in made}) == 3000  # no prefix is shared by chance


def test_arrivals_are_a_poisson_process() -> None:
    moments = arrivals(5000, 20.0, 3)
    gaps = np.diff(moments)
    assert moments[0] == 0
    assert moments == arrivals(5000, 20.0, 3)
    assert np.mean(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert np.std(gaps) == pytest.approx(1 / 20, rel=0.08)  # as its mean
    counts = np.bincount(np.array(moments, dtype=np.int64))[:-1]
    assert np.var(counts) == pytest.approx(np.mean(counts), rel=0.3)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: no valid JSON"),
        ("{}", "either prompt"),
        ('{"prompt": "a", "messages": [1]}', "either prompt"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens is 0"),
        ("[]", "either prompt"),
    ],
)
def test_a_bad_line_of_a_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "good"}}\n{line}\n', encoding="utf-8")
    assert main(["bench", "serve", "--dataset", str(path)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "texts", [["ttft"], ["ttft:-1"], ["itl:5"], ["ttft:1", "ttft:2"], ["ttft:nan"]], ids=lambda texts: texts[-1]
)
def test_targets_that_are_none(texts: Sequence[str]) -> None:
    with pytest.raises(InvalidParameterError, match="slo has"):
        parse_slo(texts)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--num-prompts", "0"),
        ("--max-concurrency", "0"),
        ("--request-rate", "0"),
        ("--timeout", "nan"),
        ("--endpoint", "images"),
        ("--base-url", "localhost:8000"),
        ("--extra-body", "[]"),
        ("--turns", "0"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_bad_settings_name_the_flag(capsys: pytest.CaptureFixture[str], arguments: tuple[str, str]) -> None:
    assert main(["bench", "serve", *arguments]) == 2
    assert arguments[0].removeprefix("--").replace("-", "_") in capsys.readouterr().err


def test_against_our_own_server(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": "one " * 40, "max_tokens": 6},
        {"messages": [{"role": "user", "content": "two"}], "max_tokens": 9},
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    with RunningServer(mock_engine()) as server:
        arguments = ("--dataset", str(path), "--num-prompts", "10", "--max-concurrency", "4", "--ignore-eos")
        result, _, _ = bench(capsys, server.base_url, *arguments)
        assert (result["good"], result["output_tokens"]) == (10, 5 * 6 + 5 * 9)
        assert result["cached_tokens"] > 0
        shared = ("--num-prompts", "6", "--input-len", "20", "--output-len", "10", "--shared-prefix-len", "100")
        result, _, _ = bench(capsys, server.base_url, *shared, "--turns", "2", "--request-rate", "50")
        assert (result["requests"], result["good"]) == (12, 12)
        assert result["cached_tokens"] > 0
        assert server.metric('pellucid_http_requests_total{route="/v1/chat/completions",status="200"}') == 22
