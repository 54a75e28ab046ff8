"""What the families share: the usual keys of both formats, rotary scalings, and orders of rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.config import Activation, ExpertsConfig, ModelConfig, RopeConfig, RopeScaling
from pellucid.errors import shown
from pellucid.models.architectures.keys import JSONConfig, Keys, Metadata
from pellucid.pooling_params import Pooling

_HF_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def gguf_config(
    metadata: Metadata, *, rope_theta: float = 10000.0, head_dim: int | None = None, **switches: Any
) -> ModelConfig:
    """What the decoder families say in the same keys; `switches` are the family's own fields of `ModelConfig`.

    rope_theta, head_dim: what the family means where the file is silent; hidden_size / heads for head_dim None.
    `vocab_size` stays 0: the rows of the embedding decide (loading.py).
    """
    heads = metadata.integer("attention.head_count", high=1024)
    hidden = metadata.integer("embedding_length")
    if head_dim is None and not metadata.has("attention.key_length"):
        head_dim = _head_size(metadata, "embedding_length", "attention.head_count", "attention.key_length")
    head_dim = metadata.integer("attention.key_length", default=head_dim, high=1024)
    norm = "attention.layer_norm_epsilon" if switches.get("norm") == "layer" else "attention.layer_norm_rms_epsilon"
    common: dict[str, Any] = {
        "architecture": metadata.architecture,
        "name": metadata.text("general.name", metadata.architecture),
        "vocab_size": 0,
        "hidden_size": hidden,
        "num_layers": metadata.integer("block_count", high=1024),
        "num_heads": heads,
        "num_kv_heads": metadata.integer("attention.head_count_kv", default=heads, high=1024),
        "head_dim": head_dim,
        "intermediate_size": metadata.integer("feed_forward_length"),
        "context_length": metadata.integer("context_length", low=2, high=1 << 30),
        "norm_eps": metadata.number(norm, high=1.0),
    }
    if "pooling" not in switches:
        common["pooling"] = gguf_pooling(metadata, "last")
    if "rope" not in switches:
        common["rope"] = RopeConfig(
            theta=metadata.number("rope.freq_base", default=rope_theta),
            dim=metadata.integer("rope.dimension_count", default=head_dim, high=1024),
            scaling=gguf_rope_scaling(metadata),
        )
    return ModelConfig(**(common | switches))


def _head_size(keys: Keys, hidden_key: str, heads_key: str, size_key: str) -> int:
    """Numbers of a head where the file does not say: an equal share."""
    hidden, heads = keys.integer(hidden_key), keys.integer(heads_key, high=1024)
    if hidden % heads:
        raise keys.refuse(
            f"{keys.full(hidden_key)} is {hidden}, which {keys.full(heads_key)} {heads} does not divide, and no "
            f"{keys.full(size_key)} says how large a head is"
        )
    return hidden // heads


_POOLINGS: dict[int, Pooling] = {1: "mean", 2: "cls", 3: "last"}
"""llama.cpp's enum llama_pooling_type; 0 is none, 4 a rank instead of a vector."""


def gguf_pooling(metadata: Metadata, default: Pooling) -> Pooling:
    """How a text becomes one vector: `pooling_type`, where the file has one."""
    kind = metadata.integer("pooling_type", default=0, low=0, high=255)
    if kind != 0 and kind not in _POOLINGS:
        raise metadata.unsupported(f"{metadata.full('pooling_type')} is {kind}, but only 0 to 3 are supported")
    return _POOLINGS.get(kind, default)


