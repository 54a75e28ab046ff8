"""Llama 1 to 3, SmolLM2 and others of the same shape (Touvron et al. 2023): pre-norm, GQA, RoPE, SwiGLU."""

from __future__ import annotations

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import Architecture, Metadata, TensorNames, common_config


def _config(metadata: Metadata) -> ModelConfig:
    if metadata.integer("expert_count", default=0, low=0):
        raise metadata.unsupported("llama.expert_count is not 0, but mixtures of experts are not supported yet")
    for key in ("attention.sliding_window", "logit_scale"):
        if metadata.values.get(f"llama.{key}") not in (None, 0):
            raise metadata.unsupported(f"llama.{key} is set, which is not supported yet in this family")
    return common_config(metadata, rope_theta=10000.0)


ARCHITECTURE = Architecture(
    gguf_name="llama",
    config=_config,
    tensors=TensorNames(ignored=("rope_freqs",)),
    interleaved_rope_rows=True,
)
