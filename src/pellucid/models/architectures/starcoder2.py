"""StarCoder 2 (Lozhkov et al. 2024): LayerNorm, biases everywhere, one GELU MLP, RoPE and GQA."""

from __future__ import annotations

import dataclasses

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import GGUF_NAMES, HF_NAMES, Architecture, GGUFForm, HFForm, Stored, stored
from pellucid.models.architectures.common import every_layer_slides, gguf_config, gguf_window, hf_config, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata


def _gguf(metadata: Metadata) -> ModelConfig:
    return gguf_config(metadata, **gguf_window(metadata), norm="layer", gated_mlp=False, activation="gelu_tanh")


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
    gguf=(GGUFForm("starcoder2", _gguf, dataclasses.replace(GGUF_NAMES, gate_up=stored("blk.{i}.ffn_up"))),),
    hf=(
        HFForm(
            "starcoder2",
            _hf,
            dataclasses.replace(HF_NAMES, gate_up=stored("layers.{i}.mlp.c_fc"), down=Stored("layers.{i}.mlp.c_proj")),
        ),
    ),
)
