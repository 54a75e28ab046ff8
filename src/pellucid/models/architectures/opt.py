"""OPT (Zhang et al. 2022): learned positions from row 2, LayerNorm, one ReLU MLP; the 350-million model normalises
after each branch and has an embedding narrower than its layers."""

from __future__ import annotations

from pellucid.config import ModelConfig, RopeConfig
from pellucid.models.architectures.base import Architecture, HFForm, Stored, TensorNames, stored
from pellucid.models.architectures.common import hf_activation, hf_config, tied
from pellucid.models.architectures.keys import JSONConfig


def _hf(config: JSONConfig) -> ModelConfig:
    config.only("enable_bias", True)
    config.only("layer_norm_elementwise_affine", True)
    config.only("_remove_final_layer_norm", False)
    hidden = config.integer("hidden_size")
    return hf_config(
        config,
        intermediate_size=config.integer("ffn_dim"),
        norm="layer",
        norm_eps=1e-5,
        block="sequential" if config.flag("do_layer_norm_before", default=True) else "post_norm",
        activation=hf_activation(config, "activation_function"),
        gated_mlp=False,
        positions="learned",
        position_offset=2,
        rope=RopeConfig(1.0, 0),
        embedding_size=config.integer("word_embed_proj_dim", default=hidden),
        tie_word_embeddings=tied(config, True),
    )


ARCHITECTURE = Architecture(
    hf=(
        HFForm(
            "opt",
            _hf,
            TensorNames(
                embedding="embed_tokens",
                position_embedding="embed_positions",
                project_in="project_in",
                project_out="project_out",
                final_norm="final_layer_norm",
                head="lm_head",
                attention_norm="layers.{i}.self_attn_layer_norm",
                qkv=stored("layers.{i}.self_attn.q_proj", "layers.{i}.self_attn.k_proj", "layers.{i}.self_attn.v_proj"),
                attention_output=Stored("layers.{i}.self_attn.out_proj"),
                mlp_norm="layers.{i}.final_layer_norm",
                gate_up=stored("layers.{i}.fc1"),
                down=Stored("layers.{i}.fc2"),
            ),
            prefixes=("model.decoder.", "decoder."),
        ),
    )
)
