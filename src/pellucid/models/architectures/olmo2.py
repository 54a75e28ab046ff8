"""OLMo 2 (OLMo team 2024): norms on what attention and MLP give, none on what they take; q and k normed whole."""

from __future__ import annotations

import dataclasses

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import GGUF_NAMES, HF_NAMES, Architecture, GGUFForm, HFForm
from pellucid.models.architectures.common import gguf_config, hf_config, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata


def _gguf(metadata: Metadata) -> ModelConfig:
    return gguf_config(metadata)


def _hf(config: JSONConfig) -> ModelConfig:
    return hf_config(config, rope_theta=500000.0, tie_word_embeddings=tied(config, False))


ARCHITECTURE = Architecture(
    gguf=(
        GGUFForm(
            "olmo2",
            _gguf,
            dataclasses.replace(
                GGUF_NAMES,
                attention_norm=None,
                q_norm="blk.{i}.attn_q_norm",
                k_norm="blk.{i}.attn_k_norm",
                post_attention_norm="blk.{i}.post_attention_norm",
                mlp_norm=None,
                post_mlp_norm="blk.{i}.post_ffw_norm",
            ),
        ),
    ),
    hf=(
        HFForm(
            "olmo2",
            _hf,
            dataclasses.replace(
                HF_NAMES,
                attention_norm=None,
                q_norm="layers.{i}.self_attn.q_norm",
                k_norm="layers.{i}.self_attn.k_norm",
                post_attention_norm="layers.{i}.post_attention_layernorm",
                mlp_norm=None,
                post_mlp_norm="layers.{i}.post_feedforward_layernorm",
            ),
        ),
    ),
)
