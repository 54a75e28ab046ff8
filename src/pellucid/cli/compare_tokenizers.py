"""Two tokenizers on one text, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pellucid.cli import console
from pellucid.cli.console import plural, visible

if TYPE_CHECKING:
    from pellucid.tokenizer.tokenizer import Piece, Tokenizer

Row = tuple[list["Piece"], list["Piece"]]
"""What both make of one stretch of the text."""

CUT, NUMBERED = "≠", "#"
"""How rows are marked: the pieces differ, or only their ids do."""


def compare_tokenizers(
    left: tuple[str, Tokenizer], right: tuple[str, Tokenizer], text: str, *, bos: bool, special: bool, as_json: bool
) -> bool:
    """Print both; returns whether they give the same ids."""
    models = (left[0], right[0])
    pieces = [
        tokenizer.pieces(text, add_special_tokens=bos, parse_special=special) for tokenizer in (left[1], right[1])
    ]
    rows = list(aligned(*pieces))
    equal = all(_ids(a) == _ids(b) for a, b in rows)
    if as_json:
        console.write_json(
            {
                "models": models,
                "fingerprints": [left[1].fingerprint, right[1].fingerprint],
                "text": text,
                "equal": equal,
                "num_tokens": [len(p) for p in pieces],
                "rows": [{"equal": _ids(a) == _ids(b), "left": _described(a), "right": _described(b)} for a, b in rows],
            }
        )
    else:
        _show(models, rows)
        marks = [_mark(row) for row in rows]
        verdict = (
            "the ids are equal"
            if equal
            else f"{plural(marks.count(CUT), 'row')} of {len(rows)} cut otherwise ({CUT}), "
            f"{marks.count(NUMBERED)} with the same pieces and other ids ({NUMBERED})"
        )
        print(f"\n{plural(len(pieces[0]), 'token')} and {plural(len(pieces[1]), 'token')}: {verdict}")
    return equal


def aligned(left: list[Piece], right: list[Piece]) -> Iterator[Row]:
    """Rows that begin and end at the same bytes in both, as short as can be; special tokens that only one has stand in
    rows of their own."""
    i = j = 0
    while i < len(left) or j < len(right):
        row: Row = ([], [])
        for side, pieces, at in ((0, left, i), (1, right, j)):
            if at < len(pieces) and pieces[at].special:
                row[side].append(pieces[at])
        if row[0] or row[1]:
            yield row
            i, j = i + len(row[0]), j + len(row[1])
            continue
        sizes = [0, 0]
        while sizes[0] != sizes[1] or not sizes[0]:
            if sizes[0] <= sizes[1] and i < len(left) and not left[i].special:
                side, piece, i = 0, left[i], i + 1
            elif j < len(right) and not right[j].special:
                side, piece, j = 1, right[j], j + 1
            elif i < len(left) and not left[i].special:
                side, piece, i = 0, left[i], i + 1
            else:
                break  # one of them has lost bytes, as WordPiece does
            row[side].append(piece)
            sizes[side] += len(piece.token_bytes)
        yield row


def _mark(row: Row) -> str:
    if [piece.token_bytes for piece in row[0]] != [piece.token_bytes for piece in row[1]]:
        return CUT
    return "" if _ids(row[0]) == _ids(row[1]) else NUMBERED


def _ids(pieces: list[Piece]) -> list[int]:
    return [piece.token_id for piece in pieces]


def _described(pieces: list[Piece]) -> list[dict[str, Any]]:
    return [{"id": p.token_id, "text": p.token_bytes.decode("utf-8", "replace")} for p in pieces]


def _show(models: tuple[str, str], rows: list[Row]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    for model in models:
        table.add_column(console.harmless(model))
        table.add_column("ids", justify="right")
    for row in rows:
        cells: list[Text] = [Text(_mark(row), style="bold red")]
        for side in row:
            text = Text("|").join(Text(visible(p.token_bytes), style="magenta" if p.special else "cyan") for p in side)
            cells += [text, Text(" ".join(str(p.token_id) for p in side))]
        table.add_row(*cells)
    console.print_rich(table)
