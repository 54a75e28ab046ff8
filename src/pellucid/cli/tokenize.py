"""`pellucid tokenize`: the pieces a model sees in a text. Reads the model file's header only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.cli import console
from pellucid.cli.console import plural
from pellucid.cli.flags import with_flags
from pellucid.cli.loading import local_path

if TYPE_CHECKING:
    from pellucid.tokenizer.tokenizer import Piece


@with_flags(only=("model",))
def tokenize(
    text: Annotated[
        str | None, typer.Argument(help="Text to split; `-` or nothing reads standard input.", show_default=False)
    ] = None,
    special: Annotated[
        bool, typer.Option("--special", help="Control strings such as <|im_end|> become tokens.")
    ] = False,
    bos: Annotated[
        bool, typer.Option("--bos/--no-bos", help="Add the begin and end tokens that the model wants.")
    ] = True,
    ids: Annotated[bool, typer.Option("--ids", help="Print the ids alone, with spaces between them.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Control strings in the text are text like any other unless --special is given, as they are in a prompt.
    One newline at the end of piped input is dropped.
    """
    content = console.read_text(text, "text")
    model, path = local_path(engine)
    from pellucid.models.model_files import read_tokenizer

    tokenizer = read_tokenizer(path)
    pieces = tokenizer.pieces(content, add_special_tokens=bos, parse_special=special)
    if ids:
        print(" ".join(str(piece.token_id) for piece in pieces))
    elif json:
        tokens = [
            {
                "id": p.token_id,
                "text": p.token_bytes.decode("utf-8", "replace"),
                "bytes": p.token_bytes,
                "special": p.special,
            }
            for p in pieces
        ]
        console.write_json({"model": model, "text": content, "num_tokens": len(pieces), "tokens": tokens})
    else:
        _show(pieces, content)


def _show(pieces: list[Piece], text: str) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("#", justify="right", style="dim")
    table.add_column("id", justify="right")
    table.add_column("piece")
    table.add_column("bytes")
    for position, piece in enumerate(pieces):
        shown = Text(visible(piece.token_bytes), style="magenta" if piece.special else "cyan")
        table.add_row(str(position), str(piece.token_id), shown, piece.token_bytes.hex(" "))
    console.print_rich(table)
    counts = (plural(len(pieces), "token"), plural(len(text), "character"), plural(len(text.encode("utf-8")), "byte"))
    print("\n" + ", ".join(counts))


def visible(data: bytes) -> str:
    """A token's bytes so that spaces and line ends can be seen; parts of characters as \\xNN."""
    text = data.decode("utf-8", "backslashreplace").replace(" ", "·")
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(named.get(c, c if c.isprintable() else f"\\u{ord(c):04x}") for c in text)
