"""The small models of every family that are held against transformers: class, configuration, and weights by recipe.

No torch here: the default test run rebuilds the weights with NumPy from each tensor's name, and compares with logits
that `tools/make_parity_goldens.py` stored.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

GOLDENS = Path(__file__).parent / "golden"
NUM_TOKENS = 44
VOCAB = 96


@dataclass(frozen=True)
class SmallModel:
    name: str
    cls: str
    """Name of the class in transformers; its configuration class is named alike."""
    config: dict[str, Any] = field(default_factory=dict)
    num_tokens: int = NUM_TOKENS
    zero_norms: bool = False
    """Weights of norms lie around 0 (Gemma)."""

    @property
    def config_class(self) -> str:
        for ending in ("LMHeadModel", "ForCausalLM", "Model"):
            if self.cls.endswith(ending):
                base = self.cls.removesuffix(ending)
                return "Gemma3TextConfig" if base == "Gemma3" else base + "Config"
        raise AssertionError(self.cls)

    def token_ids(self) -> list[int]:
        return [int(t) for t in np.random.RandomState(3).randint(3, VOCAB, self.num_tokens)]


_BASE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_SHORT = _BASE | {"max_position_embeddings": 24}
_MIXTRAL = _BASE | {"num_local_experts": 6, "num_experts_per_tok": 2}
_QWEN_EXPERTS = _BASE | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "head_dim": 16}
_BLOOM = {"vocab_size": VOCAB, "n_layer": 2}
_NEOX: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 128,
}  # fmt: skip
_OPT: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 128,
}  # fmt: skip
_LATENT: dict[str, Any] = _BASE | {
    "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 8, "first_k_dense_replace": 1,
    "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 16, "n_group": 4,
    "topk_group": 2, "num_experts_per_tok": 3,
}  # fmt: skip


def _rope(kind: str, theta: float = 10000.0, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **parameters}}


_YARN = {"factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0, "beta_slow": 1.0}
_LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.5 + 0.5 * i for i in range(8)],
}


def _phi3(original: int) -> dict[str, Any]:
    return _BASE | {"original_max_position_embeddings": original, "rope_scaling": _LONGROPE}


FAMILIES: tuple[SmallModel, ...] = (
    SmallModel("llama", "LlamaForCausalLM", _BASE),
    SmallModel("llama-biases", "LlamaForCausalLM", _BASE | {"attention_bias": True, "mlp_bias": True}),
    SmallModel(
        "llama-odd-heads",
        "LlamaForCausalLM",
        _BASE | {"hidden_size": 144, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 80},
    ),
    SmallModel(
        "llama-llama3",
        "LlamaForCausalLM",
        _BASE
        | _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
    ),
    SmallModel("llama-linear", "LlamaForCausalLM", _BASE | _rope("linear", factor=4.0)),
    SmallModel(
        "llama-dynamic", "LlamaForCausalLM", _BASE | {"max_position_embeddings": 24} | _rope("dynamic", factor=2.0)
    ),
    SmallModel("llama-yarn", "LlamaForCausalLM", _BASE | _rope("yarn", **_YARN)),
    SmallModel("mistral", "MistralForCausalLM", _BASE | {"sliding_window": 8, "head_dim": 32}),
    SmallModel(
        "mixtral",
        "MixtralForCausalLM",
        _MIXTRAL | {"sliding_window": None},
    ),
    SmallModel(
        "mixtral-window",
        "MixtralForCausalLM",
        _MIXTRAL | {"sliding_window": 8},
    ),
    SmallModel("qwen2", "Qwen2ForCausalLM", _BASE),
    SmallModel(
        "qwen2-window",
        "Qwen2ForCausalLM",
        _BASE | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    SmallModel("qwen3", "Qwen3ForCausalLM", _BASE | {"head_dim": 32}),
    SmallModel(
        "qwen3moe",
        "Qwen3MoeForCausalLM",
        _QWEN_EXPERTS
        | {
            "norm_topk_prob": True,
        },
    ),
    SmallModel(
        "qwen3moe-dense-layer",
        "Qwen3MoeForCausalLM",
        _QWEN_EXPERTS
        | {
            "mlp_only_layers": [1],
        },
    ),
    SmallModel("gemma", "GemmaForCausalLM", _BASE | {"head_dim": 32}, zero_norms=True),
    SmallModel(
        "gemma2",
        "Gemma2ForCausalLM",
        _BASE
        | {
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 8,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.0,
        },
        zero_norms=True,
    ),
    SmallModel(
        "gemma3",
        "Gemma3ForCausalLM",
        _BASE | {"num_hidden_layers": 7, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8},
        zero_norms=True,
    ),
    SmallModel("phi3-long", "Phi3ForCausalLM", _phi3(32)),
    SmallModel("phi3-short", "Phi3ForCausalLM", _phi3(64)),
    SmallModel("smollm3", "SmolLM3ForCausalLM", _BASE | {"num_hidden_layers": 5}),
    SmallModel("olmo2", "Olmo2ForCausalLM", _BASE),
    SmallModel(
        "granite",
        "GraniteForCausalLM",
        _BASE
        | {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    ),
    SmallModel("starcoder2", "Starcoder2ForCausalLM", _BASE | {"sliding_window": None}),
    SmallModel("starcoder2-window", "Starcoder2ForCausalLM", _BASE | {"sliding_window": 8}),
    SmallModel("stablelm", "StableLmForCausalLM", _BASE | {"use_qkv_bias": True}),
    SmallModel("stablelm-parallel", "StableLmForCausalLM", _BASE | {"use_parallel_residual": True}),
    SmallModel("gpt-neox", "GPTNeoXForCausalLM", _NEOX | {"rotary_pct": 0.5}),
    SmallModel("gpt-neox-sequential", "GPTNeoXForCausalLM", _NEOX | {"use_parallel_residual": False}),
    SmallModel("opt", "OPTForCausalLM", _OPT),
    SmallModel("opt-post-norm", "OPTForCausalLM", _OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 32}),
    SmallModel("bloom", "BloomForCausalLM", _BLOOM | {"hidden_size": 96, "n_head": 6}),
    SmallModel(
        "bloom-8-heads", "BloomForCausalLM", {"vocab_size": VOCAB, "hidden_size": 128, "n_layer": 2, "n_head": 8}
    ),
    SmallModel("command-r", "CohereForCausalLM", _BASE | {"logit_scale": 0.25}),
    SmallModel("command-r7b", "Cohere2ForCausalLM", _BASE | {"num_hidden_layers": 5, "sliding_window": 8}),
    SmallModel(
        "gpt1",
        "OpenAIGPTLMHeadModel",
        {"vocab_size": VOCAB, "n_positions": 128, "n_embd": 64, "n_layer": 3, "n_head": 4},
    ),
    SmallModel(
        "gpt2", "GPT2LMHeadModel", {"vocab_size": VOCAB, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
    ),
    SmallModel(
        "xglm",
        "XGLMForCausalLM",
        {
            "vocab_size": VOCAB,
            "d_model": 64,
            "ffn_dim": 96,
            "num_layers": 3,
            "attention_heads": 4,
            "max_position_embeddings": 128,
        },
    ),
    SmallModel(
        "gpt-oss",
        "GptOssForCausalLM",
        _BASE
        | {"num_local_experts": 8, "num_experts_per_tok": 3, "head_dim": 16, "sliding_window": 8}
        | _rope("yarn", 150000.0, **_YARN, truncate=False),
    ),
    SmallModel(
        "deepseek-v2",
        "DeepseekV2ForCausalLM",
        _LATENT | {"n_shared_experts": 2, "q_lora_rank": None, "topk_method": "group_limited_greedy"},
    ),
    SmallModel(
        "deepseek-v2-greedy",
        "DeepseekV2ForCausalLM",
        _LATENT | {"n_shared_experts": 2, "q_lora_rank": 24, "topk_method": "greedy", "n_group": 1, "topk_group": 1},
    ),
    SmallModel(
        "deepseek-v3",
        "DeepseekV3ForCausalLM",
        _LATENT | {"n_shared_experts": 1, "q_lora_rank": 24} | _rope("yarn", **_YARN, mscale=1.0, mscale_all_dim=1.0),
    ),
)
ENCODERS: tuple[SmallModel, ...] = (
    SmallModel(
        "bert",
        "BertModel",
        {
            "vocab_size": VOCAB,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "type_vocab_size": 2,
        },
    ),
)
"""Compared by their hidden states: they have no logits."""
BY_NAME = {model.name: model for model in (*FAMILIES, *ENCODERS)}


def weights_of(model: SmallModel, shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Every tensor from its own name, so that the order of a file means nothing; float32."""
    return {name: _tensor(model, name, tuple(shape)) for name, shape in shapes.items()}


def _tensor(model: SmallModel, name: str, shape: tuple[int, ...]) -> np.ndarray:
    # RandomState's stream is frozen by NumPy's compatibility policy; that of default_rng is not.
    values = np.random.RandomState(zlib.crc32(f"{model.name}/{name}".encode())).standard_normal(shape)
    if len(shape) != 1:
        return (values * (1.5 / shape[-1] ** 0.5)).astype(np.float32)
    is_norm = name.endswith(".weight") and not model.zero_norms
    return (values * 0.2 + (1.0 if is_norm else 0.0)).astype(np.float32)


def write_safetensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """The format's layout: header length, JSON header, bytes."""
    header: dict[str, Any] = {}
    end = 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values, dtype="<f4").tobytes())


def golden_description(name: str) -> dict[str, Any]:
    """config and shapes as transformers saved them."""
    return dict(json.loads((GOLDENS / "models.json").read_text()))[name]


def write_folder(model: SmallModel, folder: Path, description: dict[str, Any] | None = None) -> Path:
    """config.json and model.safetensors as transformers would save the model."""
    known = description or golden_description(model.name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(known["config"]))
    write_safetensors(folder / "model.safetensors", weights_of(model, known["shapes"]))
    return folder
