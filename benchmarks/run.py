"""Pellucid and its peers on this machine: limits, rounds in turn, tables, a chart; the last line is JSON.

    python -m benchmarks.run                        all scenarios, both models, the peers that are installed
    python -m benchmarks.run --quick                the same questions with fewer tokens and rounds, in a few minutes
    python -m benchmarks.run --setup PEER           make that peer's environment
    python -m benchmarks.run --tables results.json  make tables and chart again from an earlier run

Progress goes to stderr, tables to stdout, and results.json, tables.md and ratios.svg to the folder of --out. What a
figure means stands in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import charts, machine, processor, tables
from benchmarks.environments import find_all, set_up
from benchmarks.measuring import Bench, Settings
from benchmarks.peers.registry import OURS, PEERS
from benchmarks.results import Results
from benchmarks.scenarios import SCENARIOS, Scenario

DEFAULT_OUT = Path("benchmark-results")
MODELS = ("smollm2:135m", "gemma3:270m")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the arguments and do what they ask; gives the exit code."""
    options = _parser().parse_args(arguments)
    if options.setup:
        return max(set_up(PEERS[name]) for name in options.setup)
    if options.tables:
        results = Results.load_file(options.tables)
        write(results, options.out or options.tables.parent)
        return 0
    out = options.out or DEFAULT_OUT / time.strftime("%Y-%m-%d-%H%M%S")
    out.mkdir(parents=True, exist_ok=True)
    for ending in (signal.SIGINT, signal.SIGTERM):  # a shell starts background work with the first one ignored
        signal.signal(ending, signal.default_int_handler)
    if options.out is None:
        (DEFAULT_OUT / ".gitignore").write_text("*\n", encoding="ascii")
    results = measure(options, out)
    write(results, out)
    if not any(one.engine == OURS for one in results.measurements):
        print("pellucid itself could not be measured; the tables say why", file=sys.stderr)
        return 1
    return 0


def write(results: Results, out: Path) -> None:
    """Tables to stdout and the folder, the chart to the folder, the JSON line last."""
    out.mkdir(parents=True, exist_ok=True)
    text = tables.markdown(results)
    (out / "tables.md").write_text(text, encoding="utf-8")
    (out / "ratios.svg").write_text(charts.svg(results), encoding="utf-8")
    results.save(out / "results.json")
    print(text)
    print(json.dumps({**results.summary(), "results": str(out / "results.json")}))


def measure(options: argparse.Namespace, out: Path) -> Results:
    """Everything that was asked for. Ctrl-C ends it early; what was measured so far is kept."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from pellucid.model_store.store import resolve

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    scenarios = chosen_scenarios(options.scenarios, options.quick)
    pythons, missing = find_all(chosen_peers(options.peers, options.quick), options.peer_python)
    threads = options.threads or processor.usable_cores()
    quick = options.quick
    settings = Settings(
        threads=threads,
        rounds=options.rounds or (2 if quick else 5),
        budget=options.budget or (4.0 if quick else 180.0),
        fidelity_tokens=256 if quick else 1 << 20,
        log_folder=out,
    )
    paths = {name: Path(resolve(name)) for name in options.models}
    results = Results(
        machine=machine.describe(),
        limits={},
        settings={
            "threads": threads,
            "rounds": settings.rounds,
            "quick": quick,
            "scenarios": {s.name: _sizes(s) for s in scenarios},
            "started": time.strftime("%Y-%m-%d %H:%M"),
        },
    )
    begin = time.perf_counter()
    results.load["load_average_before"] = machine.load_average()
    for name, why in missing.items():
        results.not_measured.append({"engine": name, "model": "", "scenario": "", "why": why})
        console.print(f"{name}: {why}", markup=False)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console) as progress:

        def say(text: str) -> None:
            console.print(text, markup=False)

        def advance(text: str) -> None:
            progress.update(task, advance=1, description=text)

        bench = Bench(settings, pythons, results, say, advance)
        task = progress.add_task("limits of this machine", total=len(paths) * bench.num_measurements(scenarios))
        try:
            results.limits = machine.measure_limits(threads, 0.8 if quick else 3.0, say)
            for name, path in paths.items():
                bench.measure(name, path, scenarios)
            results.limits["bandwidth, 2 MiB pages, afterwards"] = {
                str(threads): machine.bandwidth_again(threads, 0.8 if quick else 3.0)
            }
        except KeyboardInterrupt:
            say("stopped: the tables hold what was measured so far")
    results.load["load_average_after"] = machine.load_average()
    results.settings["minutes"] = round((time.perf_counter() - begin) / 60, 1)
    return results


def chosen_scenarios(names: Sequence[str] | None, quick: bool) -> list[Scenario]:
    """The named scenarios, else all of them that the kind of run has; a quick run has smaller ones."""
    chosen = (
        [SCENARIOS[name] for name in names] if names else [s for s in SCENARIOS.values() if s.in_quick or not quick]
    )
    return [scenario.shrunk() if quick else scenario for scenario in chosen]


def chosen_peers(names: Sequence[str] | None, quick: bool) -> list[str]:
    """The named engines and pellucid itself, else all but, in a quick run, those that start slowly."""
    if names is None:
        return [peer.name for peer in PEERS.values() if not (quick and peer.slow_start)]
    return list(dict.fromkeys([OURS, *names]))


def _sizes(scenario: Scenario) -> dict[str, int]:
    fields = ("streams", "prompt_tokens", "output_tokens", "turns", "prefix_tokens", "repeats")
    return {name: getattr(scenario, name) for name in fields}


def list_of(known: Sequence[str] | None, what: str) -> Any:
    def convert(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in names if known is not None and name not in known]
        if unknown or not names:
            raise argparse.ArgumentTypeError(f"no {what} {', '.join(unknown)!r}: choose from {', '.join(known or ())}")
        return names

    return convert


def count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


class PeerPython(argparse.Action):
    """Collects NAME=PATH pairs into a dictionary."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        name, equals, path = str(values).partition("=")
        if name not in PEERS or not equals:
            parser.error(f"--peer-python {values}: give NAME=PATH with a NAME of {', '.join(PEERS)}")
        getattr(namespace, self.dest)[name] = path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    listed = "names with commas between them"
    parser.add_argument(
        "--models", type=list_of(None, "model"), default=list(MODELS), help=f"{listed}; default {','.join(MODELS)}"
    )
    parser.add_argument(
        "--scenarios", type=list_of(list(SCENARIOS), "scenario"), help=f"{listed}: {', '.join(SCENARIOS)}"
    )
    parser.add_argument("--peers", type=list_of(list(PEERS), "peer"), help=f"{listed}: {', '.join(PEERS)}")
    parser.add_argument(
        "--peer-python",
        action=PeerPython,
        default={},
        metavar="NAME=PATH",
        help="an interpreter that has this peer installed, in place of its own environment; may be repeated",
    )
    parser.add_argument("--rounds", type=count, help="rounds of each scenario; default 5, quick 2")
    parser.add_argument(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="time of one engine in one scenario after which further rounds are left out; default 180, quick 4",
    )
    parser.add_argument("-t", "--threads", type=count, help="threads of every engine; default the usable cores")
    parser.add_argument("--quick", action="store_true", help="smaller scenarios, fewer rounds, no slow starters")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default benchmark-results/DATE-TIME")
    parser.add_argument(
        "--setup", type=list_of(list(PEERS), "peer"), metavar="PEER", help="make a peer's environment, and stop"
    )
    parser.add_argument(
        "--tables", type=Path, metavar="RESULTS.json", help="make tables and chart again, measure nothing"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
