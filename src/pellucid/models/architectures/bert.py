"""BERT (Devlin et al. 2019): an encoder. Every token sees all others; it gives vectors, not next tokens."""

from __future__ import annotations

from pellucid.config import ModelConfig, RopeConfig
from pellucid.models.architectures.base import Architecture, HFForm, Stored, TensorNames, stored
from pellucid.models.architectures.common import hf_config
from pellucid.models.architectures.keys import JSONConfig

_LAYER = "encoder.layer.{i}."


def _hf(config: JSONConfig) -> ModelConfig:
    config.only("position_embedding_type", "absolute")
    config.only("is_decoder", False)
    return hf_config(
        config,
        causal=False,
        pooling="mean",
        norm="layer",
        block="post_norm",
        positions="learned",
        rope=RopeConfig(1.0, 0),
        gated_mlp=False,
        tie_word_embeddings=True,
    )


ARCHITECTURE = Architecture(
    hf=(
        HFForm(
            "bert",
            _hf,
            TensorNames(
                embedding="embeddings.word_embeddings",
                position_embedding="embeddings.position_embeddings",
                token_type_embedding="embeddings.token_type_embeddings",
                embedding_norm="embeddings.LayerNorm",
                final_norm=None,
                head="cls.predictions.decoder",
                attention_norm=_LAYER + "attention.output.LayerNorm",
                qkv=stored(
                    _LAYER + "attention.self.query", _LAYER + "attention.self.key", _LAYER + "attention.self.value"
                ),
                attention_output=Stored(_LAYER + "attention.output.dense"),
                mlp_norm=_LAYER + "output.LayerNorm",
                gate_up=stored(_LAYER + "intermediate.dense"),
                down=Stored(_LAYER + "output.dense"),
                ignored=(r"embeddings\.position_ids", r"pooler\..*", r"cls\..*"),
            ),
            prefixes=("bert.",),
        ),
    )
)
