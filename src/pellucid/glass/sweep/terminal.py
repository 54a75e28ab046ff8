"""A sweep in a terminal: numbers in a table, texts side by side, what they share with the first one dimmed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import ROUNDED
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pellucid.glass.explain.drawing import ACCENT, SOFT, heading, plain, plural
from pellucid.glass.pieces import common_prefix, plain_text
from pellucid.glass.sweep.grid import Setting, number_text
from pellucid.glass.sweep.results import Cell, Sweep

TITLES = {
    "num_tokens": "tokens",
    "rep_4": "rep-4",
    "longest_repeat": "repeat",
    "distinct_1": "dist-1",
    "distinct_2": "dist-2",
    "mean_logprob": "logprob",
    "entropy": "entropy",
    "seconds": "time",
}
BY_WEIGHT = ("distinct_2", "rep_4", "mean_logprob", "num_tokens", "entropy", "longest_repeat", "seconds", "distinct_1")
"""Which are shown where there is not room for all."""
SHORT_NAMES = {
    "temperature": "temp",
    "repetition_penalty": "rep.pen",
    "frequency_penalty": "freq.pen",
    "presence_penalty": "pres.pen",
}
CARD = 44
"""Cells of a text beside others, at least, where the terminal has them."""
EXPLAINED = (
    "rep-4: repeated 4-grams (0 none, 1 all) · repeat: tokens of the longest run that stands twice · dist-n: different "
    "n-grams / n-grams · logprob: mean, nats, under the model's raw distribution · entropy: of that distribution, mean"
)


def render(sweep: Sweep, width: int) -> Iterator[RenderableType]:
    """Everything, for a terminal of `width` cells."""
    yield _title(sweep)
    for place in range(len(sweep.prompts)):
        cells = sweep.of_prompt(place)
        if not cells:
            continue
        prompt = sweep.prompts[place]
        note = f"{plural(prompt.num_tokens, 'token')}"
        yield heading(str(place + 1), _one_line(prompt.text, width - 24), note)
        yield Padding(_table(sweep, cells, width), (0, 0, 0, 1))
        yield Padding(_texts(sweep, cells, width), (1, 0, 0, 0))
    groups = list(sweep.groups())
    if any(group.num_cells > 1 for group in groups):
        yield heading("∑", "By setting", "means over prompts and seeds")
        yield Padding(_groups(sweep, width), (0, 0, 0, 1))
    yield Padding(Text(EXPLAINED, SOFT), (1, 0, 0, 0))
    if sweep.interrupted:
        yield Text("Interrupted: texts that were not finished end where they were.", "bold yellow")


def _title(sweep: Sweep) -> Text:
    rate = sweep.num_output_tokens / sweep.seconds if sweep.seconds > 0 else 0.0
    facts = [
        plural(len(sweep.prompts), "prompt"),
        plural(len(sweep.grid.settings), "setting"),
        f"{sweep.num_output_tokens:,} tokens in {sweep.seconds:.1f} s",
        f"{rate:,.0f} tok/s",
    ]
    return Text.assemble((plain_text(sweep.model), ACCENT), ("  " + " · ".join(facts), SOFT))


def _table(sweep: Sweep, cells: Sequence[Cell], width: int) -> Table:
    table = plain()
    varied = sweep.grid.varied
    table.add_column("#", justify="right", style=ACCENT, no_wrap=True)
    for name in varied:
        table.add_column(SHORT_NAMES.get(name, name), justify="right", overflow="fold")
    for name in _shown_measures(width, len(varied)):
        table.add_column(TITLES[name], justify="right", overflow="fold")
    table.add_column("stop", overflow="fold")
    for cell in cells:
        setting = sweep.grid.settings[cell.setting]
        table.add_row(
            str(cell.setting + 1),
            *(_value(setting, name, cell) for name in varied),
            *(measure_text(name, getattr(cell, name)) for name in _shown_measures(width, len(varied))),
            _stop(cell),
        )
    return table


def _shown_measures(width: int, num_varied: int) -> list[str]:
    """Those for which there is room; JSON and the page have all."""
    room = (width - 12 - 8 * num_varied) // 8
    kept = set(BY_WEIGHT[: max(3, room)])
    return [name for name in TITLES if name in kept]


def _texts(sweep: Sweep, cells: Sequence[Cell], width: int) -> RenderableType:
    per_row = max(1, min(len(cells), width // CARD))
    card = width // per_row - (1 if per_row > 1 else 0)
    cards = [_card(sweep, cell, cells[0], card) for cell in cells]
    return Columns(cards, width=card, padding=(0, 1, 0, 0)) if per_row > 1 else Group(*cards)


def _card(sweep: Sweep, cell: Cell, pinned: Cell, width: int) -> Panel:
    label = sweep.grid.label(sweep.grid.settings[cell.setting])
    title = Text.assemble((str(cell.setting + 1), ACCENT), (f"  {plain_text(label)}" if label else "", SOFT))
    title.truncate(width - 6, overflow="ellipsis")
    return Panel(_text(cell, pinned), title=title, title_align="left", width=width, box=ROUNDED, border_style=SOFT)


def _text(cell: Cell, pinned: Cell) -> Text:
    """The answer; the beginning that it has in common with the pinned one is dimmed."""
    text = plain_text(cell.text.rstrip("\n"))
    if cell.error is not None:
        return Text(plain_text(cell.error), "bold red")
    if cell is pinned:
        return Text(text)
    same = common_prefix(pinned.text_ids, cell.text_ids)
    shared = plain_text(b"".join(cell.pieces[:same]).decode("utf-8", "ignore"))
    at = len(shared) if text.startswith(shared) else 0
    return Text.assemble((text[:at], SOFT), text[at:])


def _groups(sweep: Sweep, width: int) -> Table:
    table = plain()
    groups = list(sweep.groups())
    names = [name for name in sweep.grid.varied if name != "seed"]
    measures = _shown_measures(width, len(names) + 2)
    for name in names:
        table.add_column(SHORT_NAMES.get(name, name), justify="right")
    table.add_column("answers", justify="right")
    for name in measures:
        table.add_column(TITLES[name], justify="right")
    has_together = any(group.distinct_2_together is not None for group in groups)
    if has_together:
        table.add_column("dist-2 of all", justify="right")
    table.add_column("stopped", justify="right")
    for group in groups:
        table.add_row(
            *(_plain_value(group.values[name]) for name in names),
            str(group.num_cells),
            *(measure_text(name, group.means[name]) for name in measures),
            *([measure_text("distinct_2", group.distinct_2_together)] if has_together else []),
            f"{100 * group.stopped:.0f} %",
        )
    return table


def measure_text(name: str, value: float | None) -> str:
    """A measure as people read it."""
    if value is None:
        return "–"
    if name in ("num_tokens", "longest_repeat"):
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2f} s" if name == "seconds" else f"{value:.2f}"


def _value(setting: Setting, name: str, cell: Cell) -> str:
    """Where a request without a seed was given one, that one."""
    value = setting.value(name)
    return str(cell.seed) if name == "seed" and value is None and not setting.params.greedy else _plain_value(value)


def _plain_value(value: Any) -> str:
    return number_text(value)


def _stop(cell: Cell) -> str:
    if cell.stop_reason is None:
        return str(cell.finish_reason)
    return f"{cell.finish_reason} {plain_text(str(cell.stop_reason))}"


def _one_line(text: str, width: int) -> str:
    line = " ".join(plain_text(text).split())
    return line if len(line) <= max(8, width) else line[: max(8, width) - 1] + "…"
