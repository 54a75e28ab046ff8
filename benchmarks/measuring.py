"""The engines in turn: A B A B …, so that what the machine does meanwhile falls on all of them alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import command_line, machine, models
from benchmarks.peers.registry import OURS, PEERS
from benchmarks.results import BANDWIDTH, MACHINE, Measurement, Results
from benchmarks.scenarios import (
    FIGURES,
    MEMORY_OUTPUT_TOKENS,
    MEMORY_PROMPT_TOKENS,
    Scenario,
    memory_prompt,
    start_prompt,
)
from benchmarks.workers import Worker, WorkerError

PAUSE = 0.2
"""Seconds between two engines: some spin for a while after their last task."""
BANDWIDTH_SECONDS = 0.6
TOO_LONG = 2
"""An engine whose prompts alone would take so many times the budget is left out of a scenario."""
LOAD_TIMEOUT = 900.0
CALL_TIMEOUT = 900.0
Values = dict[str, float]


@dataclass(slots=True)
class Settings:
    """How much is measured."""

    threads: int
    rounds: int
    budget: float
    """Seconds that one engine may take in one scenario before further rounds are left out."""
    fidelity_tokens: int
    log_folder: Path


@dataclass(slots=True)
class Bench:
    """One run over all models."""

    settings: Settings
    pythons: Mapping[str, Path]
    results: Results
    say: Callable[[str], None]
    advance: Callable[[str], None]
    """Called with what is about to be measured, once for each engine and round."""
    _load_seconds: dict[str, float] = field(default_factory=dict)
    _first_tokens: dict[tuple[str, str], list[list[int]]] = field(default_factory=dict)
    _prefill_rates: dict[str, float] = field(default_factory=dict)
    """The most prompt tokens a second that an engine has shown with this model."""

    def measure(self, model: str, path: Path, scenarios: Sequence[Scenario]) -> None:
        """All scenarios of one model, with all engines alive side by side."""
        self.results.models[model] = models.facts(path)
        self._load_seconds.clear()
        self._prefill_rates.clear()
        others = [scenario for scenario in scenarios if scenario.kind != "process"]
        with self._workers(model, path, others) as workers:
            for scenario in others:
                if scenario.kind == "fidelity":
                    self._fidelity(model, path, scenario, workers)
                else:
                    self._generate(model, scenario, workers)
                self._keep()
        for scenario in scenarios:
            if scenario.kind == "process":
                self._process(model, path, scenario)
                self._keep()
        self._count_same(model)

    def num_measurements(self, scenarios: Sequence[Scenario]) -> int:
        """How often `advance` will be called for one model at most."""
        rounds = sum(1 if scenario.kind == "fidelity" else self.settings.rounds for scenario in scenarios)
        return rounds * len(self.pythons) + len(self.pythons)

    def _keep(self) -> None:
        """What there is so far: a run of an hour may end at any time."""
        self.results.save(self.settings.log_folder / "results.json")

    # ---- engines ----

    @contextmanager
    def _workers(self, model: str, path: Path, scenarios: Sequence[Scenario]) -> Iterator[dict[str, Worker]]:
        """One loaded worker for each engine that can load the model."""
        workers: dict[str, Worker] = {}
        max_tokens = max((s.streams * (-(-s.tokens_per_stream // 256) * 256) for s in scenarios), default=0)
        max_streams = max((s.streams for s in scenarios), default=0)
        try:
            for name in self.pythons:
                if not any(self._takes_part(name, scenario) for scenario in scenarios):
                    continue
                self.advance(f"{model}: {name} loads")
                worker = self._start(name)
                try:
                    answer = self._load(worker, path, max(max_tokens, 1024), max_streams)
                except WorkerError as error:
                    self._note(name, model, "", str(error))
                    self._load_seconds[name] = math.inf
                    worker.close()
                    continue
                self.results.engines[name] |= answer["details"]
                self._load_seconds[name] = answer["seconds"]
                self.say(f"{model}: {name} loaded in {answer['seconds']:.1f} s")
                workers[name] = worker
            yield workers
        finally:
            for worker in workers.values():
                worker.close()

    def _start(self, name: str) -> Worker:
        log = self.settings.log_folder / f"{name}.log"
        self.results.engines.setdefault(name, {})
        return Worker(PEERS[name], self.pythons[name], self.settings.threads, log)

    def _load(self, worker: Worker, path: Path, max_tokens: int, max_streams: int) -> dict[str, Any]:
        return worker.call(
            "load",
            LOAD_TIMEOUT,
            path=str(path),
            threads=self.settings.threads,
            max_tokens=max_tokens,
            max_streams=max_streams,
        )

    def _takes_part(self, name: str, scenario: Scenario) -> bool:
        kinds = PEERS[name].kinds
        return kinds is None or scenario.kind in kinds

    def _note(self, engine: str, model: str, scenario: str, why: str) -> None:
        one = {"engine": engine, "model": model, "scenario": scenario, "why": why}
        if one not in self.results.not_measured:
            self.results.not_measured.append(one)
            self.say(f"{' '.join(part for part in (model, engine, scenario) if part)}: not measured: {why}")

    # ---- rounds ----

    def _in_turn(
        self, model: str, scenario: Scenario, engines: Sequence[str], measure: Callable[[str, int], Values]
    ) -> None:
        """Rounds of all engines one after the other; each round begins with another engine."""
        left = [name for name in engines if self._takes_part(name, scenario) and self._has_time(name, model, scenario)]
        spent = dict.fromkeys(left, 0.0)
        rounds = 1 if scenario.kind == "fidelity" else self.settings.rounds
        for round_ in range(rounds):
            turn = round_ % max(1, len(left))
            for name in left[turn:] + left[:turn]:
                self.advance(f"{model}: {scenario.name}, round {round_ + 1} of {rounds}, {name}")
                # One round more would take as long as the rounds so far did on average.
                if round_ and spent[name] * (round_ + 1) / round_ > self.settings.budget:
                    continue
                begin = time.perf_counter()
                try:
                    values = measure(name, round_)
                except WorkerError as error:
                    self._note(name, model, scenario.name, str(error))
                    left = [other for other in left if other != name]
                    continue
                spent[name] += time.perf_counter() - begin
                for figure, value in values.items():
                    self.results.measurements.append(Measurement(model, name, figure, round_, value))
                    if scenario.kind == "prefill":
                        self._prefill_rates[name] = max(value, self._prefill_rates.get(name, 0.0))
                shown = ", ".join(f"{value:.4g} {FIGURES[figure].unit}" for figure, value in values.items())
                self.say(f"{model}: {scenario.name}, round {round_ + 1}, {name}: {shown}")
                time.sleep(PAUSE)
            if scenario.name == "decode-1":
                self._bandwidth(model, round_)

    def _has_time(self, name: str, model: str, scenario: Scenario) -> bool:
        """Whether an engine's prompts fit into the time of a scenario, as far as its prefill has been seen."""
        rate = self._prefill_rates.get(name)
        if name == OURS or rate is None or scenario.kind in ("process", "fidelity"):
            return True
        seconds, most = scenario.prompt_tokens_in_all / rate, TOO_LONG * self.settings.budget
        if seconds > most:
            why = f"its prompts would take {seconds:.0f} s, more than {TOO_LONG} times the time of a scenario here"
            self._note(name, model, scenario.name, why)
        return seconds <= most

    def _bandwidth(self, model: str, round_: int) -> None:
        """What the memory gives in this very round: decoding one stream is held against it."""
        answer = machine.bandwidth_again(self.settings.threads, BANDWIDTH_SECONDS)
        if "value" in answer:
            self.results.measurements.append(Measurement(model, MACHINE, BANDWIDTH, round_, answer["value"]))
            self.say(f"{model}: read bandwidth, round {round_ + 1}: {answer['value']:.1f} GB/s")

    def _generate(self, model: str, scenario: Scenario, workers: Mapping[str, Worker]) -> None:
        def measure(name: str, round_: int) -> Values:
            worker = workers[name]
            if round_ == 0:
                worker.call(
                    "prepare", CALL_TIMEOUT, streams=scenario.streams, tokens=max(64, scenario.tokens_per_stream)
                )
                worker.call("generate", CALL_TIMEOUT, prompts=scenario.warm_up_prompts(), num_tokens=2)
            values = []
            for repeat in range(scenario.repeats):
                prompts = scenario.prompts(round_, repeat)
                batches = [[prompt] for prompt in prompts] if scenario.turns else [prompts]
                answers = [
                    worker.call("generate", CALL_TIMEOUT, prompts=batch, num_tokens=scenario.output_tokens)
                    for batch in batches
                ]
                values.append(scenario.value(answers))
                firsts = self._first_tokens.setdefault((name, f"{scenario.name} {round_} {repeat}"), [])
                firsts += [ids[:1] for answer in answers for ids in answer["token_ids"]]
            return {scenario.figures[0].name: statistics.median(values)}

        self._in_turn(model, scenario, list(workers), measure)

    def _count_same(self, model: str) -> None:
        """How often each engine's first token was ours: engines that run the same weights mostly agree."""
        for name in self.pythons:
            pairs = [
                (ours, theirs)
                for (engine, key), answers in self._first_tokens.items()
                if engine == name
                for ours, theirs in zip(self._first_tokens.get((OURS, key), []), answers, strict=False)
            ]
            if pairs and name != OURS:
                same = sum(ours == theirs for ours, theirs in pairs)
                self.results.first_tokens.append({"model": model, "engine": name, "same": same, "of": len(pairs)})
        self._first_tokens.clear()

    # ---- what needs a process of its own, or the float32 truth ----

    def _process(self, model: str, path: Path, scenario: Scenario) -> None:
        """From the start of a process to its first token; then its peak memory after one answer."""

        def measure(name: str, round_: int) -> Values:
            with self._start(name) as worker:
                self._load(worker, path, 1024, 1)
                tokens = MEMORY_PROMPT_TOKENS + MEMORY_OUTPUT_TOKENS
                worker.call("prepare", CALL_TIMEOUT, streams=1, tokens=tokens)
                worker.call("generate", CALL_TIMEOUT, prompts=[start_prompt()], num_tokens=1)
                first = time.perf_counter() - worker.begin
                worker.call("generate", CALL_TIMEOUT, prompts=[memory_prompt()], num_tokens=MEMORY_OUTPUT_TOKENS)
                values = {"first-token": first, "peak-rss": worker.peak_rss_bytes() / 1e6}
            if name == OURS:
                figures = command_line.measure(path, self.settings.threads)
                values |= figures
                if not figures:
                    self._note(name, model, "command line", "pellucid generate failed: run it by hand to see why")
            return values

        engines = []
        for name in self.pythons:
            seconds = self._load_seconds.get(name, 0.0)
            if seconds <= self.settings.budget:
                engines.append(name)
            elif seconds < math.inf:
                why = f"loading takes {seconds:.0f} s, more than the {self.settings.budget:.0f} s of a scenario here"
                self._note(name, model, scenario.name, why)
        self._in_turn(model, scenario, engines, measure)

    def _fidelity(self, model: str, path: Path, scenario: Scenario, workers: Mapping[str, Worker]) -> None:
        fixture = models.golden_fixture(path)
        if fixture is None:
            self._note("", model, scenario.name, f"no fixture under tests/golden was made from {path.name}")
            return
        with models.head_file(path) as head:

            def measure(name: str, round_: int) -> Values:
                answer = workers[name].call(
                    "fidelity",
                    CALL_TIMEOUT,
                    golden=str(fixture),
                    head=str(head),
                    limit=self.settings.fidelity_tokens,
                )
                self.results.models[model]["fidelity_tokens"] = answer["tokens"]
                return {"mean-kl": answer["mean_kl"], "agreement": answer["agreement"]}

            self._in_turn(model, scenario, list(workers), measure)
