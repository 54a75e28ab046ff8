"""SmolLM3 (Hugging Face 2025): Llama's block; every fourth layer rotates nothing (NoPE, Yang et al. 2025)."""

from __future__ import annotations

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import GGUF_NAMES, Architecture, GGUFForm, HFForm
from pellucid.models.architectures.common import gguf_config, hf_config, sliding_layers, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata


def _gguf(metadata: Metadata) -> ModelConfig:
    layers = metadata.integer("block_count", high=1024)
    return gguf_config(metadata, rope_layers=tuple((layer + 1) % 4 != 0 for layer in range(layers)))


def _hf(config: JSONConfig) -> ModelConfig:
    layers = config.integer("num_hidden_layers", high=1024)
    if config.has("no_rope_layers"):  # 1 where a layer rotates, in spite of the name
        rope_layers = tuple(value != 0 for value in config.numbers("no_rope_layers", layers))
    else:
        step = config.integer("no_rope_layer_interval", default=4, high=1024)
        rope_layers = tuple((layer + 1) % step != 0 for layer in range(layers))
    has_window = config.flag("use_sliding_window", default=False) and config.has("sliding_window")
    return hf_config(
        config,
        rope_theta=2000000.0,
        rope_layers=rope_layers,
        sliding_window=config.integer("sliding_window", high=1 << 30) if has_window else None,
        sliding_layers=sliding_layers(config, layers) if has_window else (),
        tie_word_embeddings=tied(config, True),
    )


ARCHITECTURE = Architecture(
    gguf=(GGUFForm("smollm3", _gguf, GGUF_NAMES, interleaved_rope_rows=True),),
    hf=(HFForm("smollm3", _hf),),
)
