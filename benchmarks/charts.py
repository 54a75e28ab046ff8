"""Results → one SVG: for each scenario, how many times as fast pellucid is as each peer. No library needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from benchmarks.peers.registry import OURS, PEERS
from benchmarks.results import Results
from benchmarks.scenarios import FIGURES

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2")
LEFT, WIDTH, BAR, GAP = 220, 600, 13, 14
SKIPPED = ("mean-kl", "agreement", "cli-first-token", "cli-peak-rss")
Row = tuple[str, list[tuple[str, float]]]
"""A figure's title, and (engine, ratio) of each peer."""


def ratio_rows(results: Results, model: str) -> list[Row]:
    """What the chart of one model shows."""
    rows = []
    for figure in results.figures(model):
        ratios = [
            (name, ratio)
            for name in results.engines
            if not name.startswith(OURS) and (ratio := results.ratio(model, name, figure)) is not None
        ]
        if ratios and figure not in SKIPPED:
            rows.append((FIGURES[figure].title, ratios))
    return rows


def svg(results: Results) -> str:
    """All models below one another, on one logarithmic scale with a line at 1 ×."""
    models = {model: ratio_rows(results, model) for model in results.models}
    ratios = [ratio for rows in models.values() for _, row in rows for _, ratio in row] or [1.0]
    low = 2.0 ** math.floor(math.log2(min(0.5, *ratios)))
    high = 2.0 ** math.ceil(math.log2(max(2.0, *ratios)))

    def x(ratio: float) -> float:
        return LEFT + WIDTH * math.log(ratio / low) / math.log(high / low)

    peers = [
        name
        for name in results.engines
        if any(name == e for rows in models.values() for _, row in rows for e, _ in row)
    ]
    body = [_text(16, 26, "How many times as fast, or as small, pellucid is", size=17, weight="bold")]
    body.append(
        _text(16, 46, f"{results.machine['cpu']}, {results.settings['threads']} threads; right of 1 ×: pellucid ahead")
    )
    across = 16.0
    for index, name in enumerate(peers):
        far = any(results.is_far(model, name) for model in models)
        label = PEERS[name].label + (" (†: other answers)" if far else "")
        body.append(f'<rect x="{across}" y="58" width="11" height="11" fill="{COLOURS[index % len(COLOURS)]}"/>')
        body.append(_text(across + 16, 68, label))
        across += 30 + 7 * len(label)
    y = 92.0
    for model, rows in models.items():
        body.append(_text(16, y + 12, model, size=14, weight="bold"))
        y += 22
        top = y
        bars = []
        for title, row in rows:
            bars.append(_text(LEFT - 10, y + len(row) * BAR / 2 + 4, title, anchor="end"))
            for name, ratio in row:
                left, right = sorted((x(1.0), x(ratio)))
                colour, width = COLOURS[peers.index(name) % len(COLOURS)], max(right - left, 1)
                place = f'x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR - 2}"'
                bars.append(f'<rect {place} fill="{colour}"/>')
                bars.append(_text(right + 4 if ratio >= 1 else x(1.0) + 4, y + 10, f"{ratio:.2f} ×", size=10))
                y += BAR
            y += GAP
        body += _grid(low, high, top, y, x) + bars
        y += 12
    height = y + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 70}" height="{height:.0f}" '
        f'font-family="system-ui, sans-serif"><rect width="100%" height="100%" fill="white"/>'
        + "".join(body)
        + "</svg>\n"
    )


def _grid(low: float, high: float, top: float, bottom: float, x: Callable[[float], float]) -> list[str]:
    lines = []
    ratio = low
    while ratio <= high:
        colour = "#444" if ratio == 1.0 else "#ddd"
        lines.append(f'<path d="M{x(ratio):.1f} {top:.1f}V{bottom - 8:.1f}" stroke="{colour}"/>')
        lines.append(_text(x(ratio), bottom + 3, f"{ratio:g} ×", size=10, anchor="middle"))
        ratio *= 2
    return lines


def _text(x: float, y: float, text: str, size: int = 12, weight: str = "normal", anchor: str = "start") -> str:
    style = f'font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="#222"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
