"""Gemma 3 (Gemma team 2025): norms before and after each branch, q/k norm, five sliding layers to one full one."""

from __future__ import annotations

import dataclasses

from pellucid.config import ModelConfig, RopeConfig
from pellucid.models.architectures.base import Architecture, Metadata, TensorNames, common_config

SLIDING_PERIOD = 6
"""Every sixth layer sees the whole past."""
SLIDING_THETA = 10000.0
"""RoPE base of the sliding layers."""


def _config(metadata: Metadata) -> ModelConfig:
    common = common_config(metadata, rope_theta=1000000.0, head_dim=256)
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


ARCHITECTURE = Architecture(
    gguf_name="gemma3",
    config=_config,
    tensors=TensorNames(
        q_norm="blk.{i}.attn_q_norm",
        k_norm="blk.{i}.attn_k_norm",
        post_attention_norm="blk.{i}.post_attention_norm",
        post_mlp_norm="blk.{i}.post_ffw_norm",
    ),
)
