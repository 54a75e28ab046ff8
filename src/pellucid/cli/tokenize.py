"""`pellucid tokenize`: the pieces a model sees in a text. Reads the model file's header only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pellucid.cli import console
from pellucid.cli.arguments import Argument, Option
from pellucid.cli.console import plural, visible
from pellucid.cli.exit_codes import EXIT_REQUEST_FAILED
from pellucid.cli.flags import with_flags
from pellucid.cli.loading import local_path
from pellucid.errors import InvalidParameterError

if TYPE_CHECKING:
    from rich.table import Table

    from pellucid.tokenizer.tokenizer import Piece


@with_flags(only=("model",))
def tokenize(
    text: Annotated[str | None, Argument(help="Text to split; `-` or nothing reads standard input.")] = None,
    special: Annotated[bool, Option("--special", help="Control strings such as <|im_end|> become tokens.")] = False,
    bos: Annotated[bool, Option("--bos/--no-bos", help="Add the begin and end tokens that the model wants.")] = True,
    ids: Annotated[bool, Option("--ids", help="Print the ids alone, with spaces between them.")] = False,
    json: Annotated[bool, Option("--json", help="Print JSON instead of a table.")] = False,
    compare: Annotated[
        str | None,
        Option("--compare", metavar="OTHER", help="Another model: both tokenizers side by side."),
    ] = None,
    save: Annotated[
        Path | None,
        Option("--save", metavar="FILE", help="Keep the ids of each line of the text, to be held later."),
    ] = None,
    check: Annotated[
        Path | None,
        Option("--check", metavar="FILE", help="Hold the tokenizer to ids that --save kept."),
    ] = None,
    *,
    engine: dict[str, Any],
) -> int:
    """Control strings in the text are text like any other unless --special is given, as they are in a prompt.
    One newline at the end of piped input is dropped. --compare ends with 1 where the ids differ, --check where the
    tokenizer gives other ids than were kept.
    """
    if sum(option is not None for option in (compare, save, check)) > 1:
        raise InvalidParameterError("compare", "--compare, --save and --check exclude each other: give one of them")
    if check is not None:
        if text is not None:
            raise InvalidParameterError("text", "--check takes its texts from the file: give no other text")
        from pellucid.cli.golden_ids import check_ids

        return check_ids(check, *local_path(engine))
    content = console.read_text(text, "text")
    model, path = local_path(engine)
    from pellucid.models.model_files import read_tokenizer

    tokenizer = read_tokenizer(path)
    if save is not None:
        from pellucid.cli.golden_ids import save_ids

        save_ids(save, model, tokenizer, content)
        return 0
    if compare is not None:
        from pellucid.cli.compare_tokenizers import compare_tokenizers

        other = read_tokenizer(local_path({"model": compare})[1])
        equal = compare_tokenizers(
            (model, tokenizer), (compare, other), content, bos=bos, special=special, as_json=json
        )
        return 0 if equal else EXIT_REQUEST_FAILED
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
    return 0


BATCH_ROWS = 1000
"""Rows laid out at once: a table of a long text is seen from its first rows on, and is never held whole."""


def _show(pieces: list[Piece], text: str) -> None:
    widths = _widths(pieces) if len(pieces) > BATCH_ROWS else (0, 0, 0, 0)
    for start in range(0, max(1, len(pieces)), BATCH_ROWS):
        console.print_rich(_table(pieces[start : start + BATCH_ROWS], start, widths))
    counts = (plural(len(pieces), "token"), plural(len(text), "character"), plural(len(text.encode("utf-8")), "byte"))
    print("\n" + ", ".join(counts))


def _widths(pieces: list[Piece]) -> tuple[int, int, int, int]:
    """Cells that each column needs for all rows, so that the batches are in line."""
    from rich.cells import cell_len

    spellings = {piece.token_bytes for piece in pieces}
    ids = max(len(str(piece.token_id)) for piece in pieces)
    texts = max(cell_len(visible(spelling)) for spelling in spellings)
    return len(str(len(pieces) - 1)), ids, texts, max(3 * max(map(len, spellings)) - 1, len("bytes"))


def _table(pieces: list[Piece], start: int, widths: tuple[int, int, int, int]) -> Table:
    """A batch of rows, with the heading over the first one."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False, show_header=start == 0)
    table.add_column("#", justify="right", style="dim", min_width=widths[0])
    table.add_column("id", justify="right", min_width=max(widths[1], len("id")))
    table.add_column("piece", min_width=max(widths[2], len("piece")))
    table.add_column("bytes", min_width=widths[3])
    for position, piece in enumerate(pieces, start):
        shown = Text(visible(piece.token_bytes), style="magenta" if piece.special else "cyan")
        table.add_row(str(position), str(piece.token_id), shown, piece.token_bytes.hex(" "))
    return table
