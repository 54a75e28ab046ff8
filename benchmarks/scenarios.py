"""What is measured: a table of scenarios, and the token ids that all engines get.

Every scenario is one question a user would ask. Prompts are random ids from the middle of the vocabulary, another set
for every scenario and round, so that no engine can answer from what it kept of an earlier round.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmarks.peers.protocol import LEAD

Kind = Literal["decode", "prefill", "chat", "process", "fidelity"]
FIRST_ID, LAST_ID = 1000, 40_000
"""Ids of ordinary text in both models: above the control and byte tokens, below the end of either vocabulary."""
START_PROMPT_TOKENS = 5
"""A short question, for the time to the first token of a new process."""
MEMORY_PROMPT_TOKENS, MEMORY_OUTPUT_TOKENS = 128, 64
"""The work after which peak memory is read."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the tables."""

    name: str
    title: str
    unit: str
    higher_is_better: bool


@dataclass(frozen=True, slots=True)
class Scenario:
    """One thing to measure. Token counts are of each stream."""

    name: str
    kind: Kind
    figures: tuple[Figure, ...]
    streams: int = 1
    prompt_tokens: int = 0
    output_tokens: int = 1
    turns: int = 0
    """Requests that share their first `prefix_tokens`, one after the other."""
    prefix_tokens: int = 0
    repeats: int = 1
    """Short scenarios are run so many times a round, each with other ids; the median counts."""
    quick_prompt_tokens: int | None = None
    quick_output_tokens: int | None = None
    in_quick: bool = True

    def shrunk(self) -> Scenario:
        """The same with the token counts of a quick run."""
        return replace(
            self,
            prompt_tokens=self.quick_prompt_tokens or self.prompt_tokens,
            output_tokens=self.quick_output_tokens or self.output_tokens,
            turns=min(self.turns, 4),
            repeats=min(self.repeats, 2),
        )

    @property
    def tokens_per_stream(self) -> int:
        """Context that one stream needs; several may run on while the last one makes its tokens."""
        lead = LEAD if self.streams > 1 else 0
        return self.prefix_tokens + self.prompt_tokens + self.output_tokens + lead

    @property
    def prompt_tokens_in_all(self) -> int:
        """Prompt tokens of a round, those that its requests share counted once."""
        return (self.prefix_tokens + (self.turns or self.streams) * self.prompt_tokens) * self.repeats

    def prompts(self, round_: int, repeat: int = 0) -> list[list[int]]:
        """Ids of one repeat of one round: of all streams, or of all turns."""
        draw = random.Random(f"{self.name} {round_} {repeat}")
        prefix = _ids(draw, self.prefix_tokens)
        return [prefix + _ids(draw, self.prompt_tokens) for _ in range(self.turns or self.streams)]

    def warm_up_prompts(self) -> list[list[int]]:
        """As many streams with 16 tokens each."""
        draw = random.Random(f"{self.name} warm-up")
        return [_ids(draw, min(16, self.tokens_per_stream)) for _ in range(self.streams)]

    def value(self, answers: list[dict[str, Any]]) -> float:
        """The figure of one repeat from its answers to `generate`."""
        if self.kind == "prefill":
            return float(self.prompt_tokens / answers[0]["first_s"])
        if self.kind == "decode":
            return float(answers[0]["window_tokens"] / answers[0]["window_s"])
        return float(sum(answer["total_s"] for answer in answers))


def start_prompt() -> list[int]:
    """Ids of the first request that a new process gets."""
    return _ids(random.Random("start"), START_PROMPT_TOKENS)


def memory_prompt() -> list[int]:
    """Ids of the request after which peak memory is read."""
    return _ids(random.Random("memory"), MEMORY_PROMPT_TOKENS)


def _ids(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(FIRST_ID, LAST_ID) for _ in range(count)]


def _decode(streams: int, output_tokens: int, quick_prompt: int, quick_output: int) -> Scenario:
    title = "decode, 1 stream" if streams == 1 else f"decode, {streams} streams together"
    return Scenario(
        f"decode-{streams}",
        "decode",
        (Figure(f"decode-{streams}", title, "tok/s", True),),
        streams=streams,
        prompt_tokens=128,
        output_tokens=output_tokens,
        quick_prompt_tokens=quick_prompt,
        quick_output_tokens=quick_output,
    )


def _prefill(tokens: int, repeats: int = 1, in_quick: bool = True) -> Scenario:
    name = f"prefill-{tokens}"
    figure = Figure(name, f"prefill, {tokens} tokens", "tok/s", True)
    return Scenario(name, "prefill", (figure,), prompt_tokens=tokens, repeats=repeats, in_quick=in_quick)


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        _decode(1, 128, 128, 64),
        _prefill(128, repeats=5),
        _prefill(512, repeats=2),
        _prefill(2048, in_quick=False),
        _prefill(8000, in_quick=False),
        _decode(4, 64, 64, 32),
        _decode(16, 64, 32, 16),
        _decode(64, 64, 16, 8),
        Scenario(
            "chat",
            "chat",
            (Figure("chat", "chats with one system prompt", "s", False),),
            prompt_tokens=32,
            output_tokens=32,
            turns=8,
            prefix_tokens=512,
            quick_output_tokens=16,
        ),
        Scenario(
            "process",
            "process",
            (
                Figure("first-token", "new process to first token", "s", False),
                Figure("peak-rss", "peak memory, one stream", "MB", False),
                Figure("cli-first-token", "command line to first text", "s", False),
                Figure("cli-peak-rss", "command line, peak memory", "MB", False),
            ),
        ),
        Scenario(
            "fidelity",
            "fidelity",
            (
                Figure("mean-kl", "mean KL from float32", "nats", False),
                Figure("agreement", "greedy choice as float32", "", True),
            ),
        ),
    )
}
FIGURES: dict[str, Figure] = {figure.name: figure for scenario in SCENARIOS.values() for figure in scenario.figures}