def gguf_rope_scaling(metadata: Metadata) -> RopeScaling | None:
    """none, linear or yarn; the factors of longrope and llama3 are tensors, which loading.py adds."""
    kind = metadata.text("rope.scaling.type", "none")
    original = metadata.integer("rope.scaling.original_context_length", default=0, low=0, high=1 << 30)
    if kind in ("none", "longrope"):
        return None
    if kind == "linear":
        return RopeScaling("linear", factor=metadata.number("rope.scaling.factor", default=1.0))
    if kind == "yarn":
        factor = metadata.number("rope.scaling.factor")
        # llama.cpp: the file's own factor times Peng et al.'s 0.1 ln(s) + 1; DeepSeek's multiplier takes the 0.1 out.
        scale = metadata.number("rope.scaling.attn_factor", default=1.0) * (0.1 * math.log(factor) + 1.0)
        return RopeScaling(
            "yarn",
            factor=factor,
            original_context=original or metadata.integer("context_length", low=2, high=1 << 30),
            beta_fast=metadata.number("rope.scaling.yarn_beta_fast", default=32.0),
            beta_slow=metadata.number("rope.scaling.yarn_beta_slow", default=1.0),
            attention_factor=scale,
        )
    raise metadata.unsupported(
        f"rope.scaling.type is {shown(kind)}, but only none, linear, yarn and longrope are supported"
    )


def hf_config(
    config: JSONConfig,
    *,
    rope_theta: float = 10000.0,
    hidden_key: str = "hidden_size",
    heads_key: str = "num_attention_heads",
    layers_key: str = "num_hidden_layers",
    **switches: Any,
) -> ModelConfig:
    """The usual keys of a config.json; `switches` are the family's own fields of `ModelConfig`.

    hidden_key, heads_key, layers_key: how the family spells them.
    """
    heads = config.integer(heads_key, high=1024)
    hidden = config.integer(hidden_key)
    head_dim = switches.get("head_dim")
    if head_dim is None and not config.has("head_dim"):
        head_dim = _head_size(config, hidden_key, heads_key, "head_dim")
    head_dim = config.integer("head_dim", default=head_dim, high=1024)
    norm = "layer_norm_eps" if switches.get("norm") == "layer" else "rms_norm_eps"
    common: dict[str, Any] = {
        "architecture": config.text("model_type"),
        "name": config.text("_name_or_path", "") or config.text("model_type"),
        "vocab_size": 0,
        "hidden_size": hidden,
        "num_layers": config.integer(layers_key, high=1024),
        "num_heads": heads,
        "num_kv_heads": config.integer("num_key_value_heads", default=heads, high=1024),
        "head_dim": head_dim,
    }
    if "context_length" not in switches:
        common["context_length"] = hf_context_length(config)
    if "intermediate_size" not in switches:
        common["intermediate_size"] = config.integer("intermediate_size")
    if "norm_eps" not in switches:
        common["norm_eps"] = config.number(norm, default=1e-5, high=1.0)
    if "activation" not in switches:
        common["activation"] = hf_activation(config)
    if "rope" not in switches:
        common["rope"] = hf_rope(config, switches.get("head_dim", head_dim), rope_theta)
    return ModelConfig(**(common | switches))


def hf_activation(config: JSONConfig, key: str = "hidden_act") -> Activation:
    """The activation by transformers' name. Raises `UnsupportedModelError` for one we do not have."""
    name = config.text(key, "silu")
    if name not in _HF_ACTIVATIONS:
        raise config.unsupported(f"{key} is {shown(name)}, but only {', '.join(_HF_ACTIVATIONS)} are supported")
    return _HF_ACTIVATIONS[name]


def hf_rope(config: JSONConfig, head_dim: int, rope_theta: float, layer_type: str | None = None) -> RopeConfig:
    """Base, rotated numbers and scaling: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling`.

    layer_type: the object inside `rope_parameters` for this kind of layer, where there is one for each.
    """
    parameters = config.section("rope_parameters") or config.section("rope_scaling")
    if parameters is not None and layer_type is not None and parameters.has(layer_type):
        parameters = parameters.section(layer_type)
    theta_from = parameters if parameters is not None and parameters.has("rope_theta") else config
    share = 1.0
    for keys in (parameters, config):
        if keys is not None and keys.has("partial_rotary_factor"):
            share = keys.number("partial_rotary_factor", high=1.0)
            break
    return RopeConfig(
        theta=theta_from.number("rope_theta", default=rope_theta),
        dim=int(head_dim * share),
        scaling=None if parameters is None else rope_scaling_of(config, parameters, int(head_dim * share)),
    )


