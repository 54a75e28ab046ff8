"""`ModelConfig` → the metadata by which a GGUF file says the same, in llama.cpp's keys.

Not every configuration has a spelling there. What was written is read back, and must be what was meant.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pellucid.config import LatentConfig, ModelConfig, RopeConfig, RopeScaling
from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.kernels.backend import Float32Array
from pellucid.models.architectures.base import GGUFForm
from pellucid.models.architectures.keys import Metadata
from pellucid.models.architectures.registry import GGUF_FAMILIES, find_gguf
from pellucid.models.rotary import inverse_frequencies

_NAMES = {
    "mistral": "llama",
    "mixtral": "llama",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
    "gpt_neox": "gptneox",
    "cohere": "command-r",
    "gpt_oss": "gpt-oss",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
}
"""model_type → general.architecture, where they differ."""
_POOLINGS = {"mean": 1, "cls": 2, "last": 3}
_FROM_TENSORS = ("architecture", "name", "vocab_size", "weight_bytes", "weight_type", "qk_norm", "post_norms")
_NOT_SAID = (*_FROM_TENSORS, "tie_word_embeddings", "can_shorten_embeddings", "embedding_sizes")
"""Fields that no key tells."""


def gguf_form(config: ModelConfig) -> GGUFForm:
    """The family's form in GGUF files. Raises `UnsupportedModelError` where it has none."""
    name = _NAMES.get(config.architecture, config.architecture)
    if name not in GGUF_FAMILIES:
        raise UnsupportedModelError(f"{config.architecture} is not written as GGUF: the folder itself can be served")
    return find_gguf(name, "OUT")


def gguf_keys(config: ModelConfig, form: GGUFForm) -> tuple[dict[str, Any], dict[str, Float32Array]]:
    """Metadata, and the tensors that belong to it: the factors of llama3's and longrope's scalings.

    Raises `UnsupportedModelError` for a configuration that GGUF's keys cannot say.
    """
    own = {key: value for key, value in _own_keys(config).items() if value is not None}
    metadata = {"general.architecture": form.name, "general.name": config.name}
    metadata |= {f"{form.name}.{key}": value for key, value in own.items()}
    tensors, rope = _rope_tensors(config)
    _check(dataclasses.replace(config, rope=rope), form, metadata, has_factors=bool(tensors))
    return metadata, tensors


def _own_keys(c: ModelConfig) -> dict[str, Any]:
    norm = "attention.layer_norm_epsilon" if c.norm == "layer" else "attention.layer_norm_rms_epsilon"
    keys: dict[str, Any] = {
        "block_count": c.num_layers,
        "context_length": c.context_length,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_heads,
        "attention.head_count_kv": c.num_kv_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        norm: c.norm_eps,
        "attention.sliding_window": c.sliding_window,
        "attn_logit_softcapping": c.attention_softcap,
        "final_logit_softcapping": c.final_softcap,
        "attention.causal": None if c.causal else False,
        "pooling_type": None if c.causal and c.pooling == "last" else _POOLINGS[c.pooling],
    }
    if c.architecture == "granite":
        keys |= {"attention.scale": c.attention_scale, "embedding_scale": c.embedding_scale}
        keys |= {"residual_scale": c.residual_scale, "logit_scale": 1.0 / c.logits_scale}
    elif c.architecture.startswith("cohere"):
        keys["logit_scale"] = c.logits_scale
    elif c.architecture in ("stablelm", "gpt_neox"):
        keys["use_parallel_residual"] = c.block == "parallel"
    if c.experts is not None:
        keys |= {
            "expert_count": c.experts.num_experts,
            "expert_used_count": c.experts.num_chosen,
            "expert_feed_forward_length": c.experts.intermediate_size,
        }
        if c.architecture == "mixtral":
            keys["feed_forward_length"] = c.experts.intermediate_size
    keys |= _rope_keys(c) if c.positions == "rope" else {}
    return keys | (_latent_keys(c, c.latent) if c.latent is not None else {})


