"""StableLM (Bellagente et al. 2024): LayerNorm, a quarter of each head rotated, SwiGLU; parallel branches in some."""

from __future__ import annotations

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import GGUF_NAMES, Architecture, GGUFForm, HFForm
from pellucid.models.architectures.common import gguf_config, hf_config, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata


def _gguf(metadata: Metadata) -> ModelConfig:
    is_parallel = metadata.flag("use_parallel_residual", default=False)
    return gguf_config(metadata, norm="layer", block="parallel" if is_parallel else "sequential")


def _hf(config: JSONConfig) -> ModelConfig:
    config.only("qk_layernorm", False)
    return hf_config(
        config,
        norm="layer",
        block="parallel" if config.flag("use_parallel_residual", default=False) else "sequential",
        tie_word_embeddings=tied(config, False),
    )


ARCHITECTURE = Architecture(
    gguf=(GGUFForm("stablelm", _gguf, GGUF_NAMES),),
    hf=(HFForm("stablelm", _hf),),
)
