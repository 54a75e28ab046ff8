"""Models of some 400 MB, of zeros: large beside 100 MB, for tests of what loading holds in memory."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pellucid.formats.block_types import BLOCK_TYPES_BY_NAME
from pellucid.formats.gguf_writer import write_gguf

HIDDEN, INNER, LAYERS, VOCAB, HEADS, KV_HEADS = 1024, 3072, 8, 98304, 16, 4
EXPERTS = 32
_ITEM_BYTES = {"BF16": 2, "U8": 1}
_SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
}  # fmt: skip
LLAMA = _SIZES | {"model_type": "llama", "intermediate_size": INNER, "vocab_size": VOCAB, "tie_word_embeddings": True}
GPT_OSS = _SIZES | {
    "model_type": "gpt_oss", "intermediate_size": HIDDEN, "vocab_size": 1024, "num_local_experts": EXPERTS,
    "num_experts_per_tok": 4, "head_dim": HIDDEN // HEADS, "attention_bias": True,
}  # fmt: skip
Shapes = dict[str, tuple[str, tuple[int, ...]]]
"""Name → (type of safetensors, shape)."""


def llama_shapes() -> Shapes:
    kv = HIDDEN // HEADS * KV_HEADS
    sizes: dict[str, tuple[int, ...]] = {"embed_tokens": (VOCAB, HIDDEN), "norm": (HIDDEN,)}
    for i in range(LAYERS):
        sizes |= {
            f"layers.{i}.input_layernorm": (HIDDEN,),
            f"layers.{i}.post_attention_layernorm": (HIDDEN,),
            f"layers.{i}.self_attn.q_proj": (HIDDEN, HIDDEN),
            f"layers.{i}.self_attn.k_proj": (kv, HIDDEN),
            f"layers.{i}.self_attn.v_proj": (kv, HIDDEN),
            f"layers.{i}.self_attn.o_proj": (HIDDEN, HIDDEN),
            f"layers.{i}.mlp.gate_proj": (INNER, HIDDEN),
            f"layers.{i}.mlp.up_proj": (INNER, HIDDEN),
            f"layers.{i}.mlp.down_proj": (HIDDEN, INNER),
        }
    return {f"model.{name}.weight": ("BF16", shape) for name, shape in sizes.items()}


def gpt_oss_shapes() -> Shapes:
    """With experts in MXFP4, as the published models have them."""
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: Shapes = {"lm_head.weight": ("BF16", (1024, HIDDEN)), "model.embed_tokens.weight": ("BF16", (1024, HIDDEN))}
    shapes["model.norm.weight"] = ("BF16", (HIDDEN,))
    for i in range(LAYERS):
        at, experts = f"model.layers.{i}.self_attn.", f"model.layers.{i}.mlp.experts."
        for name, rows in (("q_proj", HIDDEN), ("k_proj", kv), ("v_proj", kv), ("o_proj", HIDDEN)):
            shapes |= {f"{at}{name}.weight": ("BF16", (rows, HIDDEN)), f"{at}{name}.bias": ("BF16", (rows,))}
        shapes[at + "sinks"] = ("BF16", (HEADS,))
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{i}.{name}.weight"] = ("BF16", (HIDDEN,))
        shapes[f"model.layers.{i}.mlp.router.weight"] = ("BF16", (EXPERTS, HIDDEN))
        shapes[f"model.layers.{i}.mlp.router.bias"] = ("BF16", (EXPERTS,))
        for name, rows in (("gate_up_proj", 2 * HIDDEN), ("down_proj", HIDDEN)):
            shapes[f"{experts}{name}_blocks"] = ("U8", (EXPERTS, rows, HIDDEN // 32, 16))
            shapes[f"{experts}{name}_scales"] = ("U8", (EXPERTS, rows, HIDDEN // 32))
            shapes[f"{experts}{name}_bias"] = ("BF16", (EXPERTS, rows))
    return shapes


def num_bytes(shapes: Shapes) -> dict[str, int]:
    return {name: _ITEM_BYTES[kind] * int(np.prod(shape)) for name, (kind, shape) in shapes.items()}


def largest_layer(shapes: Shapes) -> int:
    """Bytes of the largest layer in the file."""
    sizes = num_bytes(shapes)
    return max(sum(size for name, size in sizes.items() if f"layers.{i}." in name) for i in range(LAYERS))


def write_folder(folder: Path, config: dict[str, Any], shapes: Shapes, shards: int = 1) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    names = list(shapes)
    files: dict[str, str] = {}
    for number in range(shards):
        file = "model.safetensors" if shards == 1 else f"model-{number + 1:05}-of-{shards:05}.safetensors"
        own = names[number::shards]  # a layer's tensors lie in all of them
        _write_zeros(folder / file, {name: shapes[name] for name in own})
        files |= dict.fromkeys(own, file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


def _write_zeros(path: Path, shapes: Shapes) -> None:
    header: dict[str, Any] = {}
    sizes, end = num_bytes(shapes), 0
    for name, (kind, shape) in shapes.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [end, end + sizes[name]]}
        end += sizes[name]
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for size in sizes.values():
            for piece in _zeros(size):
                file.write(piece)


def write_llama_gguf(path: Path, parts: int = 1) -> list[Path]:
    """The Llama in BF16 as llama.cpp has it, in so many files."""
    metadata = {
        "general.architecture": "llama", "llama.block_count": LAYERS, "llama.context_length": 256,
        "llama.embedding_length": HIDDEN, "llama.feed_forward_length": INNER, "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS, "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    tensors: dict[str, Any] = {}
    for name, (_, shape) in llama_shapes().items():
        kind = BLOCK_TYPES_BY_NAME["BF16" if len(shape) == 2 else "F32"]
        size = kind.nbytes(shape)
        tensors[_gguf_name(name)] = (shape, kind, lambda size=size: _zeros(size))
    if parts == 1:
        write_gguf(path, metadata, tensors)
        return [path]
    paths = [path.with_name(f"{path.stem}-{i + 1:05}-of-{parts:05}.gguf") for i in range(parts)]
    for i, part in enumerate(paths):
        keys = {"split.no": np.uint16(i), "split.count": np.uint16(parts)}
        write_gguf(part, (metadata if i == 0 else {}) | keys, dict(list(tensors.items())[i::parts]))
    return paths


_GGUF_NAMES = {
    "model.": "", "layers.": "blk.", "embed_tokens": "token_embd", "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def _gguf_name(name: str) -> str:
    for theirs, ours in _GGUF_NAMES.items():
        name = name.replace(theirs, ours)
    return "output_norm.weight" if name == "norm.weight" else name


def _zeros(size: int) -> Iterator[np.ndarray]:
    piece = np.zeros(1 << 20, dtype=np.uint8)
    for start in range(0, size, len(piece)):
        yield piece[: size - start]
