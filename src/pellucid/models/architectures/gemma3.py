"""Gemma 3 (Gemma team 2025): norms before and after each branch, q/k norm, five sliding layers to one full one."""

from __future__ import annotations

from pellucid.config import ModelConfig, RopeConfig
from pellucid.models.architectures.base import Architecture, Metadata, TensorNames, linear_rope_factor

SLIDING_PERIOD = 6
"""Every sixth layer sees the whole past."""
SLIDING_THETA = 10000.0
"""RoPE base of the sliding layers."""


def _config(metadata: Metadata) -> ModelConfig:
    layers = metadata.integer("block_count", high=1024)
    hidden = metadata.integer("embedding_length")
    heads = metadata.integer("attention.head_count", high=1024)
    head_dim = metadata.integer("attention.key_length", default=256, high=1024)
    period = metadata.integer("attention.sliding_window_pattern", default=SLIDING_PERIOD, high=1024)
    return ModelConfig(
        architecture="gemma3",
        name=metadata.text("general.name", "gemma3"),
        vocab_size=0,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=metadata.integer("attention.head_count_kv", default=heads, high=1024),
        head_dim=head_dim,
        intermediate_size=metadata.integer("feed_forward_length"),
        context_length=metadata.integer("context_length", high=1 << 30),
        norm_eps=metadata.number("attention.layer_norm_rms_epsilon", high=1.0),
        rope=RopeConfig(
            theta=metadata.number("rope.freq_base", default=1000000.0),
            dim=head_dim,
            linear_factor=linear_rope_factor(metadata),
        ),
        rope_sliding=RopeConfig(theta=metadata.number("rope.freq_base_swa", default=SLIDING_THETA), dim=head_dim),
        activation="gelu_tanh",
        # The 27-billion model alone scales by hidden_size / heads; all others by head_dim.
        attention_scale=(hidden / heads if layers == 62 else head_dim) ** -0.5,
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
