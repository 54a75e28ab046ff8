"""BERT (Devlin et al. 2019): an encoder. Every token sees all others; it gives vectors, not next tokens."""

from __future__ import annotations

from typing import Any

from pellucid.config import ModelConfig, RopeConfig
from pellucid.models.architectures.base import Architecture, GGUFForm, HFForm, Stored, TensorNames, stored
from pellucid.models.architectures.common import gguf_config, gguf_pooling, hf_config
from pellucid.models.architectures.keys import JSONConfig, Metadata

_LAYER = "encoder.layer.{i}."


_SWITCHES: dict[str, Any] = {
    "causal": False,
    "norm": "layer",
    "block": "post_norm",
    "positions": "learned",
    "rope": RopeConfig(1.0, 0),
    "gated_mlp": False,
    "tie_word_embeddings": True,
}


def _hf(config: JSONConfig) -> ModelConfig:
    config.only("position_embedding_type", "absolute")
    config.only("is_decoder", False)
    return hf_config(config, pooling="mean", **_SWITCHES)


def _gguf(metadata: Metadata) -> ModelConfig:
    metadata.only("attention.causal", False)
    return gguf_config(metadata, activation="gelu", pooling=gguf_pooling(metadata, "mean"), **_SWITCHES)


ARCHITECTURE = Architecture(
    gguf=(
        GGUFForm(
            "bert",
            _gguf,
            TensorNames(
                position_embedding="position_embd",
                token_type_embedding="token_types",
                embedding_norm="token_embd_norm",
                final_norm=None,
                attention_norm="blk.{i}.attn_output_norm",
                mlp_norm="blk.{i}.layer_output_norm",
                gate_up=stored("blk.{i}.ffn_up"),
                ignored=(r"cls\..*",),
            ),
        ),
    ),
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
    ),
)
