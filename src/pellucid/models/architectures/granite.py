"""Granite (IBM 2024): Llama's block with factors on embedding, scores, residual branches and logits (muP)."""

from __future__ import annotations

from typing import Any

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import GGUF_NAMES, Architecture, GGUFForm, HFForm
from pellucid.models.architectures.common import gguf_config, hf_config, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata


def _gguf(metadata: Metadata) -> ModelConfig:
    scale: dict[str, Any] = (
        {"attention_scale": metadata.number("attention.scale")} if metadata.has("attention.scale") else {}
    )
    return gguf_config(
        metadata,
        embedding_scale=metadata.number("embedding_scale", default=1.0),
        residual_scale=metadata.number("residual_scale", default=1.0),
        logits_scale=1.0 / metadata.number("logit_scale", default=1.0),
        **scale,
    )


def _hf(config: JSONConfig) -> ModelConfig:
    return hf_config(
        config,
        embedding_scale=config.number("embedding_multiplier", default=1.0),
        attention_scale=config.number("attention_multiplier", default=1.0),
        residual_scale=config.number("residual_multiplier", default=1.0),
        logits_scale=1.0 / config.number("logits_scaling", default=1.0),
        tie_word_embeddings=tied(config, False),
    )


ARCHITECTURE = Architecture(
    gguf=(GGUFForm("granite", _gguf, GGUF_NAMES, interleaved_rope_rows=True),),
    hf=(HFForm("granite", _hf),),
)
