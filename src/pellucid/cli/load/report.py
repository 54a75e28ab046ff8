"""Results → figures. Times in milliseconds, rates per second."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pellucid.cli.load.client import Result
from pellucid.errors import InvalidParameterError, shown

PERCENTILES = (50, 90, 95, 99)
TIMES = ("ttft", "tpot", "itl", "e2e")
SLO_TIMES = ("ttft", "tpot", "e2e")


def parse_slo(texts: Sequence[str]) -> dict[str, float]:
    """`ttft:500 tpot:50` → milliseconds by name. Raises `InvalidParameterError`."""
    found: dict[str, float] = {}
    for item in " ".join(texts).replace(",", " ").split():
        name, _, number = item.partition(":")
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if name not in SLO_TIMES or not 0 < limit < math.inf or name in found:
            raise InvalidParameterError(
                "slo",
                f"slo has {shown(item)}, but must be NAME:MILLISECONDS with each name of {', '.join(SLO_TIMES)} once",
            )
        found[name] = limit
    return found


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to."""

    num_requests: int
    num_good: int
    seconds: float
    times: dict[str, dict[str, float]]
    """By ttft, tpot, itl and e2e: mean and percentiles in milliseconds, where there is any."""
    rates: dict[str, float]
    failures: dict[str, int]
    details: dict[str, str] = field(default_factory=dict)
    """One sentence of a server for each kind of failure."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    counts_pieces: bool = False
    """Some answers came without usage, and their pieces were counted as tokens."""
    slo: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Flat: `ttft_p99_ms`, `output_tokens_per_second` and so on."""
        flat: dict[str, Any] = {"requests": self.num_requests, "good": self.num_good, "seconds": self.seconds}
        for name, spread in self.times.items():
            flat |= {f"{name}_{key}_ms": value for key, value in spread.items()}
        flat |= self.rates
        flat |= {name: getattr(self, f"num_{name}") for name in ("prompt_tokens", "cached_tokens", "output_tokens")}
        return {**flat, "failures": self.failures, "slo_ms": dict(self.slo), "counts_pieces": self.counts_pieces}


def report(results: Sequence[Result], seconds: float, slo: Mapping[str, float] | None = None) -> Report:
    """Times and rates are of the requests that went well; goodput is how many of them a second met every target."""
    good = [result for result in results if result.failure is None]
    failed = [result for result in results if result.failure is not None]
    values: dict[str, list[float]] = {
        "ttft": [t for one in good if (t := one.ttft) is not None],
        "tpot": [t for one in good if (t := one.tpot) is not None],
        "itl": [t for one in good for t in one.itl],
        "e2e": [one.e2e for one in good],
    }
    num_output, num_prompt = sum(r.num_output_tokens for r in good), sum(r.num_prompt_tokens or 0 for r in good)
    rates = {
        "requests_per_second": len(good) / seconds,
        "output_tokens_per_second": num_output / seconds,
        "total_tokens_per_second": (num_output + num_prompt) / seconds,
    }
    if slo:
        rates["goodput_requests_per_second"] = sum(_meets(one, slo) for one in good) / seconds
    return Report(
        num_requests=len(results),
        num_good=len(good),
        seconds=seconds,
        times={name: spread(found) for name, found in values.items() if found},
        rates=rates,
        failures=dict(Counter(str(one.failure) for one in failed).most_common()),
        details={str(one.failure): one.detail for one in failed},
        num_prompt_tokens=num_prompt,
        num_cached_tokens=sum(one.num_cached_tokens or 0 for one in good),
        num_output_tokens=num_output,
        counts_pieces=any(not one.has_usage for one in good),
        slo=slo or {},
    )


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles, in milliseconds."""
    import numpy as np

    cuts = np.percentile(seconds, PERCENTILES) * 1000
    return {
        "mean": float(np.mean(seconds)) * 1000,
        **{f"p{p}": float(cut) for p, cut in zip(PERCENTILES, cuts, strict=True)},
        "max": max(seconds) * 1000,
    }


def _meets(result: Result, slo: Mapping[str, float]) -> bool:
    """A time that an answer does not have (TPOT of one token) misses no target."""
    reached = {name: getattr(result, name) for name in slo}
    return all(value is None or value * 1000 <= slo[name] for name, value in reached.items())
