"""Granite (IBM 2024): Llama's block with factors on embedding, scores, residual branches and logits (muP)."""

from __future__ import annotations

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import Architecture, HFForm
from pellucid.models.architectures.common import hf_config, tied
from pellucid.models.architectures.keys import JSONConfig


def _hf(config: JSONConfig) -> ModelConfig:
    return hf_config(
        config,
        embedding_scale=config.number("embedding_multiplier", default=1.0),
        attention_scale=config.number("attention_multiplier", default=1.0),
        residual_scale=config.number("residual_multiplier", default=1.0),
        logits_scale=1.0 / config.number("logits_scaling", default=1.0),
        tie_word_embeddings=tied(config, False),
    )


ARCHITECTURE = Architecture(hf=(HFForm("granite", _hf),))
