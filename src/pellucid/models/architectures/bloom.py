"""BLOOM (BigScience 2022): no positions but ALiBi, a norm on the embedding, q, k and v in one matrix head by head."""

from __future__ import annotations

import dataclasses

from pellucid.config import ModelConfig, RopeConfig
from pellucid.models.architectures.base import GGUF_NAMES, Architecture, GGUFForm, HFForm, Stored, TensorNames, stored
from pellucid.models.architectures.common import gguf_config, heads_of_three, hf_config, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata


def _gguf(metadata: Metadata) -> ModelConfig:
    """The converter has put q, k and v one below the other."""
    return gguf_config(
        metadata,
        norm="layer",
        positions="alibi",
        rope=RopeConfig(1.0, 0),
        gated_mlp=False,
        activation="gelu_tanh",
    )


def _hf(config: JSONConfig) -> ModelConfig:
    config.only("apply_residual_connection_post_layernorm", False)
    hidden_key = "hidden_size" if config.has("hidden_size") else "n_embed"
    return hf_config(
        config,
        hidden_key=hidden_key,
        heads_key="n_head" if config.has("n_head") else "num_attention_heads",
        layers_key="n_layer" if config.has("n_layer") else "num_hidden_layers",
        name="bloom",
        intermediate_size=4 * config.integer(hidden_key),
        # ALiBi has no length of its own; the models were trained on 2,048 positions.
        context_length=config.integer("seq_length", default=2048, low=2, high=1 << 30),
        norm_eps=config.number("layer_norm_epsilon", default=1e-5, high=1.0),
        rope=RopeConfig(1.0, 0),
        positions="alibi",
        norm="layer",
        activation="gelu_tanh",
        gated_mlp=False,
        tie_word_embeddings=tied(config, True),
    )


ARCHITECTURE = Architecture(
    gguf=(
        GGUFForm(
            "bloom",
            _gguf,
            dataclasses.replace(
                GGUF_NAMES,
                embedding_norm="token_embd_norm",
                qkv=stored("blk.{i}.attn_qkv"),
                gate_up=stored("blk.{i}.ffn_up"),
            ),
        ),
    ),
    hf=(
        HFForm(
            "bloom",
            _hf,
            TensorNames(
                embedding="word_embeddings",
                embedding_norm="word_embeddings_layernorm",
                final_norm="ln_f",
                head="lm_head",
                attention_norm="h.{i}.input_layernorm",
                qkv=(Stored("h.{i}.self_attention.query_key_value", heads_of_three),),
                attention_output=Stored("h.{i}.self_attention.dense"),
                mlp_norm="h.{i}.post_attention_layernorm",
                gate_up=stored("h.{i}.mlp.dense_h_to_4h"),
                down=Stored("h.{i}.mlp.dense_4h_to_h"),
            ),
            prefixes=("transformer.",),
        ),
    ),
)
