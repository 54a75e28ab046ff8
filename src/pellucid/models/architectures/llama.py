"""Llama 1 to 3, SmolLM2 and others of the same shape (Touvron et al. 2023): pre-norm, GQA, RoPE, SwiGLU."""

from __future__ import annotations

import dataclasses

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import GGUF_EXPERTS, GGUF_NAMES, Architecture, GGUFForm, HFForm
from pellucid.models.architectures.common import gguf_config, gguf_experts, gguf_window, hf_config, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata


def _gguf(metadata: Metadata) -> ModelConfig:
    """Mistral and Mixtral come under this name too."""
    if metadata.get("logit_scale") not in (None, 0):
        raise metadata.unsupported("llama.logit_scale is set, which is not supported in this family")
    experts = None
    if metadata.integer("expert_count", default=0, low=0, high=4096):
        experts = gguf_experts(metadata, "feed_forward_length", normalize=True)
    return gguf_config(metadata, **gguf_window(metadata), experts=experts)


def _hf(config: JSONConfig) -> ModelConfig:
    return hf_config(config, tie_word_embeddings=tied(config, False))


ARCHITECTURE = Architecture(
    gguf=(GGUFForm("llama", _gguf, dataclasses.replace(GGUF_NAMES, experts=GGUF_EXPERTS), interleaved_rope_rows=True),),
    hf=(HFForm("llama", _hf),),
)
