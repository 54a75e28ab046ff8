"""What all tests share: the real models, and how long hypothesis may search."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from pellucid.errors import ModelStoreError

settings.register_profile(
    "pellucid", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("pellucid")


def _model(name: str) -> Path:
    """The model's file; the test is skipped only where it can neither be found nor fetched."""
    from pellucid.model_store.store import resolve

    try:
        return Path(resolve(name))
    except ModelStoreError as error:
        pytest.skip(f"{name} is not here and cannot be fetched: {error}")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1."""
    return _model("smollm2:135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M, base model."""
    return _model("gemma3:270m")
