"""StarCoder 2 (Lozhkov et al. 2024): LayerNorm, biases everywhere, one GELU MLP, RoPE and GQA."""

from __future__ import annotations

import dataclasses

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import HF_NAMES, Architecture, HFForm, Stored, stored
from pellucid.models.architectures.common import every_layer_slides, hf_config, tied
from pellucid.models.architectures.keys import JSONConfig


def _hf(config: JSONConfig) -> ModelConfig:
    return hf_config(
        config,
        **every_layer_slides(config),
        norm="layer",
        norm_eps=config.number("norm_epsilon", default=1e-5, high=1.0),
        gated_mlp=False,
        tie_word_embeddings=tied(config, True),
    )


ARCHITECTURE = Architecture(
    hf=(
        HFForm(
            "starcoder2",
            _hf,
            dataclasses.replace(HF_NAMES, gate_up=stored("layers.{i}.mlp.c_fc"), down=Stored("layers.{i}.mlp.c_proj")),
        ),
    )
)
