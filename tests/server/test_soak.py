"""Thousands of requests of every kind: every good answer is that of its solo run, and nothing piles up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_server import wait_for
from test_serve_command import ENVIRONMENT
from tiny_model import write_tiny_model

from pellucid.engine.llm import LLM
from pellucid.sampling_params import SamplingParams

NUM_REQUESTS = 2000
CONCURRENCY = 24
MAX_GROWTH = 12_000_000
"""Bytes that the process may have grown by between a quarter of the run and its end."""
BAD_BODIES: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b'{"prompt": NaN}',
    b'{"prompt": ""}',
    b'{"prompt": "a", "temperature": "hot"}',
    b'{"prompt": "a", "n": 100000}',
    b'{"prompt": "a", "unknown": 1}',
    b'{"prompt": "a", "model": "other"}',
    b'{"prompt": "' + b"long " * 1000 + b'"}',
    b'{"prompt": "a", "max_tokens": 100000}',
    b'{"prompt": "\\ud800"}',
    b"\xff\xfe",
)


@dataclass(frozen=True)
class Question:
    """Something to ask, and what its solo run answers."""

    prompt: str
    is_chat: bool
    fields: dict[str, Any] = field(hash=False, default_factory=dict)
    answers: tuple[tuple[str, str], ...] = ()

    def path(self) -> str:
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def body(self, stream: bool) -> dict[str, Any]:
        messages = {"messages": [{"role": "user", "content": self.prompt}]} if self.is_chat else {"prompt": self.prompt}
        return {**messages, **self.fields, "stream": stream}


def questions(llm: LLM, count: int) -> list[Question]:
    """Prompts of 1 to some 300 tokens, a third of which share a beginning; answers of up to 60 tokens."""
    chance = random.Random(5)
    shared = "x" * 150
    made = []
    for i in range(count):
        length = chance.choice((1, 5, 17, 40, 120, 200))
        prompt = (shared if chance.random() < 0.3 else "") + "".join(
            chance.choices("abcdefgh \u00e9\U0001f999", k=length)
        )
        fields: dict[str, Any] = {"seed": i, "max_tokens": chance.choice((1, 3, 10, 25, 60))}
        fields["temperature"] = chance.choice((0.0, 0.7, 1.3))
        if chance.random() < 0.2:
            fields["n"] = 2
        if chance.random() < 0.2:
            fields["frequency_penalty"] = 0.5
        if chance.random() < 0.3:
            fields["ignore_eos"] = True
        is_chat = chance.random() < 0.4
        params = SamplingParams(**fields)
        [output] = llm.chat([{"role": "user", "content": prompt}], params) if is_chat else llm.generate(prompt, params)
        answers = tuple((one.text, str(one.finish_reason)) for one in output.outputs)
        made.append(Question(prompt, is_chat, fields, answers))
    return made


class Server:
    """`pellucid serve` on the tiny model, and what the system says about its process."""

    def __init__(self, path: Path) -> None:
        arguments = ("--port", "0", "--no-access-log", "--max-num-seqs", "16", "--max-num-batched-tokens", "64")
        # room for two of the longest requests, so that others wait, and cached blocks are given up
        memory = ("--kv-cache-memory-bytes", str(2 * 1024 * 2 * 2 * 2 * 16 * 2))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pellucid", "serve", str(path), *arguments, *memory],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        found = re.search(r"http://[\d.]+:\d+", self.process.stdout.readline())
        assert found is not None, self.process.communicate()
        self.url = found[0]

    def rss(self) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) * 1024

    def num_open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def num_threads(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def metric(self, name: str) -> float:
        page = httpx.get(f"{self.url}/metrics", headers={"Connection": "close"}).text
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? ([\d.e+]+)$", page, re.MULTILINE))


class Soak:
    def __init__(self, server: Server, asked: list[Question], seed: int) -> None:
        self.server, self.asked = server, asked
        self.chance = random.Random(seed)
        self.outcomes: Counter[str] = Counter()

    async def run(self, count: int) -> None:
        """So many requests, CONCURRENCY at once."""
        kinds = self.chance.choices(("good", "leaves", "bad"), (85, 10, 5), k=count)
        places = asyncio.Semaphore(CONCURRENCY)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self.server.url, timeout=120, limits=limits, verify=False) as client:

            async def one(kind: str, question: Question, number: int) -> None:
                async with places:
                    await getattr(self, f"_{kind}")(client, question, number)
                    self.outcomes[kind] += 1

            picked = self.chance.choices(self.asked, k=count)
            await asyncio.gather(*(one(k, q, i) for i, (k, q) in enumerate(zip(kinds, picked, strict=True))))

    async def _good(self, client: httpx.AsyncClient, question: Question, number: int) -> None:
        stream = number % 2 == 0
        response = await client.post(question.path(), json=question.body(stream))
        assert response.status_code == 200, response.text
        texts, reasons = ["", ""], ["", ""]
        chunks = _events(response.text) if stream else [response.json()]
        for chunk in chunks:
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                message = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
                texts[choice["index"]] += message.get("content") or ""
                reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
        got = tuple(zip(texts, reasons, strict=True))[: len(question.answers)]
        assert got == question.answers, question

    async def _leaves(self, client: httpx.AsyncClient, question: Question, number: int) -> None:
        """At once, after some events, or while the whole answer is awaited."""
        body = {**question.body(number % 3 != 0), "max_tokens": 150, "ignore_eos": True}
        if number % 3 == 0:
            with contextlib.suppress(httpx.TimeoutException):
                await client.post(question.path(), json=body, timeout=0.02)
            return
        async with client.stream("POST", question.path(), json=body) as response:
            assert response.status_code == 200
            left = number % 4
            async for _ in response.aiter_lines():
                left -= 1
                if left < 0:
                    break

    async def _bad(self, client: httpx.AsyncClient, question: Question, number: int) -> None:
        content = BAD_BODIES[number % len(BAD_BODIES)]
        headers = {"Content-Type": "application/json"}
        response = await client.post("/v1/completions", content=content, headers=headers)
        assert response.status_code in (400, 404), response.text
        assert response.json()["error"]["message"]


def _events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def soak(path: Path, num_requests: int, num_questions: int, max_growth: int) -> None:
    with LLM(model=str(path), threads=1) as llm:
        asked = questions(llm, num_questions)
    server = Server(path)
    try:
        run = Soak(server, asked, 7)
        asyncio.run(run.run(num_requests // 4))
        wait_for(lambda: server.metric("pellucid_num_requests_running") == 0)
        rss, files, threads = server.rss(), server.num_open_files(), server.num_threads()
        asyncio.run(run.run(num_requests - num_requests // 4))
        wait_for(lambda: server.metric("pellucid_num_requests_running") == 0)
        assert sum(run.outcomes.values()) == num_requests
        assert run.outcomes["leaves"] > 0.05 * num_requests
        assert run.outcomes["bad"] > 0.02 * num_requests
        assert server.metric("pellucid_num_requests_waiting") == 0
        assert server.metric("pellucid_kv_blocks_used") == 0
        assert server.metric("pellucid_prefix_cache_hits_total") > 0
        assert server.metric("pellucid_prefix_cache_evicted_blocks_total") > 0
        assert server.metric("pellucid_request_failures_total") >= run.outcomes["bad"]
        wait_for(lambda: server.num_open_files() <= files)
        assert server.num_threads() <= threads + 6  # asyncio's own pool grows up to that
        assert server.rss() - rss < max_growth, f"{rss} bytes have become {server.rss()}"
        server.process.send_signal(signal.SIGTERM)
        _, err = server.process.communicate(timeout=30)
        assert (server.process.returncode, err) == (0, "")
    finally:
        server.process.kill()
        server.process.communicate()


def test_a_short_soak(tmp_path: Path) -> None:
    soak(write_tiny_model(tmp_path / "tiny.gguf"), 160, 40, 64_000_000)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_soak(tmp_path: Path) -> None:
    soak(write_tiny_model(tmp_path / "tiny.gguf"), NUM_REQUESTS, 150, MAX_GROWTH)
