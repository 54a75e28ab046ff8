"""Servers over HTTP: many clients, a shared prefix, a long prompt among streams; and what HTTP itself costs.

    python -m benchmarks.serving                    all scenarios, the default model, the servers that are installed
    python -m benchmarks.serving --quick            the same questions with less, in a few minutes
    python -m benchmarks.run --setup PEER           make that peer's environment

Rounds go from server to server, all of them loaded. Progress goes to stderr, the table to stdout, and serving.json to
the folder of --out; the last line is JSON. What a figure means stands in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import machine, processor
from benchmarks.environments import find_all
from benchmarks.peers.registry import OURS, PEERS
from benchmarks.peers.serving import COMMANDS, MODEL, Server, ServerError, extra_body
from benchmarks.results import price
from benchmarks.run import DEFAULT_OUT, PeerPython, count, list_of
from benchmarks.serving_overhead import OVERHEAD, OVERHEAD_FIGURES, measure_overhead
from benchmarks.serving_scenarios import FIGURES, SCENARIOS, ScenarioError, Sizes
from pellucid.cli.load.client import Target
from pellucid.cli.load.driver import new_client
from pellucid.config import PRECISION_KL

TIMEOUT = 600.0


class Run:
    """Everything that one run finds out: figure → server → values of its rounds."""

    def __init__(self, sizes: Sizes, threads: int, out: Path) -> None:
        self.sizes, self.threads, self.out = sizes, threads, out
        self.values: dict[str, dict[str, dict[int, float]]] = {}
        self.not_measured: list[dict[str, str]] = []

    def add(self, server: str, round_: int, values: dict[str, float]) -> None:
        for figure, value in values.items():
            self.values.setdefault(figure, {}).setdefault(server, {})[round_] = value

    def note(self, server: str, scenario: str, why: str) -> None:
        self.not_measured.append({"server": server, "scenario": scenario, "why": why})
        say(f"{server} {scenario}: not measured: {why}")

    def say(self, text: str) -> None:
        say(text)

    def median(self, figure: str, server: str) -> float | None:
        values = self.values.get(figure, {}).get(server)
        return statistics.median(values.values()) if values else None

    def ratio(self, figure: str, server: str) -> float | None:
        """How many times as good pellucid is, round by round, in the median."""
        ours, theirs = (self.values.get(figure, {}).get(name, {}) for name in (OURS, server))
        pairs = [(ours[r], theirs[r]) for r in ours if r in theirs and ours[r] and theirs[r]]
        if not pairs:
            return None
        is_rate = FIGURES[figure].higher_is_better
        return statistics.median(mine / other if is_rate else other / mine for mine, other in pairs)

    def table(self) -> str:
        """Markdown: a row for each figure, a column for each server, × where pellucid is compared."""
        servers = list(dict.fromkeys(name for by_server in self.values.values() for name in by_server))
        lines = ["| | " + " | ".join(name + price(name) for name in servers) + " |", "|---|" + "---:|" * len(servers)]
        for figure, (title, unit, _) in {**FIGURES, **OVERHEAD_FIGURES}.items():
            if figure not in self.values:
                continue
            cells = []
            for name in servers:
                median = self.median(figure, name)
                ratio = None if name == OURS or figure in OVERHEAD_FIGURES else self.ratio(figure, name)
                cell = "–" if median is None else f"{median:.4g}"
                cells.append(cell if ratio is None else f"{cell} ({ratio:.2f} ×)")
            lines.append(f"| {title}, {unit} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "benchmark": "serving",
            "machine": machine.describe(),
            "threads": self.threads,
            "sizes": asdict(self.sizes),
            "load_average": machine.load_average(),
            "values": self.values,
            "not_measured": self.not_measured,
        }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments and do what they ask; gives the exit code."""
    options = _parser().parse_args(arguments)
    sizes = Sizes().shrunk() if options.quick else Sizes()
    out = options.out or DEFAULT_OUT / time.strftime("serving-%Y-%m-%d-%H%M%S")
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the servers are ended too
    run = Run(sizes, options.threads or processor.usable_cores(), out)
    try:
        measure(run, options)
    except KeyboardInterrupt:
        say("stopped: the table holds what was measured so far")
    (out / "serving.json").write_text(json.dumps(run.as_json(), indent=1) + "\n", encoding="utf-8")
    print(run.table())
    medians = {f: {name: run.median(f, name) for name in by_server} for f, by_server in run.values.items()}
    ratios = {f: {n: run.ratio(f, n) for n in by if n != OURS} for f, by in run.values.items() if f in FIGURES}
    figures = {"medians": medians, "ratios": ratios, "precision_mean_kl": PRECISION_KL}
    print(json.dumps({"benchmark": "serving", **figures, "results": str(out / "serving.json")}))
    return 0 if run.values else 1


