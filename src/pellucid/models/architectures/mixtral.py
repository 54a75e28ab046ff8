"""Mixtral (Jiang et al. 2024): Llama's block with eight experts in place of the MLP, two for each token."""

from __future__ import annotations

import dataclasses

from pellucid.config import ExpertsConfig, ModelConfig
from pellucid.models.architectures.base import HF_NAMES, Architecture, ExpertNames, HFForm, Stored, stored
from pellucid.models.architectures.common import every_layer_slides, hf_config, tied
from pellucid.models.architectures.keys import JSONConfig

_BLOCK = "layers.{i}.block_sparse_moe."


def _hf(config: JSONConfig) -> ModelConfig:
    return hf_config(
        config,
        rope_theta=1e6,
        tie_word_embeddings=tied(config, False),
        **every_layer_slides(config),
        experts=ExpertsConfig(
            num_experts=config.integer("num_local_experts", high=4096),
            num_chosen=config.integer("num_experts_per_tok", high=config.integer("num_local_experts", high=4096)),
            intermediate_size=config.integer("intermediate_size"),
            normalize=True,
        ),
    )


ARCHITECTURE = Architecture(
    hf=(
        HFForm(
            "mixtral",
            _hf,
            dataclasses.replace(
                HF_NAMES,
                experts=ExpertNames(
                    router=Stored(_BLOCK + "gate"),
                    gate_up=stored(_BLOCK + "experts.{e}.w1", _BLOCK + "experts.{e}.w3"),
                    down=Stored(_BLOCK + "experts.{e}.w2"),
                ),
            ),
        ),
    ),
)
