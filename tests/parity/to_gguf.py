"""The small models as llama.cpp's converter would write them: names from the public `gguf` package, values as its
convert_hf_to_gguf.py changes them, the file by our own writer."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from parity.families import SmallModel, golden_description, weights_of

from pellucid.formats.block_types import F32
from pellucid.formats.gguf_writer import write_gguf

Arrays = dict[str, np.ndarray]

ARCHITECTURES = {
    "bert": "bert",
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe", "gemma": "gemma", "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3",
    "smollm3": "smollm3", "olmo2": "olmo2", "granite": "granite", "starcoder2": "starcoder2",
    "stablelm": "stablelm", "gpt_neox": "gptneox", "bloom": "bloom", "gpt_oss": "gpt-oss", "gpt2": "gpt2",
    "cohere": "command-r", "cohere2": "cohere2", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
}  # fmt: skip
"""model_type of transformers → general.architecture."""
_PERMUTED = ("llama", "granite", "smollm3")
"""Whose converters put the rows of q and k into the order of interleaved pairs."""
_UNSAID = ("mistral", "mixtral-window", "qwen2-window", "qwen3moe-dense-layer")
"""llama.cpp's files have no key for what is particular to these."""


def has_gguf_form(model: SmallModel) -> bool:
    config = golden_description(model.name)["config"]
    return config["model_type"] in ARCHITECTURES and model.name not in _UNSAID and model.name != "llama-dynamic"


def write_llama_cpp(model: SmallModel, path: Path, *, apart: bool = True) -> Path:
    """apart: latent attention with keys' and values' matrices apart, as newer converters write it."""
    description = golden_description(model.name)
    config, weights = description["config"], weights_of(model, description["shapes"])
    arch = ARCHITECTURES[config["model_type"]]
    tensors = _renamed(arch, config, _changed(arch, config, weights, apart))
    metadata = {"general.architecture": arch, "general.name": model.name, "tokenizer.ggml.model": "none"}
    metadata |= {f"{arch}.{key}": value for key, value in _metadata(arch, config, apart).items() if value is not None}
    tensors |= _rope_tensors(config, metadata, arch)
    write_gguf(
        path,
        metadata,
        {name: (values.shape, F32, _bytes(values)) for name, values in tensors.items()},
    )
    return path


def _bytes(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint8)


def _metadata(arch: str, c: dict[str, Any], apart: bool) -> dict[str, Any]:
    hidden = c.get("hidden_size", c.get("n_embd"))
    heads = c.get("num_attention_heads", c.get("n_head"))
    head_dim = c.get("head_dim") or hidden // heads
    layer_norm = c.get("layer_norm_eps", c.get("layer_norm_epsilon", c.get("norm_epsilon")))
    values: dict[str, Any] = {
        "vocab_size": c["vocab_size"],
        "block_count": c.get("num_hidden_layers", c.get("n_layer")),
        "context_length": c.get("max_position_embeddings", c.get("n_positions", 2048)),
        "embedding_length": hidden,
        "feed_forward_length": c.get("intermediate_size", 4 * hidden),
        "attention.head_count": heads,
        "attention.head_count_kv": c.get("num_key_value_heads", heads),
        "attention.layer_norm_epsilon": layer_norm,
        "attention.layer_norm_rms_epsilon": c.get("rms_norm_eps"),
    }
    if c.get("head_dim"):
        values |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if c.get("sliding_window"):
        values["attention.sliding_window"] = c["sliding_window"]
    values |= _rope_metadata(c, head_dim)
    count = c.get("num_local_experts", c.get("num_experts", c.get("n_routed_experts")))
    if count:
        values |= {"expert_count": count, "expert_used_count": c["num_experts_per_tok"]}
        values["expert_feed_forward_length"] = c.get("moe_intermediate_size", c["intermediate_size"])
    own: dict[str, Callable[[], dict[str, Any]]] = {
        "bert": lambda: {"attention.causal": False, "pooling_type": gguf.PoolingType.MEAN.value},
        "gemma2": lambda: {
            "attn_logit_softcapping": c["attn_logit_softcapping"],
            "final_logit_softcapping": c["final_logit_softcapping"],
        },
        "granite": lambda: {
            "attention.scale": c["attention_multiplier"],
            "embedding_scale": c["embedding_multiplier"],
            "residual_scale": c["residual_multiplier"],
            "logit_scale": c["logits_scaling"],
        },
        "command-r": lambda: {"logit_scale": c["logit_scale"]},
        "cohere2": lambda: {"logit_scale": c["logit_scale"]},
        "stablelm": lambda: {"use_parallel_residual": c["use_parallel_residual"]},
        "gptneox": lambda: {"use_parallel_residual": c["use_parallel_residual"]},
        "deepseek2": lambda: _latent_metadata(c, apart),
    }
    return values | (own[arch]() if arch in own else {})


