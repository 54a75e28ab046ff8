"""XGLM (Lin et al. 2021): sinusoidal positions from row 2, scaled embeddings, LayerNorm, one GELU MLP."""

from __future__ import annotations

from pellucid.config import ModelConfig, RopeConfig
from pellucid.models.architectures.base import Architecture, HFForm, Stored, TensorNames, stored
from pellucid.models.architectures.common import hf_activation, hf_config, tied
from pellucid.models.architectures.keys import JSONConfig


def _hf(config: JSONConfig) -> ModelConfig:
    is_scaled = config.flag("scale_embedding", default=True)
    return hf_config(
        config,
        hidden_key="d_model",
        heads_key="attention_heads",
        layers_key="num_layers",
        name="xglm",
        intermediate_size=config.integer("ffn_dim"),
        context_length=config.integer("max_position_embeddings", low=2, high=1 << 30),
        norm_eps=1e-5,
        rope=RopeConfig(1.0, 0),
        positions="sinusoidal",
        position_offset=2,
        norm="layer",
        activation=hf_activation(config, "activation_function"),
        gated_mlp=False,
        embedding_scale=config.integer("d_model") ** 0.5 if is_scaled else 1.0,
        tie_word_embeddings=tied(config, True),
    )


ARCHITECTURE = Architecture(
    hf=(
        HFForm(
            "xglm",
            _hf,
            TensorNames(
                embedding="embed_tokens",
                final_norm="layer_norm",
                head="lm_head",
                attention_norm="layers.{i}.self_attn_layer_norm",
                qkv=stored("layers.{i}.self_attn.q_proj", "layers.{i}.self_attn.k_proj", "layers.{i}.self_attn.v_proj"),
                attention_output=Stored("layers.{i}.self_attn.out_proj"),
                mlp_norm="layers.{i}.final_layer_norm",
                gate_up=stored("layers.{i}.fc1"),
                down=Stored("layers.{i}.fc2"),
                ignored=(r"embed_positions\.weights",),
            ),
        ),
    )
)
