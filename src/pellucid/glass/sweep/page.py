"""A sweep as one HTML file: a map, a sortable table, texts side by side; nothing is fetched, it opens from a disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pellucid.glass.assets import SWEEP_SCRIPTS, offline_page, read, script
from pellucid.glass.sweep.results import Sweep, as_json


def write_page(sweep: Sweep, path: str | Path) -> int:
    """Write the page; gives back its size in bytes. Raises OSError."""
    page = page_html(sweep).encode("utf-8")
    Path(path).write_bytes(page)
    return len(page)


def page_html(sweep: Sweep) -> str:
    """The page. Texts of the model are data in it, never markup."""
    style = read("style.css") + read("sweep.css")
    return offline_page("sweep", "pl-sweep", script(SWEEP_SCRIPTS), style, _lines(sweep))


def _lines(sweep: Sweep) -> Iterator[str]:
    """The sweep without its cells, then each cell."""
    whole = as_json(sweep)
    cells = whole.pop("cells")
    yield _line({"type": "sweep", **whole})
    for cell in cells:
        yield _line({"type": "cell", **_rounded(cell)})


def _rounded(cell: dict[str, Any]) -> dict[str, Any]:
    """Numbers of single tokens with as many digits as a hue can show."""
    short = {
        name: [round(value, 3) for value in cell[name]] for name in ("logprobs", "entropies") if cell[name] is not None
    }
    return {**cell, **short}


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
