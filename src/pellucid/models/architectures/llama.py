"""Llama 1 to 3, SmolLM2 and others of the same shape (Touvron et al. 2023): pre-norm, GQA, RoPE, SwiGLU."""

from __future__ import annotations

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import Architecture, GGUFForm, HFForm, TensorNames
from pellucid.models.architectures.common import gguf_config, hf_config, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata


def _gguf(metadata: Metadata) -> ModelConfig:
    if metadata.integer("expert_count", default=0, low=0):
        raise metadata.unsupported("llama.expert_count is not 0, but mixtures of experts are not supported yet")
    for key in ("attention.sliding_window", "logit_scale"):
        if metadata.get(key) not in (None, 0):
            raise metadata.unsupported(f"llama.{key} is set, which is not supported yet in this family")
    return gguf_config(metadata)


def _hf(config: JSONConfig) -> ModelConfig:
    return hf_config(config, tie_word_embeddings=tied(config, False))


ARCHITECTURE = Architecture(
    gguf=(GGUFForm("llama", _gguf, TensorNames(ignored=(r"rope_freqs\.weight",)), interleaved_rope_rows=True),),
    hf=(HFForm("llama", _hf),),
)
