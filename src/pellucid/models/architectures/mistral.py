"""Mistral (Jiang et al. 2023): Llama's block, in the first versions with a sliding window on every layer."""

from __future__ import annotations

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import Architecture, HFForm
from pellucid.models.architectures.common import every_layer_slides, hf_config, tied
from pellucid.models.architectures.keys import JSONConfig


def _hf(config: JSONConfig) -> ModelConfig:
    return hf_config(config, **every_layer_slides(config), tie_word_embeddings=tied(config, False))


ARCHITECTURE = Architecture(hf=(HFForm("mistral", _hf),))
