"""Gemma 3 (Gemma team 2025): norms before and after each branch, q/k norm, five sliding layers to one full one."""

from __future__ import annotations

import dataclasses

from pellucid.config import ModelConfig, RopeConfig
from pellucid.models.architectures.base import HF_NAMES, Architecture, GGUFForm, HFForm, TensorNames
from pellucid.models.architectures.common import gguf_config, hf_activation, hf_config, hf_rope, sliding_layers, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata

SLIDING_PERIOD = 6
"""Every sixth layer sees the whole past."""
SLIDING_THETA = 10000.0
"""RoPE base of the sliding layers."""


def _gguf(metadata: Metadata) -> ModelConfig:
    common = gguf_config(metadata, rope_theta=1000000.0, head_dim=256)
    layers, hidden, head_dim = common.num_layers, common.hidden_size, common.head_dim
    period = metadata.integer("attention.sliding_window_pattern", default=SLIDING_PERIOD, high=1024)
    return dataclasses.replace(
        common,
        rope_sliding=RopeConfig(
            theta=metadata.number("rope.freq_base_swa", default=SLIDING_THETA), dim=common.rope.dim
        ),
        activation="gelu_tanh",
        # The 27-billion model alone scales by hidden_size / heads; all others by head_dim.
        attention_scale=(hidden / common.num_heads if layers == 62 else head_dim) ** -0.5,
        embedding_scale=hidden**0.5,
        sliding_window=metadata.integer("attention.sliding_window", high=1 << 30),
        sliding_layers=tuple((layer + 1) % period != 0 for layer in range(layers)),
    )


def _hf(config: JSONConfig) -> ModelConfig:
    config.only("attn_logit_softcapping", None)
    config.only("final_logit_softcapping", None)
    layers = config.integer("num_hidden_layers", high=1024)
    head_dim = config.integer("head_dim", default=256, high=1024)
    period = config.integer("sliding_window_pattern", default=SLIDING_PERIOD, high=1024)
    sliding = RopeConfig(theta=config.number("rope_local_base_freq", default=SLIDING_THETA), dim=head_dim)
    parameters = config.section("rope_parameters")
    if parameters is not None and parameters.has("sliding_attention"):
        sliding = hf_rope(config, head_dim, SLIDING_THETA, "sliding_attention")
    return hf_config(
        config,
        head_dim=head_dim,
        rope=hf_rope(config, head_dim, 1000000.0, "full_attention"),
        rope_sliding=sliding,
        activation=hf_activation(config, "hidden_activation"),
        attention_scale=config.number("query_pre_attn_scalar", default=256.0) ** -0.5,
        embedding_scale=config.integer("hidden_size") ** 0.5,
        sliding_window=config.integer("sliding_window", default=4096, high=1 << 30),
        sliding_layers=sliding_layers(config, layers) or tuple((layer + 1) % period != 0 for layer in range(layers)),
        tie_word_embeddings=tied(config, True),
    )


ARCHITECTURE = Architecture(
    gguf=(
        GGUFForm(
            "gemma3",
            _gguf,
            TensorNames(
                q_norm="blk.{i}.attn_q_norm",
                k_norm="blk.{i}.attn_k_norm",
                post_attention_norm="blk.{i}.post_attention_norm",
                post_mlp_norm="blk.{i}.post_ffw_norm",
            ),
        ),
    ),
    hf=(
        HFForm(
            "gemma3_text",
            _hf,
            dataclasses.replace(
                HF_NAMES,
                q_norm="layers.{i}.self_attn.q_norm",
                k_norm="layers.{i}.self_attn.k_norm",
                post_attention_norm="layers.{i}.post_attention_layernorm",
                mlp_norm="layers.{i}.pre_feedforward_layernorm",
                post_mlp_norm="layers.{i}.post_feedforward_layernorm",
            ),
            norm_offset=1.0,
        ),
    ),
)
