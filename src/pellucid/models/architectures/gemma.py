"""Gemma 1 (Gemma team 2024): Llama's block with GeGLU, scaled embeddings and norms stored around 0; and Gemma 2, with
norms after each branch too, soft caps on scores and logits, and a window on every other layer."""

from __future__ import annotations

import dataclasses

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import GGUF_NAMES, HF_NAMES, Architecture, GGUFForm, HFForm
from pellucid.models.architectures.common import gguf_config, hf_activation, hf_config, sliding_layers, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata

GEMMA2_NAMES = dataclasses.replace(
    HF_NAMES,
    post_attention_norm="layers.{i}.post_attention_layernorm",
    mlp_norm="layers.{i}.pre_feedforward_layernorm",
    post_mlp_norm="layers.{i}.post_feedforward_layernorm",
)


def _gguf(metadata: Metadata) -> ModelConfig:
    return gguf_config(metadata, activation="gelu_tanh", embedding_scale=metadata.integer("embedding_length") ** 0.5)


def _gguf2(metadata: Metadata) -> ModelConfig:
    layers = metadata.integer("block_count", high=1024)
    common = gguf_config(
        metadata,
        activation="gelu_tanh",
        embedding_scale=metadata.integer("embedding_length") ** 0.5,
        attention_softcap=metadata.number("attn_logit_softcapping", default=50.0),
        final_softcap=metadata.number("final_logit_softcapping", default=30.0),
        sliding_window=metadata.integer("attention.sliding_window", default=4096, high=1 << 30),
        sliding_layers=tuple(layer % 2 == 0 for layer in range(layers)),
    )
    if layers != 46:
        return common
    # The 27-billion model alone scales by hidden_size / heads; all others by head_dim.
    return dataclasses.replace(common, attention_scale=(common.hidden_size / common.num_heads) ** -0.5)


def _hf(config: JSONConfig) -> ModelConfig:
    return hf_config(
        config,
        # Early files say "gelu" where the tanh form is meant; transformers reads them so too.
        activation="gelu_tanh",
        embedding_scale=config.integer("hidden_size") ** 0.5,
        tie_word_embeddings=tied(config, True),
    )


def _hf2(config: JSONConfig) -> ModelConfig:
    layers = config.integer("num_hidden_layers", high=1024)
    return hf_config(
        config,
        activation=hf_activation(config, "hidden_activation"),
        embedding_scale=config.integer("hidden_size") ** 0.5,
        attention_scale=config.number("query_pre_attn_scalar", default=256.0) ** -0.5,
        attention_softcap=config.number("attn_logit_softcapping") if config.has("attn_logit_softcapping") else None,
        final_softcap=config.number("final_logit_softcapping") if config.has("final_logit_softcapping") else None,
        sliding_window=config.integer("sliding_window", default=4096, high=1 << 30),
        sliding_layers=sliding_layers(config, layers) or tuple(layer % 2 == 0 for layer in range(layers)),
        tie_word_embeddings=tied(config, True),
    )


ARCHITECTURE = Architecture(
    gguf=(
        GGUFForm("gemma", _gguf, GGUF_NAMES),
        GGUFForm(
            "gemma2",
            _gguf2,
            dataclasses.replace(
                GGUF_NAMES,
                post_attention_norm="blk.{i}.post_attention_norm",
                post_mlp_norm="blk.{i}.post_ffw_norm",
            ),
        ),
    ),
    hf=(HFForm("gemma", _hf, norm_offset=1.0), HFForm("gemma2", _hf2, GEMMA2_NAMES, norm_offset=1.0)),
)