def hf_context_length(config: JSONConfig) -> int:
    """Positions the model was trained for, or reaches with its scaling."""
    trained = config.integer("max_position_embeddings", low=2, high=1 << 30)
    parameters = config.section("rope_parameters") or config.section("rope_scaling")
    if parameters is None:
        return trained
    kind, factor = _scaling_kind(parameters), parameters.get("factor")
    if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 1 <= factor <= 1e6:
        return trained
    if kind in ("linear", "ntk", "dynamic"):
        return int(trained * factor)
    if kind == "yarn":
        original = parameters.integer("original_max_position_embeddings", default=trained, high=1 << 30)
        return max(trained, int(original * factor))
    return trained


def _scaling_kind(parameters: JSONConfig) -> str:
    return parameters.text("rope_type", "") or parameters.text("type", "default")


def rope_scaling_of(config: JSONConfig, parameters: JSONConfig, dim: int) -> RopeScaling | None:
    """The scaling that `rope_scaling` (or `rope_parameters`) of config.json names; None for "default".

    Raises `ModelFileError` for values missing or out of range, `UnsupportedModelError` for a type we do not have.
    """
    kind = _scaling_kind(parameters)
    trained = config.integer("max_position_embeddings", low=2, high=1 << 30)
    if kind == "default":
        return None
    if kind in ("linear", "ntk"):
        return RopeScaling("linear" if kind == "linear" else "ntk", factor=parameters.number("factor"))
    if kind == "dynamic":
        return RopeScaling("dynamic", factor=parameters.number("factor"), original_context=trained)
    original = parameters.integer(
        "original_max_position_embeddings",
        default=config.integer("original_max_position_embeddings", default=trained, low=2, high=1 << 30),
        low=2,
        high=1 << 30,
    )
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            factor=parameters.number("factor"),
            original_context=original,
            low_freq_factor=parameters.number("low_freq_factor"),
            high_freq_factor=parameters.number("high_freq_factor"),
        )
    if kind == "yarn":
        return _hf_yarn(parameters, original)
    if kind in ("longrope", "su"):
        return _hf_longrope(parameters, original, trained, dim)
    raise config.unsupported(
        f"rope_type is {shown(kind)}, but only default, linear, ntk, dynamic, llama3, yarn and longrope are supported"
    )


def _hf_yarn(parameters: JSONConfig, original: int) -> RopeScaling:
    """Peng et al. 2023, sections 3.2 and 3.4; `mscale` and `mscale_all_dim` are DeepSeek's."""
    factor = parameters.number("factor")

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.has("attention_factor"):
        attention_factor = parameters.number("attention_factor")
    elif parameters.get("mscale") and parameters.get("mscale_all_dim"):
        attention_factor = scale(parameters.number("mscale")) / scale(parameters.number("mscale_all_dim"))
    else:
        attention_factor = scale(1.0)
    return RopeScaling(
        "yarn",
        factor=factor,
        original_context=original,
        beta_fast=parameters.number("beta_fast", default=32.0),
        beta_slow=parameters.number("beta_slow", default=1.0),
        truncate=parameters.flag("truncate", default=True),
        attention_factor=attention_factor,
    )


def score_factor(parameters: JSONConfig | None) -> float:
    """What DeepSeek puts on the scores: the square of yarn's factor, by `mscale_all_dim`."""
    if parameters is None or not parameters.get("mscale_all_dim") or _scaling_kind(parameters) == "default":
        return 1.0
    factor = parameters.number("factor")
    if factor <= 1:
        return 1.0
    return (0.1 * parameters.number("mscale_all_dim") * math.log(factor) + 1.0) ** 2


