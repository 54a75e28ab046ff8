"""GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023): attention and MLP side by side, a part of each head
rotated, q, k and v in one matrix head by head."""

from __future__ import annotations

import dataclasses

from pellucid.config import ModelConfig
from pellucid.models.architectures.base import GGUF_NAMES, Architecture, GGUFForm, HFForm, Stored, TensorNames, stored
from pellucid.models.architectures.common import gguf_config, heads_of_three, hf_config, hf_rope, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata


def _gguf(metadata: Metadata) -> ModelConfig:
    """The converter has put q, k and v one below the other."""
    return gguf_config(
        metadata,
        norm="layer",
        block="parallel" if metadata.flag("use_parallel_residual", default=True) else "sequential",
        gated_mlp=False,
        activation="gelu",
    )


def _hf(config: JSONConfig) -> ModelConfig:
    head_dim = config.integer("hidden_size") // config.integer("num_attention_heads", high=1024)
    base = config.number("rotary_emb_base", default=10000.0)
    rope = hf_rope(config, max(head_dim, 1), base)
    if rope.dim == head_dim and not config.has("partial_rotary_factor"):  # the older spelling
        parameters = config.section("rope_parameters")
        if parameters is None or not parameters.has("partial_rotary_factor"):
            rope = dataclasses.replace(rope, dim=int(head_dim * config.number("rotary_pct", default=0.25, high=1.0)))
    return hf_config(
        config,
        rope=rope,
        norm="layer",
        block="parallel" if config.flag("use_parallel_residual", default=True) else "sequential",
        gated_mlp=False,
        tie_word_embeddings=tied(config, False),
    )


ARCHITECTURE = Architecture(
    gguf=(
        GGUFForm(
            "gptneox",
            _gguf,
            dataclasses.replace(GGUF_NAMES, qkv=stored("blk.{i}.attn_qkv"), gate_up=stored("blk.{i}.ffn_up")),
        ),
    ),
    hf=(
        HFForm(
            "gpt_neox",
            _hf,
            TensorNames(
                embedding="embed_in",
                final_norm="final_layer_norm",
                head="embed_out",
                attention_norm="layers.{i}.input_layernorm",
                qkv=(Stored("layers.{i}.attention.query_key_value", heads_of_three),),
                attention_output=Stored("layers.{i}.attention.dense"),
                mlp_norm="layers.{i}.post_attention_layernorm",
                gate_up=stored("layers.{i}.mlp.dense_h_to_4h"),
                down=Stored("layers.{i}.mlp.dense_4h_to_h"),
                ignored=(r"layers\.\d+\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)",),
            ),
            prefixes=("gpt_neox.",),
        ),
    ),
)
