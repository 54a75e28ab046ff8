"""From logits to each token: the stages, who was left, the draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pellucid.glass.explain.drawing import ACCENT, CHOSEN, OUT, SOFT, bar, heading, percent, plain
from pellucid.glass.pieces import plain_text
from pellucid.glass.view import TraceView
from pellucid.trace.events import Event
from pellucid.trace.jsonl import number

ALTERNATIVES = 4
SHOWN_TOKENS = 48


def sampling_section(view: TraceView, width: int, token: int | None, every: bool = False) -> Iterator[RenderableType]:
    """A line for each token drawn, and the waterfall of one (`token`, or the least sure), or of every one."""
    settings = _settings(view)
    lead = "From scores to one token: how probable each was, how many the filters left, and what else might have come."
    yield heading("4", "Sampling", f"{settings} · measured", lead)
    if not view.samples:
        yield Text("The trace does not tell how tokens were drawn: it needs level 2.", SOFT)
        return
    yield Padding(_overview(view, width), (0, 0, 0, 2))
    if every:
        for sample in view.samples:
            yield from _drawn(view, sample, width, "")
        return
    why = "" if token is not None else " (the least certain one; --token N for another, --waterfalls for all)"
    yield from _drawn(view, _looked_at(view, token), width, why)


def _drawn(view: TraceView, chosen: Event, width: int, why: str) -> Iterator[RenderableType]:
    """How one token was drawn: its stages, its candidates, the random number."""
    yield Text()
    yield Text.assemble(
        ("How token ", SOFT), (f"{chosen['i']} {view.text_of(chosen['id'])}", ACCENT), (f" was drawn{why}", SOFT)
    )
    yield Padding(_waterfall(view, chosen), (0, 0, 0, 2))
    yield from _candidates(view, chosen, width)
    yield _draw(chosen)


def _settings(view: TraceView) -> str:
    given = {
        name: one["value"]
        for name, one in view.request["params"].items()
        if one["source"] == "request" and name not in ("n", "seed", "max_tokens")
    }
    shown = [f"{name} {value}" for name, value in given.items() if isinstance(value, (int, float, str))]
    seed = view.request["params"]["seed"]["value"]
    return plain_text(", ".join([*(shown or ["all parameters at their defaults"]), f"seed {seed}"]))


def _overview(view: TraceView, width: int) -> Table:
    table = plain()
    for name, justify in (
        ("pos", "right"), ("token", "left"), ("p raw", "right"), ("rank", "right"), ("kept", "right"),
        ("p drawn", "right"), ("", "left"), ("instead of", "left"),
    ):  # fmt: skip
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    shown = view.samples[:SHOWN_TOKENS]
    names = [view.text_of(sample["id"]) for sample in shown]
    longest = min(16, max(map(cell_len, names)))
    room = max(0, width - longest - 54)
    for sample, name in zip(shown, names, strict=True):
        raw, last = sample["stages"][0], sample["stages"][-1]
        own = raw["chosen"]
        others = Text()
        for token_id, _, p in [one for one in raw["top"] if one[0] != sample["id"]][:ALTERNATIVES]:
            others.append(view.text_of(token_id))
            others.append(f" {percent(p)}  ", SOFT)
        others.truncate(room, overflow="ellipsis")
        label = Text(name, CHOSEN)
        label.truncate(longest, overflow="ellipsis")
        final = last["chosen"]["p"] if last["chosen"] else 0.0
        table.add_row(
            str(sample["i"]),
            label,
            percent(own["p"]) if own else "–",
            str(own["rank"]) if own else "–",
            f"{last['alive']:,}",
            percent(final),
            Text(bar(final, 8), "green"),
            others,
        )
    if len(view.samples) > SHOWN_TOKENS:
        table.add_row("…", Text(f"{len(view.samples) - SHOWN_TOKENS} more", SOFT))
    return table


def _looked_at(view: TraceView, token: int | None) -> Event:
    if token is not None:
        for sample in view.samples:
            if sample["i"] == token:
                return sample
    return min(view.samples, key=lambda sample: number(sample["logprob_raw"]))


def _waterfall(view: TraceView, sample: Event) -> Table:
    table = plain()
    for name, justify in (
        ("stage", "left"), ("", "left"), ("kept", "right"), ("removed", "right"), ("entropy, nats", "right"),
        ("its p", "right"), ("its rank", "right"),
    ):  # fmt: skip
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for stage in sample["stages"]:
        own = stage["chosen"]
        table.add_row(
            Text("raw logits" if stage["name"] == "raw" else plain_text(stage["name"]), ACCENT),
            Text(plain_text(_parameter(stage["param"]))),
            f"{stage['alive']:,}",
            percent(stage["mass_removed"]) if stage["mass_removed"] else "–",
            f"{stage['entropy']:.2f}",
            percent(own["p"]) if own else Text("out", OUT),
            str(own["rank"]) if own else "–",
        )
    return table


def _parameter(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    text = value if isinstance(value, (str, int)) else f"{len(value)} entries"
    return str(text)


def _candidates(view: TraceView, sample: Event, width: int) -> Iterator[RenderableType]:
    """The first raw candidates: before, after, and which stage took them out."""
    stages = sample["stages"]
    last = {token_id: p for token_id, _, p in stages[-1]["top"]}
    table = plain()
    room = max(8, (width - 58) // 2)
    for name, justify in (
        ("", "right"),
        ("candidate", "left"),
        ("raw p", "right"),
        ("", "left"),
        ("drawn from", "right"),
        ("", "left"),
    ):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for rank, (token_id, _, p) in enumerate(stages[0]["top"], start=1):
        is_chosen = token_id == sample["id"]
        gone = _gone_at(stages, token_id)
        label = Text(view.text_of(token_id), CHOSEN if is_chosen else OUT if gone else "", overflow="ellipsis")
        if is_chosen:
            label.append(" ◀", CHOSEN)
        after = Text(f"out: {gone}", SOFT) if gone else Text(percent(last[token_id]) if token_id in last else "–")
        table.add_row(
            str(rank), label, percent(p), Text(bar(p, room), "cyan"), after,
            Text(bar(last.get(token_id, 0.0), room), "green"),
        )  # fmt: skip
    yield Padding(table, (1, 0, 0, 2))


def _gone_at(stages: list[Any], token_id: int) -> str | None:
    """The stage that took a token out; None where it is in to the end, or the trace cannot tell."""
    for stage in stages[1:]:
        listed = [one for one, _, _ in stage["top"]]
        if token_id not in listed and (len(listed) == stage["alive"] or len(listed) < 10):
            return plain_text(stage["name"])
    return None


def _draw(sample: Event) -> Text:
    rng = sample["rng"]
    if rng["u"] is None:
        return Text(f"  Greedy: the most probable token; the next one is {sample['top2_gap']:.3f} logits behind.", SOFT)
    reached = 0.0
    for token_id, _, p in sample["stages"][-1]["top"]:
        if token_id == sample["id"]:
            return Text(
                f"  The draw u = {rng['u']:.6f} falls into {reached:.6f} … {reached + p:.6f}, which is this token's "
                f"part of the line from 0 to 1 (Philox, seed {rng['seed']}, counter {rng['counter'][0]}).",
                SOFT,
            )
        reached += p
    return Text(
        f"  The draw u = {rng['u']:.6f} falls behind the first {len(sample['stages'][-1]['top'])} candidates.", SOFT
    )
