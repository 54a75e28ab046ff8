"""Lists of values → settings: every combination, and those that must give the same answer once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from pellucid.errors import InvalidParameterError
from pellucid.sampling_params import SamplingParams

GRID_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "seed",
)
"""Fields of `SamplingParams` that may have several values, in the order in which settings vary."""
OF_THE_DRAW = ("top_k", "top_p", "min_p", "seed")
"""Those that a greedy choice does not look at: the most probable token passes every filter, and nothing is drawn."""
MAX_COMBINATIONS = 100_000
"""Before those that are the same are found; more would be a slip of the pen."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the grid."""

    preset: str | None
    params: SamplingParams

    def value(self, name: str) -> Any:
        """Of a grid field, or `preset`; None where it has no say."""
        if name == "preset":
            return self.preset
        if self.params.greedy and name in OF_THE_DRAW:
            return None
        return getattr(self.params, name)


@dataclass(frozen=True, slots=True)
class Grid:
    """All settings of a sweep."""

    settings: tuple[Setting, ...]
    num_combinations: int
    """Before those that are the same were put together."""
    varied: tuple[str, ...]
    """`preset` and grid fields in which settings differ: what tells them apart."""

    def label(self, setting: Setting) -> str:
        """`temperature 0.7 · top_p 0.9`: what tells it from the others."""
        parts = [(name, setting.value(name)) for name in self.varied]
        return " · ".join(
            str(value) if name == "preset" else f"{name} {number_text(value)}"
            for name, value in parts
            if value is not None
        )


def make_grid(
    presets: Sequence[str], values: Mapping[str, Sequence[Any]], fixed: Mapping[str, Any] | None = None
) -> Grid:
    """Every preset (or none) with every combination of values over it; combinations with the same answer once.

    values: lists for `GRID_FIELDS`. fixed: further fields of `SamplingParams`, the same for all.
    Raises `InvalidParameterError` for a value or preset that is not allowed, and for too many combinations.
    """
    lists: list[list[Any]] = [list(dict.fromkeys(presets)) or [None], *(list(values[name]) for name in values)]
    count = math.prod(map(len, lists))
    if count > MAX_COMBINATIONS:
        raise InvalidParameterError(
            "grid", f"the grid has {count:,} combinations of settings, but must have at most {MAX_COMBINATIONS:,}"
        )
    found: dict[tuple[Any, ...], Setting] = {}
    for preset, *chosen in product(*lists):
        given = {**(fixed or {}), **dict(zip(values, chosen, strict=True))}
        params = SamplingParams(**given) if preset is None else SamplingParams.from_preset(preset, **given)
        found.setdefault(_answer_key(params, len(found)), Setting(preset, params))
    settings = tuple(found.values())
    varied = [name for name in ("preset", *GRID_FIELDS) if len({s.value(name) for s in settings} - {None}) > 1]
    return Grid(settings, count, tuple(varied))


def _answer_key(params: SamplingParams, place: int) -> tuple[Any, ...]:
    """Equal where the answers must be."""
    if params.greedy:
        return tuple(0 if n == "temperature" or n in OF_THE_DRAW else getattr(params, n) for n in GRID_FIELDS)
    values = {name: getattr(params, name) for name in GRID_FIELDS} | {"top_k": max(0, params.top_k)}
    unseeded = place if params.seed is None else -1  # each gets a seed of its own
    return (*values.values(), unseeded)


def number_text(value: Any) -> str:
    """A value as it was given; – for none."""
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
