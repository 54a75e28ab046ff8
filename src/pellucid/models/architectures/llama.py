"""Llama 1 to 3, SmolLM2 and others of the same shape (Touvron et al. 2023): pre-norm, GQA, RoPE, SwiGLU."""

from __future__ import annotations

from pellucid.config import ModelConfig, RopeConfig
from pellucid.models.architectures.base import Architecture, Metadata, TensorNames, linear_rope_factor


def _config(metadata: Metadata) -> ModelConfig:
    heads = metadata.integer("attention.head_count", high=1024)
    hidden = metadata.integer("embedding_length")
    head_dim = metadata.integer("attention.key_length", default=hidden // heads, high=1024)
    if metadata.integer("expert_count", default=0, low=0):
        raise metadata.unsupported("llama.expert_count is not 0, but mixtures of experts are not supported yet")
    return ModelConfig(
        architecture="llama",
        name=metadata.text("general.name", "llama"),
        vocab_size=0,  # the rows of the embedding decide; see loading.py
        hidden_size=hidden,
        num_layers=metadata.integer("block_count", high=1024),
        num_heads=heads,
        num_kv_heads=metadata.integer("attention.head_count_kv", default=heads, high=1024),
        head_dim=head_dim,
        intermediate_size=metadata.integer("feed_forward_length"),
        context_length=metadata.integer("context_length", high=1 << 30),
        norm_eps=metadata.number("attention.layer_norm_rms_epsilon", high=1.0),
        rope=RopeConfig(
            theta=metadata.number("rope.freq_base", default=10000.0),
            dim=metadata.integer("rope.dimension_count", default=head_dim, high=1024),
            linear_factor=linear_rope_factor(metadata),
        ),
    )


ARCHITECTURE = Architecture(
    gguf_name="llama",
    config=_config,
    tensors=TensorNames(ignored=("rope_freqs",)),
    interleaved_rope_rows=True,
)
