"""Phi-3 (Abdin et al. 2024): Llama's block with q, k and v in one matrix, gate and up in another, and longrope."""

from __future__ import annotations

import dataclasses

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import GGUF_NAMES, HF_NAMES, Architecture, GGUFForm, HFForm, stored
from pellucid.models.architectures.common import every_layer_slides, gguf_config, gguf_window, hf_config, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata


def _gguf(metadata: Metadata) -> ModelConfig:
    return gguf_config(metadata, **gguf_window(metadata))


def _hf(config: JSONConfig) -> ModelConfig:
    return hf_config(config, **every_layer_slides(config), tie_word_embeddings=tied(config, False))


ARCHITECTURE = Architecture(
    gguf=(
        GGUFForm(
            "phi3",
            _gguf,
            dataclasses.replace(GGUF_NAMES, qkv=stored("blk.{i}.attn_qkv"), gate_up=stored("blk.{i}.ffn_up")),
        ),
    ),
    hf=(
        HFForm(
            "phi3",
            _hf,
            dataclasses.replace(
                HF_NAMES, qkv=stored("layers.{i}.self_attn.qkv_proj"), gate_up=stored("layers.{i}.mlp.gate_up_proj")
            ),
        ),
    ),
)
