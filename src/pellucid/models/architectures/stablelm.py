"""StableLM (Bellagente et al. 2024): LayerNorm, a quarter of each head rotated, SwiGLU; parallel branches in some."""

from __future__ import annotations

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import Architecture, HFForm
from pellucid.models.architectures.common import hf_config, tied
from pellucid.models.architectures.keys import JSONConfig


def _hf(config: JSONConfig) -> ModelConfig:
    config.only("qk_layernorm", False)
    return hf_config(
        config,
        norm="layer",
        block="parallel" if config.flag("use_parallel_residual", default=False) else "sequential",
        tie_word_embeddings=tied(config, False),
    )


ARCHITECTURE = Architecture(hf=(HFForm("stablelm", _hf),))
