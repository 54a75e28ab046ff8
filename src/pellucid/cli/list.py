"""`pellucid list`: what is in the cache, and what can be pulled by a short name."""

from __future__ import annotations

import shutil
import sys
from typing import Annotated, Any

from pellucid.cli import console
from pellucid.cli.arguments import Option
from pellucid.config import DEFAULT_MODEL
from pellucid.model_store.aliases import ALIASES
from pellucid.model_store.cache import cache_folder
from pellucid.model_store.progress import format_bytes
from pellucid.model_store.store import list_models

TABLE_WIDTH = 120
"""Columns below which a table of the models would be squeezed."""


def list_(json: Annotated[bool, Option("--json", help="Print JSON instead of a table.")] = False) -> None:
    """The default model, used when `-m` is not given, is marked with *."""
    rows = _rows()
    if json:
        console.write_json({"cache": cache_folder(), "models": rows}, indent=1)
        return
    if sys.stdout.isatty() and shutil.get_terminal_size().columns < TABLE_WIDTH:
        _show_narrow(rows)
    else:
        _show_table(rows)
    print(f"\ncache: {cache_folder()}")


def _show_table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "state", "size", "what it is", "licence"):
        table.add_column(
            title, justify="right" if title == "size" else "left", no_wrap=title in ("name", "state", "size")
        )
    for row in rows:
        table.add_row(_name(row), row["state"], _size(row), _what(row), row["licence"] or "")
    console.print_rich(table)


def _show_narrow(rows: list[dict[str, Any]]) -> None:
    """What it is and its licence below the name, where the terminal has no room beside it."""
    for row in rows:
        print(f"{_name(row)}  {row['state']}  {_size(row)}")
        for text in filter(None, (_what(row), row["licence"])):
            print(f"  {text}")


def _name(row: dict[str, Any]) -> str:
    return f"{row['name']} *" if row["name"] == DEFAULT_MODEL else str(row["name"])


def _size(row: dict[str, Any]) -> str:
    size = format_bytes(row["size"] if row["size"] is not None else row["download_size"])
    if row["state"] == "partial" and row["download_size"]:
        size += f" of {format_bytes(row['download_size'])}"
    return size


def _what(row: dict[str, Any]) -> str:
    return row["description"] or str(row["path"])


def _rows() -> list[dict[str, Any]]:
    stored = list_models()
    here = {model.name for model in stored}
    rows: list[dict[str, Any]] = []
    for model in stored:
        alias = ALIASES.get(model.name)
        rows.append(
            {
                "name": model.name,
                "state": "ready" if model.complete else "partial",
                "size": model.size,
                "path": model.path,
                "source": model.source,
                "download_size": alias.fetch_size if alias else None,
                "licence": alias.licence if alias else None,
                "description": alias.description if alias else None,
            }
        )
    for alias in ALIASES.values():
        if alias.name not in here:
            rows.append(
                {
                    "name": alias.name,
                    "state": "not pulled",
                    "size": None,
                    "path": None,
                    "source": "alias",
                    "download_size": alias.fetch_size,
                    "licence": alias.licence,
                    "description": alias.description,
                }
            )
    return rows
