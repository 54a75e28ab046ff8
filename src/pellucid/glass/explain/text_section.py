"""From characters to ids, and where each id stands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from pellucid.glass.explain.drawing import ACCENT, SOFT, chips, heading, plain
from pellucid.glass.pieces import hexadecimal, plain_text
from pellucid.glass.view import TraceView

SHOWN_TOKENS = 24
"""Rows of the token table: the first and the last of the prompt."""
_KINDS = {"normal": "", "special": "special", "byte": "byte"}


def text_section(view: TraceView, width: int, token: int | None) -> Iterator[RenderableType]:
    """Template, rendered prompt, tokens."""
    request = view.request
    num_cached = sum(one["cached"] for one in request["tokens"])
    note = f"{len(request['rendered'].encode())} bytes, {view.num_prompt} tokens"
    note += f", {num_cached} from the prefix cache" if num_cached else ""
    lead = "What the model reads: the text cut into tokens, each a number. A token can be a part of a character (byte)."
    yield heading("1", "Text → tokens", note, lead)
    if request["template"] is not None:
        yield Text("The chat template made this of the messages:", SOFT)
    yield Padding(Text(plain_text(request["rendered"]).rstrip("\n"), overflow="fold"), (0, 0, 0, 2))
    yield Text()
    styles = {"special": "magenta", "byte": "yellow"}
    yield chips([(view.text_at(i), styles.get(one["kind"], "")) for i, one in enumerate(request["tokens"])], width)
    table = plain()
    for name, justify in (("pos", "right"), ("id", "right"), ("text", "left"), ("bytes", "left"), ("", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for position in _rows(view, token):
        if position is None:
            table.add_row("…", "…", Text(f"{view.num_prompt - SHOWN_TOKENS} more (--token N)", SOFT), "", "")
            continue
        one = request["tokens"][position]
        notes = [_KINDS[one["kind"]], "cached" if one["cached"] else ""]
        style = ACCENT if position == token else ""
        table.add_row(
            str(position),
            str(one["id"]),
            Text(view.text_at(position), style, overflow="ellipsis"),
            Text(hexadecimal(view.token_bytes(position)), SOFT),
            Text(", ".join(filter(None, notes)), styles.get(one["kind"], SOFT)),
        )
    yield Padding(table, (1, 0, 0, 2))


def _rows(view: TraceView, token: int | None) -> list[int | None]:
    """Positions; None stands for those left out."""
    count = view.num_prompt
    if count <= SHOWN_TOKENS + 1:
        return list(range(count))
    half = SHOWN_TOKENS // 2
    rows: list[int | None] = [*range(half), None, *range(count - half, count)]
    if token is not None and half <= token < count - half:
        rows[half:half] = [token]
    return rows


def position_section(view: TraceView) -> Iterator[RenderableType]:
    """How the model knows where a token stands."""
    rope = view.header["model"]["rope"]
    last = max(0, view.num_tokens - 1)
    lead = "How the model knows the order of the tokens."
    yield heading("2", "Positions", f"0 to {last} of {rope['max_pos']}", lead)
    if rope["theta"] is None:
        words = {"learned": "a learned vector is added", "sinusoidal": "sines are added", "none": "none are told"}
        kind = plain_text(rope["type"])
        yield Text(f"Kind: {kind}; {words.get(kind, 'scores fall with distance (ALiBi)')}.")
        return
    kinds = rope.get("kinds")
    if not kinds:
        yield from _turned(rope, last, "")
        return
    yield Text("The layers are not all alike in how fast they turn, nor in how far back they see.", SOFT)
    for kind in kinds:
        window = kind["window"]
        name = f"{'Layer' if len(kind['layers']) == 1 else 'Layers'} {ranges(kind['layers'])} "
        name += f"(local: a window of {window:,} tokens): " if window else "(global: all tokens): "
        if kind["theta"] is None:
            yield Text(name + "nothing is turned.")
        else:
            yield from _turned(kind, last, name)


def ranges(numbers: list[int]) -> str:
    """Numbers in ascending order, as `0–4, 6, 8–9`."""
    found: list[list[int]] = []
    for one in numbers:
        if found and found[-1][1] == one - 1:
            found[-1][1] = one
        else:
            found.append([one, one])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in found)


def _turned(rope: dict[str, Any], last: int, layers: str) -> Iterator[RenderableType]:
    """How far some of the pairs are turned at a position."""
    scaling = "" if rope["type"] == "default" else f", {plain_text(rope['type'])} scaling"
    if rope["factor"] is not None and rope["type"] != "default":
        scaling += f" by {rope['factor']:g}"
    pairs = rope["inv_freq"]
    yield Text(
        f"{layers}RoPE, theta {rope['theta']:g}{scaling}: {len(pairs)} pairs of each query and key are turned by "
        f"position × frequency. At position {last}:"
    )
    table = plain()
    for name in ("pair", "radians per token", "turned by", "a full turn takes"):
        table.add_column(name, justify="right")
    for place in sorted({0, len(pairs) // 4, len(pairs) // 2, 3 * len(pairs) // 4, len(pairs) - 1}):
        turned = pairs[place] * last
        table.add_row(
            str(place),
            f"{pairs[place]:.3g}",
            f"{math.degrees(turned) % 360:.2f}° + {int(turned // (2 * math.pi))} turns",
            f"{2 * math.pi / pairs[place]:,.0f} tokens",
        )
    yield Padding(table, (0, 0, 0, 2))
