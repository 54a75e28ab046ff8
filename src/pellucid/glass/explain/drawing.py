"""What the sections are drawn with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rich.console import Group
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

BLOCKS = "▁▂▃▄▅▆▇█"
BAR_PARTS = " ▏▎▍▌▋▊▉"
ACCENT, SOFT, CHOSEN, OUT = "bold cyan", "dim", "bold green", "strike dim"
HUES = ("cyan", "magenta", "yellow", "green", "blue", "red", "bright_black", "white")
"""For the parts of a bar; each part has a letter besides."""


def heading(number: str, title: str, note: str = "", lead: str = "") -> Padding:
    """A section begins; `lead` says in a sentence what it shows."""
    text = Text.assemble((f"{number} ", SOFT), (title, ACCENT))
    if note:
        text.append(f"  {note}", SOFT)
    rule = Rule(text, align="left", style=SOFT)
    return Padding(Group(rule, Text(lead, "italic dim")) if lead else rule, (1, 0, 0, 0))


def plain(**columns: Any) -> Table:
    """A table without lines."""
    return Table(box=None, padding=(0, 1), show_edge=False, header_style=SOFT, pad_edge=False, **columns)


def bar(share: float, width: int) -> str:
    """A bar of eighths, `width` cells for 1."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (BAR_PARTS[rest] if rest else "")).ljust(width)


def heat(values: Sequence[float], low: float, high: float) -> str:
    """One block for each value, from low to high."""
    span = high - low
    steps = len(BLOCKS) - 1
    return "".join(BLOCKS[round(max(0.0, min(1.0, (v - low) / span if span else 0.0)) * steps)] for v in values)


def squeezed(values: Sequence[float], width: int) -> list[float]:
    """Values for at most `width` cells: each the largest of its neighbours', or up to four times itself."""
    if len(values) <= width:
        times = min(4, width // len(values))
        return [value for value in values for _ in range(times)]
    bounds = [round(i * len(values) / width) for i in range(width + 1)]
    return [max(values[a:b]) for a, b in pairwise(bounds)]


def milliseconds(nanoseconds: float) -> str:
    """`12.3 ms`."""
    value = nanoseconds / 1e6
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value * 1000:.0f} µs"


def size(num_bytes: float) -> str:
    """`92.0 MiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if num_bytes < 1024 or unit == "GiB":
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    raise AssertionError


def plural(count: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def percent(share: float) -> str:
    """`41.5 %`; what is not 0 does not look like it."""
    value = 100 * share
    if value and value < 0.01:
        return "<0.01 %"
    return f"{value:.0f} %" if value >= 99.95 else f"{value:.1f} %" if value >= 1 else f"{value:.2f} %"


def chips(pieces: Sequence[tuple[str, str]], width: int) -> Text:
    """Tokens one after the other, alternately on a grey ground, with their ends marked; (text, style)."""
    text = Text(overflow="fold")
    for place, (piece, style) in enumerate(pieces):
        ground = "on grey23" if place % 2 else "on grey15"
        text.append(piece, f"{style} {ground}".strip())
        text.append("│", SOFT)
    text.truncate(width * 12, overflow="ellipsis")
    return text