def measure(run: Run, options: argparse.Namespace) -> None:
    """All scenarios, round by round, every round beginning with another server."""
    from pellucid.model_store.store import resolve

    path = Path(resolve(options.model))
    names = list(dict.fromkeys([OURS, *(options.peers or [n for n in COMMANDS if not PEERS[n].slow_start])]))
    pythons, missing = find_all(names, options.peer_python)
    for name, why in missing.items():
        run.note(name, "", why)
    scenarios = options.scenarios or [*SCENARIOS, OVERHEAD]
    rounds = options.rounds or (1 if options.quick else 3)
    tokenizer = _tokenizer(path)
    end_ids = sorted(tokenizer.eos_ids)
    with ExitStack() as stack:
        servers = {}
        for name, python in pythons.items():
            server = stack.enter_context(Server(name, python, path, run.threads, run.out / f"{name}.log"))
            try:
                say(f"{name}: ready after {server.wait():.1f} s")
                servers[name] = server
            except ServerError as error:
                run.note(name, "", str(error))
        for scenario in (one for one in scenarios if one != OVERHEAD):
            for round_ in range(rounds):
                order = list(servers.values())
                for server in order[round_ % len(order) :] + order[: round_ % len(order)]:
                    _scenario(run, server, scenario, round_, extra_body(server.name, end_ids))
        if OVERHEAD in scenarios and OURS in servers:
            measure_overhead(run, pythons[OURS], path, rounds, tokenizer)


def _scenario(run: Run, server: Server, name: str, round_: int, extra: dict[str, Any]) -> None:
    async def go() -> dict[str, float]:
        async with new_client(server.url, None, TIMEOUT) as client:
            return await SCENARIOS[name](client, Target(MODEL, extra_body=extra), run.sizes, round_)

    try:
        values = asyncio.run(go())
    except ScenarioError as error:
        run.note(server.name, name, str(error))
        return
    run.add(server.name, round_, values)
    say(f"{server.name}, {name}, round {round_ + 1}: " + ", ".join(f"{k} {v:.4g}" for k, v in values.items()))


def _tokenizer(path: Path) -> Any:
    from pellucid.formats.gguf import GGUFFile
    from pellucid.tokenizer.tokenizer import Tokenizer

    with GGUFFile.open(path) as file:
        return Tokenizer.from_gguf(file.metadata)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    listed = "names with commas between them"
    known = [*SCENARIOS, OVERHEAD]
    parser.add_argument("--model", default="smollm2:135m", help="default smollm2:135m")
    parser.add_argument("--scenarios", type=list_of(known, "scenario"), help=f"{listed}: {', '.join(known)}")
    parser.add_argument("--peers", type=list_of(list(COMMANDS), "server"), help=f"{listed}: {', '.join(COMMANDS)}")
    parser.add_argument(
        "--peer-python",
        action=PeerPython,
        default={},
        metavar="NAME=PATH",
        help="an interpreter that has this peer installed, in place of its own environment; may be repeated",
    )
    parser.add_argument("--rounds", type=count, help="rounds of each scenario; default 3, quick 1")
    parser.add_argument("-t", "--threads", type=count, help="threads of every server; default the usable cores")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, one round")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default benchmark-results/serving-DATE-TIME")
    return parser


if __name__ == "__main__":
    sys.exit(main())
