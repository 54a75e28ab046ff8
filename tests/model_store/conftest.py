"""The fixtures of the model store's tests: a small world with its own cache and its own packages."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_index import Told, World

from pellucid.model_store.aliases import ALIASES


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    for name, value in world.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(ALIASES, world.alias.name, world.alias)
    return world


@pytest.fixture
def told() -> Told:
    return Told()
