"""GPT-2 (Radford et al. 2019): learned positions, LayerNorm before each branch, one GELU MLP, biases everywhere."""

from __future__ import annotations

from pellucid.config import ModelConfig, RopeConfig
from pellucid.models.architectures.base import Architecture, GGUFForm, HFForm, Stored, TensorNames, stored
from pellucid.models.architectures.common import gguf_config, hf_activation, hf_config, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata


def _gguf(metadata: Metadata) -> ModelConfig:
    return gguf_config(
        metadata, norm="layer", positions="learned", gated_mlp=False, activation="gelu_tanh", rope=RopeConfig(1.0, 0)
    )


def _hf(config: JSONConfig) -> ModelConfig:
    config.only("scale_attn_weights", True)
    config.only("scale_attn_by_inverse_layer_idx", False)
    return hf_config(
        config,
        hidden_key="n_embd",
        heads_key="n_head",
        layers_key="n_layer",
        name="gpt2",
        intermediate_size=config.integer("n_inner", default=4 * config.integer("n_embd")),
        context_length=config.integer("n_positions", low=2, high=1 << 30),
        norm_eps=config.number("layer_norm_epsilon", default=1e-5, high=1.0),
        rope=RopeConfig(1.0, 0),
        positions="learned",
        norm="layer",
        activation=hf_activation(config, "activation_function"),
        gated_mlp=False,
        tie_word_embeddings=tied(config, True),
    )


ARCHITECTURE = Architecture(
    gguf=(
        GGUFForm(
            "gpt2",
            _gguf,
            TensorNames(
                position_embedding="position_embd",
                qkv=stored("blk.{i}.attn_qkv"),
                gate_up=stored("blk.{i}.ffn_up"),
            ),
        ),
    ),
    hf=(
        HFForm(
            "gpt2",
            _hf,
            TensorNames(
                embedding="wte",
                position_embedding="wpe",
                final_norm="ln_f",
                head="lm_head",
                attention_norm="h.{i}.ln_1",
                qkv=(Stored("h.{i}.attn.c_attn", transposed=True),),
                attention_output=Stored("h.{i}.attn.c_proj", transposed=True),
                mlp_norm="h.{i}.ln_2",
                gate_up=(Stored("h.{i}.mlp.c_fc", transposed=True),),
                down=Stored("h.{i}.mlp.c_proj", transposed=True),
                ignored=(r"h\.\d+\.attn\.(masked_)?bias",),
            ),
            prefixes=("transformer.",),
        ),
    ),
)