def _latent_keys(c: ModelConfig, latent: LatentConfig) -> dict[str, Any]:
    """DeepSeek's: the attention of one KV head, what it is taken apart into, and how experts are chosen."""
    keys: dict[str, Any] = {
        "attention.q_lora_rank": latent.query_rank or None,
        "attention.kv_lora_rank": latent.rank,
        "attention.value_length": latent.rank,
        "attention.key_length_mla": latent.key_dim,
        "attention.value_length_mla": latent.value_dim,
    }
    scaling, experts = c.rope.scaling, c.experts
    if scaling is not None and scaling.kind == "yarn":
        # llama.cpp takes its 0.1 ln(s) + 1 off the angles again, and puts the multiplier's square on the scores.
        keys["rope.scaling.attn_factor"] = None
        factor = math.sqrt(c.attention_scale * math.sqrt(latent.key_dim)) - 1.0
        keys["rope.scaling.yarn_log_multiplier"] = factor / math.log(scaling.factor) if factor > 1e-9 else None
    if experts is not None:
        keys |= {
            "leading_dense_block_count": sum(experts.dense_layers),
            "expert_shared_count": experts.shared_intermediate_size // experts.intermediate_size,
            "expert_weights_scale": experts.scale,
            "expert_weights_norm": experts.normalize,
            "expert_gating_func": 2 if experts.scores == "sigmoid" else 1,
            "expert_group_count": experts.num_groups if experts.num_groups > 1 else None,
            "expert_group_used_count": experts.num_chosen_groups if experts.num_groups > 1 else None,
        }
    return keys


def _rope_keys(c: ModelConfig) -> dict[str, Any]:
    keys: dict[str, Any] = {"rope.freq_base": c.rope.theta, "rope.dimension_count": c.rope.dim}
    if c.rope_sliding is not None:
        keys["rope.freq_base_swa"] = c.rope_sliding.theta
    scaling = c.rope.scaling
    if scaling is None:
        return keys
    if scaling.kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": scaling.kind, "rope.scaling.factor": scaling.factor}
    if scaling.kind == "yarn":
        keys |= {
            "rope.scaling.original_context_length": scaling.original_context,
            "rope.scaling.yarn_beta_fast": scaling.beta_fast,
            "rope.scaling.yarn_beta_slow": scaling.beta_slow,
            # llama.cpp multiplies by Peng et al.'s 0.1 ln(s) + 1 itself.
            "rope.scaling.attn_factor": scaling.attention_factor / (0.1 * math.log(scaling.factor) + 1.0),
        }
    if scaling.kind == "longrope":
        keys["rope.scaling.original_context_length"] = scaling.original_context
        keys["rope.scaling.attn_factor"] = scaling.attention_factor
    return keys


def _rope_tensors(config: ModelConfig) -> tuple[dict[str, Float32Array], RopeConfig]:
    """The tensors of a scaling, and the rotary parameters as they are read of a file that has them."""
    rope, scaling = config.rope, config.rope.scaling
    if scaling is None:
        return {}, rope
    if scaling.kind == "llama3":
        plain = inverse_frequencies(dataclasses.replace(rope, scaling=None))
        divisors = plain / inverse_frequencies(rope)
        read = RopeScaling("divisors", factors=tuple(float(d) for d in divisors))
        return {"rope_freqs.weight": divisors}, dataclasses.replace(rope, scaling=read)
    if scaling.kind == "longrope":
        return {
            "rope_factors_long.weight": np.asarray(scaling.factors, dtype=np.float32),
            "rope_factors_short.weight": np.asarray(scaling.short_factors, dtype=np.float32),
        }, rope
    return {}, rope


def _check(config: ModelConfig, form: GGUFForm, metadata: Mapping[str, Any], *, has_factors: bool) -> None:
    try:
        read = form.config(Metadata(metadata, form.name, "OUT"))
    except (ModelFileError, UnsupportedModelError) as error:
        raise UnsupportedModelError(f"{config.architecture} is not written as GGUF: {error}") from None
    if has_factors:
        read = dataclasses.replace(read, rope=dataclasses.replace(read.rope, scaling=config.rope.scaling))
    for f in dataclasses.fields(ModelConfig):
        meant, found = _plain(getattr(config, f.name)), _plain(getattr(read, f.name))
        if f.name not in _NOT_SAID and meant != found and not _is_close(meant, found):
            raise UnsupportedModelError(
                f"{config.architecture} is not written as GGUF: no key of {form.name} says its {f.name}; the folder "
                "itself can be served"
            )


def _plain(value: Any) -> Any:
    """A list of no True is as good as none."""
    if isinstance(value, tuple) and not any(value):
        return ()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(_plain(getattr(value, f.name)) for f in dataclasses.fields(value))
    return value


def _is_close(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return all(a == b or _is_close(a, b) for a, b in zip(one, other, strict=True))
    return isinstance(one, float) and isinstance(other, float) and math.isclose(one, other, rel_tol=1e-12)
