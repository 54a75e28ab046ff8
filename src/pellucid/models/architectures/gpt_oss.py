"""gpt-oss (OpenAI 2025): attention sinks, a window on every other layer, experts with clamped SwiGLU and biases."""

from __future__ import annotations

import dataclasses

import numpy as np

from pellucid.config import ExpertsConfig, ModelConfig
from pellucid.models.architectures.base import HF_NAMES, Architecture, ExpertNames, HFForm, Int32Array, Stored
from pellucid.models.architectures.common import hf_config, sliding_layers, tied
from pellucid.models.architectures.keys import JSONConfig


def _gates_then_ups(config: ModelConfig) -> Int32Array:
    """Gate and up alternate in the file."""
    assert config.experts is not None
    rows = np.arange(2 * config.experts.intermediate_size, dtype=np.int32)
    return np.concatenate([rows[::2], rows[1::2]])


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
    )
)
