"""What came out of a sweep: plain data, and its form as JSON."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pellucid.glass.sweep.grid import Grid, Setting
from pellucid.glass.sweep.measures import distinct_n, longest_repeat, mean, repetition
from pellucid.outputs import FinishReason

SCHEMA: Final = "pellucid-sweep/1"
MEASURES = ("num_tokens", "rep_4", "longest_repeat", "distinct_1", "distinct_2", "mean_logprob", "entropy", "seconds")
"""Numbers of a cell, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class SweepPrompt:
    """One prompt of a sweep."""

    text: str
    """As it was given."""
    rendered: str | None
    """As the model read it, where the chat template made something else of it."""
    num_tokens: int


@dataclass(slots=True)
class Cell:
    """One prompt under one setting. Measures are over the text's tokens, without the token that ended it."""

    prompt: int
    setting: int
    text: str
    token_ids: list[int]
    """All ids drawn, the end token included."""
    pieces: list[bytes]
    """Their bytes."""
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    error: str | None
    seed: int
    num_cached_tokens: int | None
    """Prompt tokens that were not computed again."""
    logprobs: list[float]
    """Of each token under the raw logits, natural."""
    entropies: list[float] | None
    """Of the raw distribution that each token came from, nats; None where the trace lost some."""
    seconds: float | None
    """First computed to last token drawn, beside all others: together they take less than their sum."""
    num_tokens: int = 0
    rep_4: float | None = None
    longest_repeat: int = 0
    distinct_1: float | None = None
    distinct_2: float | None = None
    mean_logprob: float | None = None
    """Over all tokens drawn, the end token included: what the model thought of the whole answer."""
    entropy: float | None = None
    """Mean over the same tokens, nats: how open the choice was before any stage of sampling."""

    def measure(self, num_text_tokens: int) -> None:
        """Work out the measures; the first `num_text_tokens` ids are the text's."""
        text = self.token_ids[:num_text_tokens]
        self.num_tokens = len(text)
        self.rep_4, self.longest_repeat = repetition(text), longest_repeat(text)
        self.distinct_1, self.distinct_2 = distinct_n([text], 1), distinct_n([text], 2)
        self.mean_logprob = mean(self.logprobs)
        self.entropy = None if self.entropies is None else mean(self.entropies)

    @property
    def text_ids(self) -> list[int]:
        """Ids of the text."""
        return self.token_ids[: self.num_tokens]


@dataclass(slots=True)
class Sweep:
    """A sweep and what came out of it. `cells` are ordered by prompt, then setting."""

    model: str
    grid: Grid
    prompts: list[SweepPrompt]
    cells: list[Cell]
    seconds: float
    """From the first request to the last token."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Backend, instruction set, threads."""
    interrupted: bool = False

    @property
    def num_output_tokens(self) -> int:
        """Of all cells."""
        return sum(len(cell.token_ids) for cell in self.cells)

    def of_prompt(self, prompt: int) -> list[Cell]:
        """The cells of a prompt, in the order of the settings."""
        return [cell for cell in self.cells if cell.prompt == prompt]

    def groups(self) -> Iterator[Group]:
        """Settings that differ in the seed alone, put together over all prompts."""
        places: dict[tuple[Any, ...], list[int]] = {}
        names = [name for name in self.grid.varied if name != "seed"]
        for place, setting in enumerate(self.grid.settings):
            places.setdefault(tuple(setting.value(name) for name in names), []).append(place)
        for values, members in places.items():
            cells = [cell for cell in self.cells if cell.setting in members]
            yield _group(dict(zip(names, values, strict=True)), members, cells)


@dataclass(frozen=True, slots=True)
class Group:
    """Means over the cells of a setting: all prompts, all seeds."""

    values: dict[str, Any]
    settings: list[int]
    num_cells: int
    means: dict[str, float | None]
    distinct_2_together: float | None
    """Distinct-2 of all answers to a prompt as one text, mean over prompts: how much the samples differ from one
    another, as Li et al. use it. None where there is one answer to each prompt."""
    stopped: float
    """Share of cells that ended by themselves."""


def _group(values: dict[str, Any], settings: list[int], cells: Sequence[Cell]) -> Group:
    by_prompt: dict[int, list[list[int]]] = {}
    for cell in cells:
        by_prompt.setdefault(cell.prompt, []).append(cell.text_ids)
    together = None
    if len(settings) > 1:
        together = mean(distinct_n(texts, 2) for texts in by_prompt.values())
    return Group(
        values,
        settings,
        len(cells),
        {name: mean(getattr(cell, name) for cell in cells) for name in MEASURES},
        together,
        mean(float(cell.finish_reason == "stop") for cell in cells) or 0.0,
    )


def as_json(sweep: Sweep) -> dict[str, Any]:
    """The whole sweep as JSON has it; bytes of tokens in base64."""
    grid = sweep.grid
    return {
        "schema": SCHEMA,
        "model": sweep.model,
        "machine": sweep.machine,
        "interrupted": sweep.interrupted,
        "seconds": sweep.seconds,
        "num_output_tokens": sweep.num_output_tokens,
        "num_combinations": grid.num_combinations,
        "varied": list(grid.varied),
        "prompts": [asdict(prompt) for prompt in sweep.prompts],
        "settings": [_setting(grid, setting) for setting in grid.settings],
        "cells": [_cell(cell) for cell in sweep.cells],
        "groups": [asdict(group) for group in sweep.groups()],
    }


def _setting(grid: Grid, setting: Setting) -> dict[str, Any]:
    return {
        "label": grid.label(setting),
        "preset": setting.preset,
        "values": {name: setting.value(name) for name in grid.varied},
        "sampling_params": asdict(setting.params),
    }


def _cell(cell: Cell) -> dict[str, Any]:
    found = asdict(cell)
    found["pieces"] = [b64encode(piece).decode("ascii") for piece in cell.pieces]
    return found
