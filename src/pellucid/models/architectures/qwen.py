"""Qwen 2 and 2.5 (biases on q, k, v), Qwen 3 (q/k norm in their place) and its mixture of experts (Qwen team 2025)."""

from __future__ import annotations

import dataclasses
from typing import Any

from pellucid.config import ExpertsConfig, ModelConfig
from pellucid.models.architectures.base import (
    GGUF_EXPERTS,
    GGUF_NAMES,
    HF_NAMES,
    Architecture,
    ExpertNames,
    GGUFForm,
    HFForm,
    Stored,
    stored,
)
from pellucid.models.architectures.common import gguf_config, gguf_experts, hf_config, sliding_layers, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata

_QK_NORMS = dataclasses.replace(HF_NAMES, q_norm="layers.{i}.self_attn.q_norm", k_norm="layers.{i}.self_attn.k_norm")


_GGUF_QK_NORMS = dataclasses.replace(GGUF_NAMES, q_norm="blk.{i}.attn_q_norm", k_norm="blk.{i}.attn_k_norm")


def _gguf(metadata: Metadata) -> ModelConfig:
    return gguf_config(metadata)


def _gguf_experts(metadata: Metadata) -> ModelConfig:
    return gguf_config(metadata, experts=gguf_experts(metadata, normalize=True))


def _window(config: JSONConfig) -> dict[str, Any]:
    """The layers from max_window_layers on slide, where use_sliding_window says so."""
    if not config.flag("use_sliding_window", default=False) or not config.has("sliding_window"):
        return {}
    layers = config.integer("num_hidden_layers", high=1024)
    first = config.integer("max_window_layers", default=layers, low=0)
    return {
        "sliding_window": config.integer("sliding_window", high=1 << 30),
        "sliding_layers": sliding_layers(config, layers) or tuple(layer >= first for layer in range(layers)),
    }


def _hf(config: JSONConfig) -> ModelConfig:
    return hf_config(config, **_window(config), tie_word_embeddings=tied(config, False))


def _hf_experts(config: JSONConfig) -> ModelConfig:
    layers = config.integer("num_hidden_layers", high=1024)
    key = "num_experts" if config.has("num_experts") else "num_local_experts"
    count = config.integer(key, high=4096)
    plain = {int(layer) for layer in config.numbers("mlp_only_layers")} if config.has("mlp_only_layers") else set()
    step = config.integer("decoder_sparse_step", default=1, high=1024)
    return hf_config(
        config,
        **_window(config),
        tie_word_embeddings=tied(config, False),
        experts=ExpertsConfig(
            num_experts=count,
            num_chosen=config.integer("num_experts_per_tok", high=count),
            intermediate_size=config.integer("moe_intermediate_size"),
            normalize=config.flag("norm_topk_prob", default=False),
            dense_layers=tuple(layer in plain or (layer + 1) % step != 0 for layer in range(layers)),
        ),
    )


ARCHITECTURE = Architecture(
    gguf=(
        GGUFForm("qwen2", _gguf, GGUF_NAMES),
        GGUFForm("qwen3", _gguf, _GGUF_QK_NORMS),
        GGUFForm("qwen3moe", _gguf_experts, dataclasses.replace(_GGUF_QK_NORMS, experts=GGUF_EXPERTS)),
    ),
    hf=(
        HFForm("qwen2", _hf),
        HFForm("qwen3", _hf, _QK_NORMS),
        HFForm(
            "qwen3_moe",
            _hf_experts,
            dataclasses.replace(
                _QK_NORMS,
                experts=ExpertNames(
                    router=Stored("layers.{i}.mlp.gate"),
                    gate_up=stored("layers.{i}.mlp.experts.{e}.gate_proj", "layers.{i}.mlp.experts.{e}.up_proj"),
                    down=Stored("layers.{i}.mlp.experts.{e}.down_proj"),
                ),
            ),
        ),
    ),
)
