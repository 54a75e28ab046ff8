"""Command R (Cohere 2024): attention and MLP side by side from one LayerNorm without biases, pairs of neighbours
rotated, a factor on the logits; and Command R7B, where three layers slide and the fourth, full one rotates nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import GGUF_NAMES, HF_NAMES, Architecture, GGUFForm, HFForm
from pellucid.models.architectures.common import gguf_config, hf_config, sliding_layers, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata

_PERIOD = 4
_COMMON: dict[str, Any] = {"norm": "layer", "block": "parallel"}


def _gguf(metadata: Metadata) -> ModelConfig:
    return gguf_config(metadata, logits_scale=metadata.number("logit_scale", default=0.0625), **_COMMON)


def _gguf2(metadata: Metadata) -> ModelConfig:
    layers = metadata.integer("block_count", high=1024)
    window = metadata.integer("attention.sliding_window", high=1 << 30)
    sliding = tuple((layer + 1) % _PERIOD != 0 for layer in range(layers))
    return dataclasses.replace(_gguf(metadata), sliding_window=window, sliding_layers=sliding, rope_layers=sliding)


def _hf(config: JSONConfig) -> ModelConfig:
    config.only("use_qk_norm", False)
    return hf_config(
        config,
        rope_theta=500000.0,
        logits_scale=config.number("logit_scale", default=0.0625),
        tie_word_embeddings=tied(config, True),
        **_COMMON,
    )


def _hf2(config: JSONConfig) -> ModelConfig:
    layers = config.integer("num_hidden_layers", high=1024)
    period = config.integer("sliding_window_pattern", default=_PERIOD, high=1024)
    sliding = sliding_layers(config, layers) or tuple((layer + 1) % period != 0 for layer in range(layers))
    window = config.integer("sliding_window", default=4096, high=1 << 30)
    return dataclasses.replace(_hf(config), sliding_window=window, sliding_layers=sliding, rope_layers=sliding)


_GGUF_NAMES = dataclasses.replace(GGUF_NAMES, mlp_norm=None)
_NAMES = dataclasses.replace(HF_NAMES, mlp_norm=None)

ARCHITECTURE = Architecture(
    gguf=(
        GGUFForm("command-r", _gguf, _GGUF_NAMES, interleaved_rope_rows=True),
        GGUFForm("cohere2", _gguf2, _GGUF_NAMES, interleaved_rope_rows=True),
    ),
    hf=(
        HFForm("cohere", _hf, _NAMES, interleaved_rope_rows=True),
        HFForm("cohere2", _hf2, _NAMES, interleaved_rope_rows=True),
    ),
)
