"""The tables of a sweep: its numbers, at any width, and no text of a model steers the terminal."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hostile_sweep import hostile_sweep
from rich.cells import cell_len
from rich.console import Console

from pellucid.glass.sweep.terminal import measure_text, render

ALLOWED = re.compile(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]*")


def shown(width: int, **options: Any) -> str:
    console = Console(width=width, color_system=None, highlight=False, legacy_windows=False, force_terminal=False)
    with console.capture() as captured:
        for renderable in render(hostile_sweep(**options), width):
            console.print(renderable)
    return captured.get()


@pytest.mark.parametrize("width", [40, 64, 80, 120, 200])
def test_any_width_and_hostile_texts(width: int) -> None:
    text = shown(width)
    assert ALLOWED.fullmatch(text)
    for line in text.splitlines():
        assert cell_len(line) <= width, line


def test_numbers_and_texts_of_every_cell() -> None:
    sweep = hostile_sweep()
    text = shown(200)
    for cell in sweep.cells:
        assert measure_text("mean_logprob", cell.mean_logprob) in text
        assert measure_text("entropy", cell.entropy) in text
    assert "</script><img src=x onerror=alert(1)>" in text
    assert "\\u202e" in text
    assert "the request failed" in text
    assert "By setting" in text
    assert "Interrupted" not in text
    assert "Interrupted" in shown(120, interrupted=True)
