"""Every benchmark can be imported: what it takes from Pellucid is still there."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (ROOT, ROOT / "benchmarks"):  # a script finds its neighbours without the package
        monkeypatch.syspath_prepend(str(folder))
    importlib.import_module(f"benchmarks.{name}")
