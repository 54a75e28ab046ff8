"""What the layers did to one row: how much each added, what it would have said, where it looked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pellucid.glass.explain.drawing import ACCENT, CHOSEN, SOFT, bar, heading, heat, percent, plain, squeezed
from pellucid.glass.view import TraceView
from pellucid.trace.events import ATTENTION_PROMPT_ROWS
from pellucid.trace.jsonl import number

SHOWN_KEYS = 8
SHOWN_HEADS = 8


def layer_section(view: TraceView, width: int, row: int, layer: int | None) -> Iterator[RenderableType]:
    """The row at position `row`; `layer` for a closer look at one."""
    events = view.layers_at(row)
    after = view.text_at(row + 1) if row + 1 < view.num_tokens else "–"
    note = f"the row of token {row} ({view.text_at(row)}), from which {after} was drawn"
    lead = "What each layer added to the token, what it would have said were it the last, and where it looked."
    yield heading("3", "Layers", note, lead)
    yield Text("Root mean squares, measured", SOFT)
    if not events:
        yield Text("The trace does not tell of this row's layers: it needs level 3, and a row that was computed.", SOFT)
        return
    yield _norms(events, width)
    if any(event["lens"] for event in events):
        yield Text()
        yield Text("Logit lens, recomputed: what each layer would have said, had it been the last", SOFT)
        yield Padding(_lens(view, events, row, width), (0, 0, 0, 2))
    if any(event["attn"] for event in events):
        yield Text()
        yield from _attention(view, events, width)
    else:
        yield Text()
        yield Text(_no_attention(view, row), SOFT)
    if layer is not None:
        yield from _one_layer(view, events, layer)


def _norms(events: list[Any], width: int) -> Group:
    room = max(8, width - 34)
    lines = []
    for label, name in (("residual RMS", "resid_rms"), ("attention adds", "attn_rms"), ("MLP adds", "mlp_rms")):
        values = [number(event[name]) for event in events]
        shown = squeezed(values, room)
        low, high = min(values), max(values)
        line = Text(f"{label:>14} ", SOFT)
        line.append(heat(shown, 0.0, high), "cyan" if name == "resid_rms" else "")
        line.append(f" {low:.3g} to {high:.3g}", SOFT)
        lines.append(line)
    count = len(events)
    ruler = " " * 15 + "0" + f"{count - 1}".rjust(len(squeezed([0.0] * count, room)) - 1) + " layer"
    lines.append(Text(ruler, SOFT))
    bad = [event["layer"] for event in events if event["nonfinite"]]
    if bad:
        lines.append(Text(f"Numbers that are not finite, first in layer {bad[0]}!", "bold red"))
    return Group(*lines)


def _lens(view: TraceView, events: list[Any], row: int, width: int) -> Table:
    """Runs of layers with the same first token, one line each."""
    chosen = view.token_id(row + 1) if row + 1 < view.num_tokens else None
    runs: list[list[Any]] = []
    for event in (event for event in events if event["lens"]):
        if runs and runs[-1][-1]["lens"]["ids"][0] == event["lens"]["ids"][0]:
            runs[-1].append(event)
        else:
            runs.append([event])
    table = plain()
    for name, justify in (("layers", "right"), ("first", "left"), ("p", "right"), ("", "left"), ("then", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    room = max(0, width - 59)
    for run in runs:
        last = run[-1]["lens"]
        first, end = run[0]["layer"], run[-1]["layer"]
        others = Text()
        for token_id, p in zip(last["ids"][1:4], last["p"][1:4], strict=True):
            others.append(view.text_of(token_id), CHOSEN if token_id == chosen else "")
            others.append(f" {percent(p)}  ", SOFT)
        others.truncate(room, overflow="ellipsis")
        is_chosen = last["ids"][0] == chosen
        label = Text(view.text_of(last["ids"][0]), CHOSEN if is_chosen else "")
        label.truncate(15, overflow="ellipsis")
        if is_chosen:
            label.append(" ◀ drawn", CHOSEN)
        table.add_row(
            f"{first}" if first == end else f"{first}–{end}",
            label,
            percent(last["p"][0]),
            Text(bar(last["p"][0], 10), "cyan"),
            others,
        )
    return table


def _attention(view: TraceView, events: list[Any], width: int) -> Iterator[RenderableType]:
    """Which keys were looked at most, on the mean of all heads, and the heads with the sharpest look."""
    heads = [(event["layer"], head) for event in events if event["attn"] for head in event["attn"]]
    mean: dict[int, float] = {}
    for _, head in heads:
        for key, weight in zip(head["idx"], head["w"], strict=True):
            mean[key] = mean.get(key, 0.0) + weight / len(heads)
    yield Text(f"Attention, recomputed: mean weight over {len(heads)} heads; the 16 strongest keys of each count", SOFT)
    table = plain(show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, max_width=24, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    room = max(10, width - 50)
    for key in sorted(mean, key=lambda key: -mean[key])[:SHOWN_KEYS]:
        table.add_row(str(key), view.text_at(key), percent(mean[key]), Text(bar(mean[key], room), "cyan"))
    yield Padding(table, (0, 0, 0, 2))
    sharp = sorted(
        ((w, layer, head["head"], key) for layer, head in heads for key, w in _beyond_first(head)), reverse=True
    )
    if sharp:
        line = Text("The sharpest heads (layer.head → token), position 0 left out: ", SOFT)
        for weight, layer, head, key in sharp[:SHOWN_HEADS]:
            line.append(f"{layer}.{head}", ACCENT)
            line.append(f" → {view.text_at(key)} {percent(weight)}   ")
        yield line


def _beyond_first(head: Any) -> Iterator[tuple[int, float]]:
    """The strongest key that is not the first, which many heads rest on."""
    for key, weight in zip(head["idx"], head["w"], strict=True):
        if key != 0:
            yield key, weight
            return


def _no_attention(view: TraceView, row: int) -> str:
    if row >= view.num_prompt - ATTENTION_PROMPT_ROWS:
        return "The trace has no attention of this row."
    first = view.num_prompt - ATTENTION_PROMPT_ROWS
    return (
        f"No attention of this row: it is kept for the last {ATTENTION_PROMPT_ROWS} rows of a prompt "
        f"(here from {first} on) and for every generated one; --token with one of those shows it."
    )


def _one_layer(view: TraceView, events: list[Any], layer: int) -> Iterator[RenderableType]:
    event = next((event for event in events if event["layer"] == layer), None)
    if event is None:
        yield Text(f"There is no layer {layer} in the trace; it has 0 to {len(events) - 1}.", SOFT)
        return
    yield Text()
    yield Text.assemble((f"Layer {layer}", ACCENT), (f"  largest number {number(event['absmax']):.4g}", SOFT))
    if event["attn"]:
        yield Padding(_heads(view, event["attn"]), (0, 0, 0, 2))
    if event["moe"]:
        chosen = zip(event["moe"]["ids"], event["moe"]["w"], strict=True)
        shown = ", ".join(f"{expert} ({weight:.3f})" for expert, weight in chosen)
        yield Text(f"  experts {shown}; router entropy {event['moe']['router_entropy']:.3f} nats")


def _heads(view: TraceView, heads: list[Any]) -> Table:
    table = plain()
    for name in ("head", "strongest keys, with weights", "others"):
        table.add_column(name, justify="right" if name != "strongest keys, with weights" else "left")
    for head in heads:
        keys = Text(overflow="ellipsis", no_wrap=True)
        for key, weight in list(zip(head["idx"], head["w"], strict=True))[:8]:
            keys.append(f"{view.text_at(key)}")
            keys.append(f"@{key} {percent(weight)}  ", SOFT)
        table.add_row(str(head["head"]), keys, percent(head["other"]))
    return table
