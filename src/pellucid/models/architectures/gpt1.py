"""GPT-1 (Radford et al. 2018): learned positions, LayerNorm after each sum, none at the end."""

from __future__ import annotations

from pellucid.config import ModelConfig, RopeConfig
from pellucid.models.architectures.base import Architecture, HFForm, Stored, TensorNames
from pellucid.models.architectures.common import hf_config, tied
from pellucid.models.architectures.keys import JSONConfig


def _hf(config: JSONConfig) -> ModelConfig:
    config.only("afn", "gelu")
    return hf_config(
        config,
        hidden_key="n_embd",
        heads_key="n_head",
        layers_key="n_layer",
        name="openai-gpt",
        intermediate_size=4 * config.integer("n_embd"),
        context_length=config.integer("n_positions", low=2, high=1 << 30),
        norm_eps=config.number("layer_norm_epsilon", default=1e-5, high=1.0),
        rope=RopeConfig(1.0, 0),
        positions="learned",
        norm="layer",
        block="post_norm",
        activation="gelu_tanh",  # what its code calls gelu
        gated_mlp=False,
        tie_word_embeddings=tied(config, True),
    )


ARCHITECTURE = Architecture(
    hf=(
        HFForm(
            "openai-gpt",
            _hf,
            TensorNames(
                embedding="tokens_embed",
                position_embedding="positions_embed",
                final_norm=None,
                head="lm_head",
                attention_norm="h.{i}.ln_1",
                qkv=(Stored("h.{i}.attn.c_attn", transposed=True),),
                attention_output=Stored("h.{i}.attn.c_proj", transposed=True),
                mlp_norm="h.{i}.ln_2",
                gate_up=(Stored("h.{i}.mlp.c_fc", transposed=True),),
                down=Stored("h.{i}.mlp.c_proj", transposed=True),
                ignored=(r"h\.\d+\.attn\.bias", "position_ids"),
            ),
            prefixes=("transformer.",),
        ),
    )
)
