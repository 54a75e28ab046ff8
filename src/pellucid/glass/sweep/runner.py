"""Every prompt under every setting, in one engine.

The first setting of a prompt reads it; the others start when its blocks are in the prefix cache. All of them are
traced at level 2 for the entropies, which changes no token: each cell is what its request alone would give.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pellucid.engine.llm import LLM
from pellucid.engine.output_processor import add_delta
from pellucid.engine.request_stream import RequestStream
from pellucid.glass.sweep.grid import Grid
from pellucid.glass.sweep.results import Cell, Sweep, SweepPrompt
from pellucid.outputs import CompletionOutput, RequestOutput
from pellucid.sampling_params import SamplingParams
from pellucid.trace.events import SAMPLING, Event
from pellucid.trace.jsonl import number

Messages = list[dict[str, str]]
Progress = Callable[[int, int], None]
"""(cells that ended, tokens drawn)."""


@dataclass(slots=True)
class _Running:
    """A cell that is not finished, or was not when the sweep was interrupted."""

    prompt: int
    setting: int
    params: SamplingParams
    stream: RequestStream
    total: RequestOutput | None = None
    entropies: dict[int, float] = field(default_factory=dict)
    """By position, prompt and answer together."""


def run_sweep(
    llm: LLM,
    prompts: Sequence[str | Messages],
    grid: Grid,
    progress: Progress = lambda cells, tokens: None,
) -> Sweep:
    """Run all cells; prompts are texts, or messages for the chat template.

    Raises what `LLM.stream` raises, for any prompt before the first step. Ctrl-C ends it: what is there is given back,
    with `interrupted` set and finish_reason "abort" in cells that were not finished.
    """
    run = _Run(llm, prompts, grid, progress)
    started = time.monotonic()
    try:
        run.lead()
        run.finish()
    except KeyboardInterrupt:
        run.interrupted = True
    finally:
        run.close()
    return Sweep(
        model=llm.args.model,
        grid=grid,
        prompts=run.described(),
        cells=run.cells(),
        seconds=time.monotonic() - started,
        machine=_machine(llm),
        interrupted=run.interrupted,
    )


class _Run:
    def __init__(self, llm: LLM, prompts: Sequence[str | Messages], grid: Grid, progress: Progress) -> None:
        self.llm, self.prompts, self.grid, self.progress = llm, prompts, grid, progress
        self.interrupted = False
        self.all: list[_Running] = []
        self.open: dict[str, _Running] = {}
        self.names: set[str] = set()
        self.reader = llm.trace_reader(self.names, from_start=False)
        self.waiting = set(range(len(prompts)))
        """Prompts of which only the first setting was asked for."""
        self.num_tokens = 0

    def lead(self) -> None:
        """Queue each prompt once: whatever is wrong with one is found before work starts."""
        for prompt in range(len(self.prompts)):
            self._add(prompt, 0)

    def finish(self) -> None:
        """Step until all cells have ended."""
        while self.open:
            first = next(iter(self.open.values()))
            delta = next(first.stream, None)
            if delta is not None:
                self._take(first, delta)
            for running in list(self.open.values()):
                while running.stream.inbox:
                    self._take(running, running.stream.inbox.popleft())
            self._read_trace()

    def close(self) -> None:
        """Take what has come, and abort what is not finished."""
        for running in list(self.open.values()):
            while running.stream.inbox:
                self._keep(running, running.stream.inbox.popleft())
            running.stream.close()
        self._read_trace()

    def _add(self, prompt: int, setting: int) -> None:
        params = replace(self.grid.settings[setting].params, logprobs=0)
        stream = self.llm.stream(self.prompts[prompt], params, trace_level=SAMPLING)
        running = _Running(prompt, setting, params, stream)
        self.names.add(stream.request_id)
        self.open[stream.request_id] = running
        self.all.append(running)

    def _take(self, running: _Running, delta: RequestOutput) -> None:
        self._keep(running, delta)
        if running.prompt in self.waiting:
            self.waiting.discard(running.prompt)
            for setting in range(1, len(self.grid.settings)):
                self._add(running.prompt, setting)
        self.progress(len(self.all) - len(self.open), self.num_tokens)

    def _keep(self, running: _Running, delta: RequestOutput) -> None:
        running.total = add_delta(running.total, delta)
        self.num_tokens += sum(len(one.token_ids) for one in delta.outputs)
        if delta.finished:
            del self.open[delta.request_id]

    def _read_trace(self) -> None:
        found = {running.stream.request_id: running for running in self.all}
        for event in self.reader.read():
            if event["type"] == "sample" and event["req"] in found:
                found[event["req"]].entropies[event["i"]] = _raw_entropy(event)

    def described(self) -> list[SweepPrompt]:
        """The prompts, as far as they were read."""
        leaders = {running.prompt: running.total for running in self.all if running.setting == 0}
        return [_described(prompt, leaders.get(place)) for place, prompt in enumerate(self.prompts)]

    def cells(self) -> list[Cell]:
        """Of all requests that were made, in order."""
        ordered = sorted(self.all, key=lambda running: (running.prompt, running.setting))
        return [_cell(running, self.llm.tokenizer) for running in ordered if running.total is not None]


def _described(prompt: str | Messages, total: RequestOutput | None) -> SweepPrompt:
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    rendered = None if total is None or isinstance(prompt, str) else total.prompt
    return SweepPrompt(text, rendered, 0 if total is None else len(total.prompt_token_ids))


def _raw_entropy(event: Event) -> float:
    return number(event["stages"][0]["entropy"])


def _cell(running: _Running, tokenizer: Any) -> Cell:
    total = running.total
    assert total is not None
    [answer] = total.outputs
    first = len(total.prompt_token_ids)
    entropies = [running.entropies.get(first + place) for place in range(len(answer.token_ids))]
    known = [value for value in entropies if value is not None]
    metrics = total.metrics
    seconds = None
    if metrics.first_scheduled_time is not None and metrics.last_token_time is not None:
        seconds = metrics.last_token_time - metrics.first_scheduled_time
    cell = Cell(
        prompt=running.prompt,
        setting=running.setting,
        text=answer.text,
        token_ids=answer.token_ids,
        pieces=[tokenizer.token_bytes(token_id) for token_id in answer.token_ids],
        finish_reason=answer.finish_reason or "abort",
        stop_reason=answer.stop_reason,
        error=answer.error,
        seed=answer.seed,
        num_cached_tokens=total.num_cached_tokens,
        logprobs=[one[i].logprob for one, i in zip(answer.logprobs or [], answer.token_ids, strict=True)],
        entropies=known if len(known) == len(entropies) else None,
        seconds=seconds,
    )
    cell.measure(_num_text_tokens(answer, running.params, tokenizer))
    return cell


def _num_text_tokens(answer: CompletionOutput, params: SamplingParams, tokenizer: Any) -> int:
    """All but an end token at the end."""
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else set(tokenizer.eos_ids))
    ids = answer.token_ids
    return len(ids) - (answer.finish_reason == "stop" and bool(ids) and ids[-1] in ends)


def _machine(llm: LLM) -> dict[str, Any]:
    backend = getattr(llm.engine.model, "backend", None)
    return {
        "backend": llm.args.backend,
        "isa": getattr(backend, "isa", None),
        "threads": getattr(backend, "threads", llm.args.threads),
    }