def _rope_metadata(c: dict[str, Any], head_dim: int) -> dict[str, Any]:
    parameters = c.get("rope_parameters")
    if parameters is None:
        return {}
    values: dict[str, Any] = {}
    if "full_attention" in parameters:
        values["rope.freq_base_swa"] = parameters["sliding_attention"]["rope_theta"]
        parameters = parameters["full_attention"]
    share = parameters.get("partial_rotary_factor", c.get("partial_rotary_factor", 1.0))
    values |= {
        "rope.freq_base": parameters.get("rope_theta", 10000.0),
        "rope.dimension_count": c.get("qk_rope_head_dim") or int(head_dim * share),
    }
    kind = parameters["rope_type"]
    if kind in ("linear", "yarn"):
        values |= {"rope.scaling.type": kind, "rope.scaling.factor": parameters["factor"]}
    if kind == "yarn":
        values["rope.scaling.original_context_length"] = parameters["original_max_position_embeddings"]
    if kind == "longrope":
        original = c["original_max_position_embeddings"]
        values["rope.scaling.original_context_length"] = original
        factor = c["max_position_embeddings"] / original
        values["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(factor) / math.log(original))
    if parameters.get("mscale_all_dim"):
        values["rope.scaling.yarn_log_multiplier"] = 0.1 * parameters["mscale_all_dim"]
    return values


def _latent_metadata(c: dict[str, Any], apart: bool) -> dict[str, Any]:
    key, value = c["qk_nope_head_dim"] + c["qk_rope_head_dim"], c["v_head_dim"]
    is_v3 = c["model_type"] == "deepseek_v3"
    values = {
        "attention.q_lora_rank": c["q_lora_rank"],
        "attention.kv_lora_rank": c["kv_lora_rank"],
        "attention.key_length": key,
        "attention.value_length": value,
        "leading_dense_block_count": c["first_k_dense_replace"],
        "expert_shared_count": c["n_shared_experts"],
        "expert_weights_scale": c["routed_scaling_factor"],
        "expert_weights_norm": c["norm_topk_prob"],
        "expert_gating_func": 2 if is_v3 else 1,
        "expert_group_count": c["n_group"] if c["n_group"] > 1 else None,
        "expert_group_used_count": c["topk_group"] if c["n_group"] > 1 else None,
    }
    if apart:
        values |= {
            "attention.head_count_kv": 1,
            "attention.key_length": c["kv_lora_rank"] + c["qk_rope_head_dim"],
            "attention.value_length": c["kv_lora_rank"],
            "attention.key_length_mla": key,
            "attention.value_length_mla": value,
        }
    return values


def _changed(arch: str, c: dict[str, Any], weights: Arrays, apart: bool) -> Arrays:
    """Values as the converter changes them, under transformers' names still."""
    out: Arrays = {}
    for name, given in weights.items():
        values = given
        if arch in _PERMUTED and ".q_proj." in name:
            values = _interleaved(values, c["num_attention_heads"])
        elif arch in _PERMUTED and ".k_proj." in name:
            values = _interleaved(values, c["num_key_value_heads"])
        elif arch in ("gemma", "gemma2", "gemma3") and name.endswith("norm.weight"):
            values = values + np.float32(1)
        elif "query_key_value" in name:
            heads = c.get("num_attention_heads", c.get("n_head"))
            split = values.reshape(heads, 3, -1, *values.shape[1:])
            values = np.concatenate([split[:, part].reshape(-1, *values.shape[1:]) for part in range(3)])
        elif arch == "gpt2" and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            values = values.T
        out[name] = values
    if arch == "gpt-oss":
        out = _gpt_oss(out)
    if arch == "deepseek2" and apart:
        out = _latent_apart(c, out)
    return _stacked(out)


def _interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    return values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _gpt_oss(weights: Arrays) -> Arrays:
    out: Arrays = {}
    for name, values in weights.items():
        if "gate_up_proj" in name:
            turned = values if name.endswith("bias") else values.swapaxes(1, 2)
            ending = ".bias" if name.endswith("bias") else ".weight"
            base = name.split("gate_up_proj")[0]
            out[base + "gate_proj" + ending], out[base + "up_proj" + ending] = turned[:, 0::2], turned[:, 1::2]
        elif name.endswith("down_proj"):
            out[name + ".weight"] = values.swapaxes(1, 2)
        elif name.endswith("down_proj_bias"):
            out[name.removesuffix("_bias") + ".bias"] = values
        elif name.endswith("sinks"):
            out[name + ".weight"] = values
        else:
            out[name] = values
    return out


def _latent_apart(c: dict[str, Any], weights: Arrays) -> Arrays:
    out: Arrays = {}
    for name, values in weights.items():
        if not name.endswith("kv_b_proj.weight"):
            out[name] = values
            continue
        heads, nope = c["num_attention_heads"], c["qk_nope_head_dim"]
        per_head = values.reshape(heads, nope + c["v_head_dim"], -1)
        base = name.removesuffix("kv_b_proj.weight")
        out[base + "k_b_proj.weight"] = per_head[:, :nope].swapaxes(1, 2)
        out[base + "v_b_proj.weight"] = per_head[:, nope:]
    return out


def _stacked(weights: Arrays) -> Arrays:
    """Experts one behind the other in one tensor."""
    out: Arrays = {}
    groups: dict[str, dict[int, np.ndarray]] = {}
    for name, values in weights.items():
        before, _, after = name.partition(".experts.")
        number, _, rest = after.partition(".")
        if number.isdigit():
            groups.setdefault(f"{before}.experts.{rest}", {})[int(number)] = values
        else:
            out[name] = values
    return out | {name: np.stack([group[e] for e in range(len(group))]) for name, group in groups.items()}


def _renamed(arch: str, c: dict[str, Any], weights: Arrays) -> Arrays:
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(kind, c.get("num_hidden_layers", c.get("n_layer")))
    out: Arrays = {}
    for name, values in weights.items():
        if arch == "bert" and name.startswith("pooler."):  # the converter leaves it out
            continue
        if name.endswith("e_score_correction_bias"):
            out[names.get_name(name.replace("e_score_correction_bias", "e_score_correction")) + ".bias"] = values
            continue
        short = name.removeprefix("transformer.") if arch == "bloom" else name
        found = names.get_name(short, try_suffixes=(".weight", ".bias"))
        assert found is not None, f"{arch}: the gguf package has no name for {name}"
        out[found] = values
    return out


def _rope_tensors(c: dict[str, Any], metadata: dict[str, Any], arch: str) -> Arrays:
    parameters = c.get("rope_parameters") or {}
    if parameters.get("rope_type") == "longrope":
        return {
            f"rope_factors_{kind}.weight": np.array(parameters[f"{kind}_factor"], dtype=np.float32)
            for kind in ("long", "short")
        }
    if parameters.get("rope_type") != "llama3":
        return {}
    dim, trained = metadata[f"{arch}.rope.dimension_count"], parameters["original_max_position_embeddings"]
    low, high, factor = parameters["low_freq_factor"], parameters["high_freq_factor"], parameters["factor"]
    divisors = []
    for frequency in 1.0 / parameters["rope_theta"] ** (np.arange(0, dim, 2) / dim):
        wavelength = 2 * math.pi / frequency
        smooth = (trained / wavelength - low) / (high - low)
        if wavelength < trained / high:
            divisors.append(1.0)
        elif wavelength > trained / low:
            divisors.append(factor)
        else:
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return {"rope_freqs.weight": np.array(divisors, dtype=np.float32)}
