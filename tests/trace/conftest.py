"""The engines of other test folders."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for folder in (".", "engine", "server", "glass"):
    sys.path.append(str(Path(__file__).parent.parent / folder))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of two random layers and bytes."""
    from tiny_model import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")
