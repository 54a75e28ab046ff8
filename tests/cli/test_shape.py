"""What `inspect` says of a model's shape, for the families that differ most."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pellucid.cli.shape import shape_rows
from pellucid.models.architectures.keys import JSONConfig
from pellucid.models.architectures.registry import find_hf

MODELS = json.loads((Path(__file__).parent.parent / "parity" / "golden" / "models.json").read_text())


def rows(name: str) -> dict[str, str]:
    config = MODELS[name]["config"]
    return dict(shape_rows(find_hf(config["model_type"], "config.json").config(JSONConfig(config, "config.json"))))


@pytest.mark.parametrize(
    ("name", "row", "words"),
    [
        ("llama-yarn", "rope", "on 16 of 16 numbers per head; scaling yarn, factor 4, from 32 tokens to 128"),
        ("phi3-long", "rope", "scaling longrope, factor 4, from 32 tokens to 128"),
        ("gemma2", "sliding window", "8 tokens in 2 layers (0, 2)"),
        ("gemma2", "soft caps", "scores 2, logits 1"),
        ("gemma3", "rope, sliding", "theta 10000"),
        ("smollm3", "no positions", "in 1 layer (3)"),
        ("bloom", "positions", "ALiBi"),
        ("bloom", "LayerNorm", "epsilon 1e-05"),
        ("gpt2", "positions", "learned, a table of 128"),
        ("gpt-neox", "LayerNorm", "side by side"),
        ("opt-post-norm", "hidden size", "64, MLP 96 (relu, one half), embedding 32"),
        ("deepseek-v3", "latent", "queries from 24, keys and values from 32; keys 32 + 16 rotated, values 16 a head"),
        ("deepseek-v3", "experts", "by sigmoid, from 2 of 4 groups; one shared, 32 wide; none in 1 layer"),
        ("mistral", "sliding window", "8 tokens in all layers"),
    ],
)  # fmt: skip
def test_a_row_says(name: str, row: str, words: str) -> None:
    assert words in rows(name)[row]


def test_llama_has_no_row_of_what_it_has_not() -> None:
    assert list(rows("llama")) == ["layers", "hidden size", "attention", "rope", "RMSNorm", "LM head"]
