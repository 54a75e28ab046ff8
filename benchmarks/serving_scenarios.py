"""What is asked of a server, and which figures come of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pellucid.cli.load.client import PATHS, Result, Target, ask
from pellucid.cli.load.driver import drive
from pellucid.cli.load.report import report
from pellucid.cli.load.workload import Conversation, Turn, sentences


class Figure(NamedTuple):
    """One number of a scenario."""

    title: str
    unit: str
    higher_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is asked; a quick run asks for less."""

    clients: int = 16
    requests_each: int = 3
    prompt_tokens: int = 128
    answer_tokens: int = 64
    prefix_tokens: int = 1000
    prefix_repeats: int = 5
    streams: int = 8
    stream_tokens: int = 200
    long_tokens: int = 4000
    overhead_tokens: int = 128
    overhead_repeats: int = 3

    def shrunk(self) -> Sizes:
        """The same questions in a minute or two."""
        return replace(
            self,
            requests_each=1,
            answer_tokens=16,
            prefix_repeats=2,
            stream_tokens=60,
            long_tokens=1500,
            overhead_tokens=48,
            overhead_repeats=2,
        )


Values = dict[str, float]
Scenario = Callable[[Any, Target, Sizes, int], Awaitable[Values]]
FIGURES = {
    "chat-16-tokens": Figure("16 chat clients: output tokens per second", "tok/s", higher_is_better=True),
    "chat-16-ttft-p95": Figure("16 chat clients: p95 of TTFT", "ms"),
    "prefix-cold": Figure("1,000-token prefix, first time: TTFT", "ms"),
    "prefix-warm": Figure("the same prefix again: TTFT", "ms"),
    "prefix-share": Figure("again ÷ first", "%"),
    "long-gap": Figure("8 streams when a 4,000-token prompt arrives: largest gap", "ms"),
    "long-ttft": Figure("that prompt's TTFT", "ms"),
}


class ScenarioError(Exception):
    """An answer failed."""


def _texts(seed: int, count: int, num_tokens: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [sentences(random, num_tokens) for _ in range(count)]


def _checked(results: list[Result]) -> list[Result]:
    for result in results:
        if result.failure is not None:
            raise ScenarioError(f"{result.failure}: {result.detail}")
        if result.ttft is None:
            raise ScenarioError("an answer has no text")
    return results


async def _one(client: Any, target: Target, messages: list[dict[str, str]], num_tokens: int) -> Result:
    result = await ask(client, PATHS[target.endpoint], target.body(messages, num_tokens), time.perf_counter())
    return _checked([result])[0]


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def chat(client: Any, target: Target, sizes: Sizes, round_: int) -> Values:
    """So many people, each with one question after the other; nothing is shared but the template."""
    texts = _texts(1000 + round_, sizes.clients * sizes.requests_each, sizes.prompt_tokens)
    conversations = [Conversation((Turn(text, sizes.answer_tokens),)) for text in texts]
    results, seconds = await drive(client, target, conversations, concurrency=sizes.clients)
    summary = report(_checked(results), seconds)
    return {
        "chat-16-tokens": summary.rates["output_tokens_per_second"],
        "chat-16-ttft-p95": summary.times["ttft"]["p95"],
    }


async def prefix(client: Any, target: Target, sizes: Sizes, round_: int) -> Values:
    """A long system prompt, asked about twice; a new one for each repeat. Medians."""
    cold, warm = [], []
    for repeat, system in enumerate(_texts(2000 + round_, sizes.prefix_repeats, sizes.prefix_tokens)):
        questions = _texts(3000 + 100 * round_ + repeat, 2, 20)
        for times, question in zip((cold, warm), questions, strict=True):
            messages = [{"role": "system", "content": system}, *_user(question)]
            times.append((await _one(client, target, messages, 4)).ttft or 0.0)
    first, again = float(np.median(cold)), float(np.median(warm))
    return {"prefix-cold": first * 1000, "prefix-warm": again * 1000, "prefix-share": 100 * again / first}


async def long_prompt(client: Any, target: Target, sizes: Sizes, round_: int) -> Values:
    """Streams that run, and then a prompt as long as a paper: how long is the longest silence in any of them?"""
    now = time.perf_counter()
    results = [Result(now) for _ in range(sizes.streams)]
    path = PATHS[target.endpoint]
    streams = [
        asyncio.create_task(ask(client, path, target.body(_user(text), sizes.stream_tokens), now, result=result))
        for text, result in zip(_texts(4000 + round_, sizes.streams, 64), results, strict=True)
    ]
    while not all(result.token_times or result.end for result in results):
        await asyncio.sleep(0.005)
    num_ended = sum(1 for result in results if result.end)
    sent = time.perf_counter()
    [text] = _texts(5000 + round_, 1, sizes.long_tokens)
    long = await _one(client, target, _user(text), 8)
    _checked(list(await asyncio.gather(*streams)))
    if num_ended:
        raise ScenarioError(f"it does not run {sizes.streams} at once: {num_ended} had ended when the last one began")
    gaps = [later - earlier for result in results for earlier, later in pairwise(result.token_times) if later > sent]
    return {"long-gap": max(gaps) * 1000, "long-ttft": (long.ttft or 0.0) * 1000}


SCENARIOS: dict[str, Scenario] = {"chat-16": chat, "prefix-1000": prefix, "long-4000": long_prompt}
