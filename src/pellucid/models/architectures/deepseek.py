"""DeepSeek-V2 and V3 (DeepSeek-AI 2024): multi-head latent attention, many small experts chosen by groups, and a
shared one; the first layers have a plain MLP."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from pellucid.config import ExpertsConfig, LatentConfig, ModelConfig
from pellucid.errors import shown
from pellucid.models.architectures.base import (
    GGUF_EXPERTS,
    GGUF_NAMES,
    HF_NAMES,
    Architecture,
    ExpertNames,
    GGUFForm,
    HFForm,
    LatentNames,
    Stored,
    stored,
)
from pellucid.models.architectures.common import gguf_config, gguf_experts, hf_config, hf_rope, score_factor, tied
from pellucid.models.architectures.keys import JSONConfig, Metadata

_MLP, _ATTENTION = "layers.{i}.mlp.", "layers.{i}.self_attn."


def _gguf(metadata: Metadata) -> ModelConfig:
    """Files of two ages: the newer ones have the matrices of keys and values apart and count one KV head."""
    rank, rope_dim = metadata.integer("attention.kv_lora_rank"), metadata.integer("rope.dimension_count", high=1024)
    apart = "_mla" if metadata.has("attention.key_length_mla") else ""
    latent = LatentConfig(
        query_rank=metadata.integer("attention.q_lora_rank", default=0, low=0),
        rank=rank,
        nope_dim=metadata.integer("attention.key_length" + apart, low=rope_dim + 1, high=2048) - rope_dim,
        rope_dim=rope_dim,
        value_dim=metadata.integer("attention.value_length" + apart, high=1024),
    )
    layers = metadata.integer("block_count", high=1024)
    first = metadata.integer("leading_dense_block_count", default=0, low=0)
    count = metadata.integer("expert_count", high=4096)
    is_sigmoid = metadata.integer("expert_gating_func", default=1, high=2) == 2
    groups = metadata.integer("expert_group_count", default=1, high=count)
    inner = metadata.integer("expert_feed_forward_length")
    experts = gguf_experts(
        metadata,
        scores="sigmoid" if is_sigmoid else "softmax",
        normalize=metadata.flag("expert_weights_norm", default=False),
        scale=metadata.number("expert_weights_scale", default=1.0),
        num_groups=groups,
        num_chosen_groups=metadata.integer("expert_group_used_count", default=1, high=groups),
        group_score="top2" if is_sigmoid else "max",
        shared_intermediate_size=inner * metadata.integer("expert_shared_count", default=0, low=0, high=1024),
        dense_layers=tuple(layer < first for layer in range(layers)),
    )
    common = gguf_config(metadata, head_dim=rope_dim + rank, latent=latent, experts=experts)
    scaling, factor = common.rope.scaling, 1.0
    if scaling is not None and scaling.kind == "yarn":
        # The multiplier stands for both of DeepSeek's: they cancel on the angles and square on the scores.
        if metadata.has("rope.scaling.yarn_log_multiplier"):
            factor = (metadata.number("rope.scaling.yarn_log_multiplier") * math.log(scaling.factor) + 1.0) ** 2
        scaling = dataclasses.replace(scaling, attention_factor=1.0)
    return dataclasses.replace(
        common,
        rope=dataclasses.replace(common.rope, scaling=scaling),
        attention_scale=latent.key_dim**-0.5 * factor,
        num_kv_heads=1,
        head_dim=latent.rope_dim + latent.rank,
    )


def _hf(config: JSONConfig, **routing: Any) -> ModelConfig:
    latent = LatentConfig(
        query_rank=config.integer("q_lora_rank", default=0, low=0),
        rank=config.integer("kv_lora_rank"),
        nope_dim=config.integer("qk_nope_head_dim", high=1024),
        rope_dim=config.integer("qk_rope_head_dim", high=1024),
        value_dim=config.integer("v_head_dim", high=1024),
    )
    layers = config.integer("num_hidden_layers", high=1024)
    count = config.integer("n_routed_experts", high=4096)
    inner = config.integer("moe_intermediate_size")
    first = config.integer("first_k_dense_replace", default=0, low=0)
    step = config.integer("moe_layer_freq", default=1, high=1024)
    groups = config.integer("n_group", default=1, high=count)
    common = hf_config(
        config,
        head_dim=latent.rope_dim + latent.rank,
        rope=hf_rope(config, latent.rope_dim, 10000.0),
        attention_scale=latent.key_dim**-0.5
        * score_factor(config.section("rope_parameters") or config.section("rope_scaling")),
        latent=latent,
        experts=ExpertsConfig(
            num_experts=count,
            num_chosen=config.integer("num_experts_per_tok", high=count),
            intermediate_size=inner,
            normalize=config.flag("norm_topk_prob", default=False),
            scale=config.number("routed_scaling_factor", default=1.0),
            num_groups=groups,
            num_chosen_groups=config.integer("topk_group", default=1, high=groups),
            shared_intermediate_size=inner * config.integer("n_shared_experts", default=0, low=0, high=1024),
            dense_layers=tuple(layer < first or layer % step != 0 for layer in range(layers)),
            **routing,
        ),
        tie_word_embeddings=tied(config, False),
    )
    # The cache holds one key [rotated part; latent] for all heads.
    return dataclasses.replace(common, num_kv_heads=1)


def _hf_v2(config: JSONConfig) -> ModelConfig:
    method = config.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise config.unsupported(f"topk_method is {shown(method)}, but only greedy and group_limited_greedy are known")
    model = _hf(config)
    assert model.experts is not None
    if method == "greedy":
        whole = dataclasses.replace(model.experts, num_groups=1, num_chosen_groups=1)
        return dataclasses.replace(model, experts=whole)
    return model


def _hf_v3(config: JSONConfig) -> ModelConfig:
    return _hf(config, scores="sigmoid", group_score="top2")


_NAMES = dataclasses.replace(
    HF_NAMES,
    # A layer after the last guesses the next token but one (DeepSeek-V3, section 2.2), which nothing here asks for.
    ignored=(*HF_NAMES.ignored, r"layers\.{n}\..*"),
    latent=LatentNames(
        query_down=Stored(_ATTENTION + "q_a_proj"),
        query_norm=_ATTENTION + "q_a_layernorm",
        query_up=Stored(_ATTENTION + "q_b_proj"),
        query=Stored(_ATTENTION + "q_proj"),
        key_value_down=Stored(_ATTENTION + "kv_a_proj_with_mqa"),
        key_value_norm=_ATTENTION + "kv_a_layernorm",
        key_value_up=Stored(_ATTENTION + "kv_b_proj"),
    ),
    experts=ExpertNames(
        router=Stored(_MLP + "gate"),
        gate_up=stored(_MLP + "experts.{e}.gate_proj", _MLP + "experts.{e}.up_proj"),
        down=Stored(_MLP + "experts.{e}.down_proj"),
        score_bias=_MLP + "gate.e_score_correction_bias",
        shared_gate_up=stored(_MLP + "shared_experts.gate_proj", _MLP + "shared_experts.up_proj"),
        shared_down=Stored(_MLP + "shared_experts.down_proj"),
    ),
)

_GGUF_NAMES = dataclasses.replace(
    GGUF_NAMES,
    latent=LatentNames(
        query_down=Stored("blk.{i}.attn_q_a"),
        query_norm="blk.{i}.attn_q_a_norm",
        query_up=Stored("blk.{i}.attn_q_b"),
        query=Stored("blk.{i}.attn_q"),
        key_value_down=Stored("blk.{i}.attn_kv_a_mqa"),
        key_value_norm="blk.{i}.attn_kv_a_norm",
        key_value_up=Stored("blk.{i}.attn_kv_b"),
        key_up="blk.{i}.attn_k_b.weight",
        value_up="blk.{i}.attn_v_b.weight",
    ),
    experts=GGUF_EXPERTS,
)

ARCHITECTURE = Architecture(
    gguf=(GGUFForm("deepseek2", _gguf, _GGUF_NAMES),),
    hf=(HFForm("deepseek_v2", _hf_v2, _NAMES), HFForm("deepseek_v3", _hf_v3, _NAMES)),
)
