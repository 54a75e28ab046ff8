"""Measurements → medians, spreads and ratios; and their JSON file, from which tables can be made again."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.registry import FAST, OURS
from benchmarks.scenarios import FIGURES
from pellucid.config import PRECISION_KL

MACHINE, BANDWIDTH = "machine", "bandwidth"
"""Engine and figure of the read bandwidth (GB/s, 2 MiB pages, all threads) measured among the rounds of `decode-1`."""

FAR_KL = 0.1
"""Nats; rounding activations to 8 bits costs about 3e-3, so an engine above this computes something else."""


def price(engine: str, measured: float | None = None) -> str:
    """What stands behind an engine's name in a table: the mean KL of fast prompts, of the same run if it has one."""
    if engine != FAST:
        return ""
    known = f"{PRECISION_KL['fast']} on the default model"
    return f" (mean KL {known if measured is None else f'{measured:.1e}'})"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure of one engine in one round."""

    model: str
    engine: str
    figure: str
    round: int
    value: float


@dataclass(slots=True)
class Results:
    """Everything one run found out."""

    machine: dict[str, Any]
    limits: dict[str, Any]
    settings: dict[str, Any]
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Alias → file name, bytes read for one token, operations for one."""
    engines: dict[str, dict[str, str]] = field(default_factory=dict)
    """Engine → versions and settings that it reported."""
    measurements: list[Measurement] = field(default_factory=list)
    not_measured: list[dict[str, str]] = field(default_factory=list)
    """{engine, model, scenario, why}; model and scenario are empty where an engine is missing altogether."""
    load: dict[str, Any] = field(default_factory=dict)
    """Load average and bandwidth before and after: how quiet the machine was."""
    first_tokens: list[dict[str, Any]] = field(default_factory=list)
    """{model, engine, same, of}: how often the first token of the answers was ours."""

    def values(self, model: str, engine: str, figure: str) -> dict[int, float]:
        """Round → value."""
        return {m.round: m.value for m in self.measurements if (m.model, m.engine, m.figure) == (model, engine, figure)}

    def median(self, model: str, engine: str, figure: str) -> float | None:
        """The median over rounds, or None where nothing was measured."""
        values = self.values(model, engine, figure)
        return statistics.median(values.values()) if values else None

    def spread(self, model: str, engine: str, figure: str) -> float | None:
        """Half the distance from the lowest to the highest round, as a share of the median; None for one round."""
        values = list(self.values(model, engine, figure).values())
        if len(values) < 2 or not statistics.median(values):
            return None
        return (max(values) - min(values)) / 2 / statistics.median(values)

    def ratio(self, model: str, engine: str, figure: str) -> float | None:
        """How many times as good pellucid is: the median of the ratios of each round that both have.

        Above 1, pellucid is ahead: faster, smaller or closer. None where either has no round.
        """
        ours, theirs = self.values(model, OURS, figure), self.values(model, engine, figure)
        shared = [r for r in ours if r in theirs and ours[r] and theirs[r]]
        if not shared:
            return None
        if FIGURES[figure].higher_is_better:
            return statistics.median(ours[r] / theirs[r] for r in shared)
        return statistics.median(theirs[r] / ours[r] for r in shared)

    def is_far(self, model: str, engine: str) -> bool:
        """Whether the engine's answers are not those of the model."""
        return (self.median(model, engine, "mean-kl") or 0.0) > FAR_KL

    def best_peer(self, model: str, figure: str) -> str | None:
        """The peer that is ahead of all others, of those that compute the model."""
        peers = [
            name
            for name in self.engines
            if not name.startswith(OURS)
            and not self.is_far(model, name)
            and self.median(model, name, figure) is not None
        ]
        if not peers:
            return None
        sign = 1 if FIGURES[figure].higher_is_better else -1
        return max(peers, key=lambda engine: sign * (self.median(model, engine, figure) or 0.0))

    def figures(self, model: str) -> list[str]:
        """Figures that any engine has, in the order of the scenarios."""
        present = {m.figure for m in self.measurements if m.model == model}
        return [name for name in FIGURES if name in present]

    def summary(self) -> dict[str, Any]:
        """The last line of a run: medians and ratios, model by model."""
        return {
            "benchmark": "run",
            "cpu": self.machine.get("cpu"),
            "threads": self.settings.get("threads"),
            "precision_mean_kl": PRECISION_KL,
            "models": {
                model: {
                    figure: {
                        engine: {"median": _rounded(median), "ratio": _rounded(self.ratio(model, engine, figure))}
                        for engine in self.engines
                        if (median := self.median(model, engine, figure)) is not None
                    }
                    for figure in self.figures(model)
                }
                for model in self.models
            },
        }

    def save(self, path: Path) -> None:
        """Write everything as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load_file(cls, path: Path) -> Results:
        """Read what `save` wrote."""
        stored = json.loads(path.read_text(encoding="utf-8"))
        stored["measurements"] = [Measurement(**one) for one in stored["measurements"]]
        return cls(**stored)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