def _hf_longrope(parameters: JSONConfig, original: int, trained: int, dim: int) -> RopeScaling:
    """Ding et al. 2024; the attention factor is sqrt(1 + ln(s) / ln(original)) where the file names none."""
    factor = parameters.number("factor", default=max(trained / original, 1e-6))
    natural = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return RopeScaling(
        "longrope",
        factor=factor,
        original_context=original,
        factors=parameters.numbers("long_factor", dim // 2),
        short_factors=parameters.numbers("short_factor", dim // 2),
        attention_factor=parameters.number("attention_factor", default=natural),
    )


def sliding_layers(config: JSONConfig, num_layers: int) -> tuple[bool, ...]:
    """Which layers slide, by `layer_types`; none where the file does not say."""
    if not config.has("layer_types"):
        return ()
    kinds = config.texts("layer_types", num_layers)
    other = next((kind for kind in kinds if kind not in ("full_attention", "sliding_attention")), None)
    if other is not None:
        raise config.unsupported(f"layer_types has {shown(other)}, which is not supported")
    return tuple(kind == "sliding_attention" for kind in kinds)


def tied(config: JSONConfig, default: bool) -> bool:
    """Whether the LM head is the embedding; the families differ in what silence means."""
    return config.flag("tie_word_embeddings", default=default)


def every_layer_slides(config: JSONConfig) -> dict[str, Any]:
    """The fields of a family whose window, where there is one, is on every layer."""
    if not config.has("sliding_window"):
        return {}
    layers = config.integer("num_hidden_layers", high=1024)
    return {
        "sliding_window": config.integer("sliding_window", high=1 << 30),
        "sliding_layers": sliding_layers(config, layers) or (True,) * layers,
    }


def gguf_window(metadata: Metadata) -> dict[str, Any]:
    """The same of a GGUF file."""
    window = metadata.integer("attention.sliding_window", default=0, low=0, high=1 << 30)
    layers = metadata.integer("block_count", high=1024)
    return {"sliding_window": window, "sliding_layers": (True,) * layers} if window else {}


def gguf_experts(metadata: Metadata, inner_key: str = "expert_feed_forward_length", **switches: Any) -> ExpertsConfig:
    """Counts and sizes of a mixture of experts; `switches` are the family's own fields."""
    count = metadata.integer("expert_count", high=4096)
    common: dict[str, Any] = {
        "num_experts": count,
        "num_chosen": metadata.integer("expert_used_count", high=count),
        "intermediate_size": metadata.integer(inner_key),
    }
    return ExpertsConfig(**(common | switches))


def half_split_rows(heads: int, head_dim: int, rotated: int) -> npt.NDArray[np.int32]:
    """Row order that turns interleaved pairs (2 i, 2 i + 1) into half-split pairs (i, i + rotated / 2), head by head.

    The inverse of the permutation that llama.cpp's converter applies to q and k: out row h · D + i is in row
    h · D + 2 i, out row h · D + rotated / 2 + i is in row h · D + 2 i + 1.
    """
    head = np.arange(head_dim, dtype=np.int32)
    head[:rotated] = np.concatenate([np.arange(0, rotated, 2), np.arange(1, rotated, 2)])
    return (np.arange(heads, dtype=np.int32)[:, None] * np.int32(head_dim) + head[None, :]).reshape(-1)


def heads_of_three(config: ModelConfig) -> npt.NDArray[np.int32]:
    """Row order of a fused matrix that lies head by head, q, k and v of each (GPT-NeoX, BLOOM): [q; k; v]."""
    rows = np.arange(3 * config.num_heads * config.head_dim, dtype=np.int32)
    return rows.reshape(config.num_heads, 3, config.head_dim).swapaxes(0, 1).reshape(-1)
