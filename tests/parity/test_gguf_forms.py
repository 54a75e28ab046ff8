"""Every family as llama.cpp writes it gives the logits of its safetensors form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from parity.families import BY_NAME, FAMILIES, GOLDENS, SmallModel
from parity.ours import load_ours, logits
from parity.to_gguf import has_gguf_form, write_llama_cpp

TOLERANCE = 1e-4
WITH_GGUF = [model for model in FAMILIES if has_gguf_form(model)]


@pytest.mark.parametrize("small", WITH_GGUF, ids=lambda small: small.name)
def test_logits_are_those_of_transformers(small: SmallModel, tmp_path: Path) -> None:
    assert worst(small, write_llama_cpp(small, tmp_path / "m.gguf")) <= TOLERANCE


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3"])
def test_older_files_have_keys_and_values_of_latent_attention_in_one(name: str, tmp_path: Path) -> None:
    small = BY_NAME[name]
    assert worst(small, write_llama_cpp(small, tmp_path / "m.gguf", apart=False)) <= TOLERANCE


def worst(small: SmallModel, path: Path) -> float:
    with np.load(GOLDENS / "logits.npz") as stored:
        expected, positions = stored[small.name], stored["positions"]
    ids = small.token_ids()
    ours = logits(load_ours(path, "reference", max_model_len=len(ids)), ids)[positions]
    return float(np.abs(ours - expected).max() / np.abs(expected).max())
