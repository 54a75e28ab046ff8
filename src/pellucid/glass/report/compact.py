"""What a report keeps of a trace: all of it while it is small, and less, visibly, where it is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from pellucid.trace.events import Event

DETAILED_TOKENS = 512
"""Rows of a request that keep layers, and generated tokens that keep their sampling stages."""
ATTENTION_PROMPT_ROWS = 32
"""Rows at a prompt's end that keep their attention; every generated one does."""
ATTENTION_WEIGHTS = 1_300_000
"""Attention weights of all rows: they are most of a file, about 4 bytes each in it."""
OTHER_EVENTS = 40_000
"""Steps and KV events."""
ATTENTION_LEVELS = 255


class Compaction:
    """Events → fewer, shorter ones. `cut` is the event that tells what is missing; None where nothing is."""

    def __init__(self) -> None:
        self._dropped: Counter[str] = Counter()
        self._kept: Counter[str] = Counter()
        self._prompt_lengths: dict[str, int] = {}
        self._num_samples: Counter[str] = Counter()
        self._num_others = 0
        self._num_weights = 0

    def events(self, events: Iterable[Event]) -> Iterator[Event]:
        """What is kept, in order."""
        for event in events:
            kept = self._kept_of(event)
            if kept is not None:
                yield kept

    @property
    def cut(self) -> Event | None:
        """Counts of what was left out, by what it is."""
        dropped = {name: count for name, count in self._dropped.items() if count}
        return {"type": "cut", "dropped": dropped, "kept": {"layer": DETAILED_TOKENS}} if dropped else None

    def _kept_of(self, event: Event) -> Event | None:
        kind = event["type"]
        if kind == "request":
            self._prompt_lengths[event["req"]] = len(event["tokens"])
        if kind == "layer":
            return self._layer(event)
        if kind == "sample":
            return self._sample(event)
        if kind in ("step", "kv"):
            self._num_others += 1
            if self._num_others > OTHER_EVENTS:
                self._dropped["event"] += 1
                return None
        return event

    def _layer(self, event: Event) -> Event | None:
        """Of a prompt that is too long its end is kept, because the answer was made from there."""
        prompt = self._prompt_lengths.get(event["req"], 0)
        first = max(0, prompt - DETAILED_TOKENS // 2)
        last = first + DETAILED_TOKENS
        if not first <= event["i"] < last:
            self._dropped["layer"] += 1
            return None
        attention = event.get("attn")
        is_full = self._num_weights > ATTENTION_WEIGHTS
        if attention and (is_full or event["i"] < prompt - ATTENTION_PROMPT_ROWS):
            self._dropped["attention"] += event["layer"] == 0
            attention = None
        self._num_weights += sum(len(head["idx"]) for head in attention or ())
        return {**_rounded(event), "attn": [_eight_bit(head) for head in attention] if attention else None}

    def _sample(self, event: Event) -> Event:
        key = f"{event['req']}#{event.get('index', 0)}"
        self._num_samples[key] += 1
        if self._num_samples[key] <= DETAILED_TOKENS:
            return event
        self._dropped["sample"] += 1
        return {**event, "stages": []}


def _rounded(event: Event) -> Event:
    found = {key: _nine_digits(value) for key, value in event.items() if key not in ("attn", "lens")}
    lens = event.get("lens")
    if lens:
        entropy = _five_digits(lens["entropy"])
        lens = {"ids": lens["ids"], "p": [_five_digits(p) for p in lens["p"]], "entropy": entropy}
    return {**found, "lens": lens}


def _nine_digits(value: Any) -> Any:
    """Enough for a float32, so that the page finds the same first difference of two traces as the terminal."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _five_digits(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _eight_bit(head: dict[str, Any]) -> dict[str, Any]:
    """Weights as multiples of 1/255, which differ from what was recorded by at most 0.002."""
    return {
        "head": head["head"],
        "idx": head["idx"],
        "w": [_level(weight) for weight in head["w"]],
        "other": _level(head["other"]),
    }


def _level(weight: Any) -> Any:
    return round(round(weight * ATTENTION_LEVELS) / ATTENTION_LEVELS, 4) if isinstance(weight, (int, float)) else weight
