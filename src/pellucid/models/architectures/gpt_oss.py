"""gpt-oss (OpenAI 2025): attention sinks, a window on every other layer, experts with clamped SwiGLU and biases."""

from __future__ import annotations

import dataclasses

import numpy as np

from pellucid.config import ExpertsConfig, ModelConfig
from pellucid.models.architectures.base import (
    GGUF_EXPERTS,
    GGUF_NAMES,
    HF_NAMES,
    Architecture,
    ExpertNames,
    GGUFForm,
    HFForm,
    Int32Array,
    Stored,
)
from pellucid.models.architectures.common import gguf_config, gguf_experts, hf_config, sliding_layers, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata


def _gates_then_ups(config: ModelConfig) -> Int32Array:
    """Gate and up alternate in the file."""
    assert config.experts is not None
    rows = np.arange(2 * config.experts.intermediate_size, dtype=np.int32)
    return np.concatenate([rows[::2], rows[1::2]])


def _gguf(metadata: Metadata) -> ModelConfig:
    """The converter has put gates and ups apart."""
    common = gguf_config(
        metadata,
        rope_theta=150000.0,
        activation="swiglu_clamped",
        sliding_window=metadata.integer("attention.sliding_window", default=128, high=1 << 30),
        sliding_layers=tuple(layer % 2 == 0 for layer in range(metadata.integer("block_count", high=1024))),
        experts=gguf_experts(metadata, scores="softmax_of_chosen"),
    )
    scaling = common.rope.scaling
    if scaling is None or scaling.kind != "yarn":
        return common
    # No key says it, but the published models blend between broken pairs.
    exact = dataclasses.replace(common.rope, scaling=dataclasses.replace(scaling, truncate=False))
    return dataclasses.replace(common, rope=exact)


def _hf(config: JSONConfig) -> ModelConfig:
    config.only("swiglu_limit", 7.0)
    config.only("swiglu_alpha", 1.702)
    layers = config.integer("num_hidden_layers", high=1024)
    count = config.integer("num_local_experts", high=4096)
    return hf_config(
        config,
        rope_theta=150000.0,
        activation="swiglu_clamped",
        sliding_window=config.integer("sliding_window", default=128, high=1 << 30),
        sliding_layers=sliding_layers(config, layers) or tuple(layer % 2 == 0 for layer in range(layers)),
        experts=ExpertsConfig(
            num_experts=count,
            num_chosen=config.integer("num_experts_per_tok", default=min(4, count), high=count),
            intermediate_size=config.integer("intermediate_size"),
            scores="softmax_of_chosen",
        ),
        tie_word_embeddings=tied(config, False),
    )


_EXPERTS = "layers.{i}.mlp.experts."

ARCHITECTURE = Architecture(
    gguf=(
        GGUFForm(
            "gpt-oss",
            _gguf,
            dataclasses.replace(
                GGUF_NAMES,
                sinks="blk.{i}.attn_sinks.weight",
                mlp_norm="blk.{i}.post_attention_norm",
                experts=GGUF_EXPERTS,
            ),
        ),
    ),
    hf=(
        HFForm(
            "gpt_oss",
            _hf,
            dataclasses.replace(
                HF_NAMES,
                sinks="layers.{i}.self_attn.sinks",
                experts=ExpertNames(
                    router=Stored("layers.{i}.mlp.router"),
                    gate_up=(
                        Stored(
                            _EXPERTS + "gate_up_proj",
                            _gates_then_ups,
                            transposed=True,
                            stacked=True,
                            suffix="",
                            bias_suffix="_bias",
                        ),
                    ),
                    down=Stored(_EXPERTS + "down_proj", transposed=True, stacked=True, suffix="", bias_suffix="_bias"),
                ),
            ),
        ),
    ),
)
