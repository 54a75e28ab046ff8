"""Every family against the logits that transformers gave for the same weights, without torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from parity.families import ENCODERS, FAMILIES, GOLDENS, SmallModel, write_folder
from parity.ours import hidden, load_ours, logits, one_by_one
from parity.to_gguf import write_llama_cpp

TOLERANCE = 1e-4
"""Of the largest logit."""


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDENS / "logits.npz") as stored:
        return dict(stored)


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("small", FAMILIES, ids=lambda small: small.name)
def test_logits_are_those_of_transformers(
    small: SmallModel, backend: str, golden: dict[str, np.ndarray], tmp_path: Path
) -> None:
    ids, expected = small.token_ids(), golden[small.name]
    model = load_ours(write_folder(small, tmp_path), backend, max_model_len=len(ids))
    for cuts in ([], one_by_one(ids)):
        ours = logits(model, ids, cuts)[golden["positions"]]
        worst = np.abs(ours - expected).max() / np.abs(expected).max()
        assert worst <= TOLERANCE, f"{worst:.1e} of the largest logit, {len(cuts) + 1} steps"


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize("form", ["folder", "gguf"])
@pytest.mark.parametrize("small", ENCODERS, ids=lambda small: small.name)
def test_hidden_states_of_encoders_are_those_of_transformers(
    small: SmallModel, form: str, backend: str, golden: dict[str, np.ndarray], tmp_path: Path
) -> None:
    ids, expected = small.token_ids(), golden[small.name]
    path = write_folder(small, tmp_path) if form == "folder" else write_llama_cpp(small, tmp_path / "m.gguf")
    model = load_ours(path, backend)
    assert not model.config.causal
    assert model.config.pooling == "mean"
    worst = np.abs(hidden(model, ids)[golden["positions"]] - expected).max() / np.abs(expected).max()
    assert worst <= TOLERANCE, f"{worst:.1e} of the largest value"
