"""What came out, why it stopped, where the time and the memory went."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from pellucid.glass.explain.drawing import CHOSEN, HUES, SOFT, bar, heading, milliseconds, percent, plain, plural, size
from pellucid.glass.pieces import plain_text
from pellucid.glass.view import TraceView
from pellucid.trace.events import Event

_PARTS = {
    "tokenize": "text to tokens",
    "queue": "waiting, scheduling",
    "prefill_own": "the model, this prompt",
    "batch_others": "others in the same steps",
    "sample": "drawing the token",
    "emit": "token to text",
    "unaccounted": "unaccounted",
}
_LETTERS = "ABCDEFGH"


def output_section(view: TraceView, width: int) -> Iterator[RenderableType]:
    """The text, what was held back, the reason of the end."""
    lead = "What went out as text, what was held back until it was whole, and what ended the answer."
    yield heading("5", "Out", plural(len(view.samples) or _num_output(view), "token"), lead)
    yield Padding(Text(plain_text(view.answer), overflow="fold"), (0, 0, 0, 2))
    held = [emit for emit in view.emits if emit["held_bytes"]]
    for emit in held[:4]:
        last = emit["token_range"][1] - 1
        yield Text(
            f"  token {last}: {emit['held_bytes']} bytes held back ({plain_text(emit['held_reason'] or '')})", SOFT
        )
    if len(held) > 4:
        yield Text(f"  … and {len(held) - 4} times more", SOFT)
    yield Text.assemble(("Why it stopped: ", SOFT), (_reason(view), CHOSEN))


def _num_output(view: TraceView) -> int:
    return 0 if view.finish is None else int(view.finish["n_output"])


def _reason(view: TraceView) -> str:
    finish = view.finish
    if finish is None:
        return "it has not, as far as the trace goes"
    if finish["reason"] == "stop" and finish["stop_str"] is not None:
        return f"the stop string {plain_text(finish['stop_str'])!r} appeared"
    if finish["reason"] == "stop" and finish["stop_id"] is not None:
        return f"the end token {finish['stop_id']} ({view.text_of(finish['stop_id'])}) was drawn"
    if finish["reason"] == "stop":
        return "its structure was complete"
    if finish["reason"] == "length":
        limit = view.request["params"]["max_tokens"]["value"]
        return f"max_tokens ({limit}) was reached" if limit else "the end of the context was reached"
    return (
        "it was ended by the caller"
        if finish["reason"] == "abort"
        else f"it failed: {plain_text(finish['error'] or '')}"
    )


def time_section(view: TraceView, width: int) -> Iterator[RenderableType]:
    """TTFT in parts that add up, and the steps after it."""
    finish = view.finish
    if finish is None or finish["ttft_ns"] is None:
        yield heading("6", "Time")
        yield Text("There was no token.", SOFT)
        return
    parts = {name: value for name, value in finish["ttft_parts"].items() if name != "tracing" and value > 0}
    tracing = finish["ttft_parts"]["tracing"]
    ttft = sum(parts.values())
    note = f"first token after {milliseconds(ttft)}, tracing not counted · measured"
    yield heading("6", "Time", note, "Where the time went until the first token, and after it.")
    ordered = sorted(parts.items(), key=lambda one: -one[1])
    yield _stacked([value / ttft for _, value in ordered], max(20, width - 4))
    table = plain(show_header=False)
    for justify in ("left", "left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for place, (name, value) in enumerate(ordered):
        letter = Text(_LETTERS[place], HUES[place % len(HUES)])
        table.add_row(letter, Text(_PARTS.get(name) or plain_text(name)), milliseconds(value), percent(value / ttft))
    table.add_row("", Text("together", SOFT), Text(milliseconds(ttft), SOFT), "")
    if tracing:
        table.add_row("", Text("and tracing itself", SOFT), Text(milliseconds(tracing), SOFT), "")
    yield Padding(table, (0, 0, 0, 2))
    yield from _steps(view)


def _stacked(shares: list[float], room: int) -> Text:
    """A bar of parts, each with its letter."""
    line = Text("  ")
    used = 0
    for place, share in enumerate(shares):
        cells = min(round(share * room), room - used)
        used += cells
        line.append(_LETTERS[place] * cells, f"reverse {HUES[place % len(HUES)]}")
    return line


def _steps(view: TraceView) -> Iterator[RenderableType]:
    if not view.steps:
        return
    prefill = [step for step in view.steps if _own(view, step)["tok0"] < view.num_prompt]
    decode = [step for step in view.steps if step not in prefill]
    rows = ", ".join(str(_own(view, step)["n_tok"]) for step in prefill[:12])
    more = " …" if len(prefill) > 12 else ""
    yield Text(f"  {plural(len(prefill), 'step')} computed the prompt ({rows}{more} tokens)", SOFT)
    if decode:
        traced = [step["ns"]["tracing"] for step in decode]
        took = [step["t1_ns"] - step["t0_ns"] - tracing for step, tracing in zip(decode, traced, strict=True)]
        parts = [name for name in decode[0]["ns"] if name != "tracing"]
        shares = {name: sum(step["ns"][name] for step in decode) / (sum(took) or 1) for name in parts}
        shown = ", ".join(f"{plain_text(name)} {percent(share)}" for name, share in shares.items() if share >= 0.001)
        each, more = milliseconds(statistics.median(took)), milliseconds(statistics.median(traced))
        yield Text(f"  {plural(len(decode), 'step')} drew the rest, {each} each at the median: {shown}", SOFT)
        yield Text(f"  and {more} for tracing itself: at level 3 every layer is looked at", SOFT)
    others = {seq["req"] for step in view.steps for seq in step["seqs"]} - {view.name}
    if others:
        yield Text(f"  {plural(len(others), 'other request')} shared these steps", SOFT)
    if view.specs:
        drafts = sum(len(spec["draft"]) for spec in view.specs)
        accepted = sum(spec["accepted"] for spec in view.specs)
        yield Text(f"  speculation: {accepted} of {drafts} drafts were right", SOFT)


def _own(view: TraceView, step: Event) -> Event:
    return next(seq for seq in step["seqs"] if seq["req"] == view.name)


def memory_section(view: TraceView, width: int) -> Iterator[RenderableType]:
    """KV blocks as they came, and the process's memory."""
    own = [event for event in view.kv if event["req"] == view.name]
    per_token = view.header["model"].get("kv_bytes_per_token") or 0
    block_size = view.header["engine"].get("block_size", 16)
    note = f"{per_token:,} bytes a token" if per_token else ""
    lead = "Keys and values of past tokens lie in blocks, which requests with one beginning share; and what all takes."
    yield heading("7", "KV cache and memory", note, lead)
    taken = [event for event in own if event["op"] in ("hit", "alloc")]
    if taken:
        line = Text("  ")
        for event in taken[: width * 3]:
            line.append("□" if event["op"] == "hit" else "■", "green" if event["op"] == "hit" else "cyan")
        yield line
        hits = sum(event["op"] == "hit" for event in taken)
        kept = sum(event["op"] == "cache" for event in own)
        preempted = sum(event["op"] == "preempt" for event in own)
        yield Text(
            f"  {plural(len(taken), 'block')} of {block_size} tokens: □ {hits} found in the prefix cache, "
            f"■ {len(taken) - hits} computed; {kept} kept for later"
            + (f"; {preempted} given up and computed again" if preempted else ""),
            SOFT,
        )
    evicted = sum(event["op"] == "evict" for event in view.kv)
    if evicted:
        yield Text(f"  {evicted} cached blocks had to go", SOFT)
    if view.mem:
        yield from _memory(view.mem[-1], max(event["kv_used_bytes"] for event in view.mem), width)
    if view.num_dropped:
        yield Text(f"  {view.num_dropped} records were lost: the trace has gaps", "bold yellow")


def _memory(last: Event, used: int, width: int) -> Iterator[RenderableType]:
    rss = last["rss_bytes"]
    known = {
        "weights": last["weights_bytes"],
        "KV cache in use": used,
        "activations": last["activations_bytes"],
    }
    table = plain(show_header=False)
    for justify in ("left", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    total = max(rss, sum(known.values())) or 1
    room = max(10, width - 44)
    for name, value in known.items():
        table.add_row(name, size(value), Text(bar(value / total, room), "cyan"))
    if rss:
        rest = max(0, rss - sum(known.values()))
        table.add_row("the rest", size(rest), Text(bar(rest / total, room), "cyan"))
        table.add_row(Text("the process", SOFT), Text(size(rss), SOFT), "")
    table.add_row(Text("reserved for the KV cache", SOFT), Text(size(last["kv_reserved_bytes"]), SOFT), "")
    yield Padding(table, (1, 0, 0, 2))
