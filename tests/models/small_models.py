"""Small random GGUF files of each family, for tests that need a model but no words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pellucid.formats.block_types import BLOCK_TYPES_BY_NAME, BlockType
from pellucid.formats.gguf_writer import write_gguf
from pellucid.formats.quantize import quantize

Tensors = dict[str, tuple[tuple[int, ...], BlockType, np.ndarray]]

LLAMA_SHAPE = {"vocab": 96, "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn": 96}


def llama_metadata(**changes: Any) -> dict[str, Any]:
    s = LLAMA_SHAPE
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "small",
        "llama.block_count": s["layers"],
        "llama.context_length": 128,
        "llama.embedding_length": s["hidden"],
        "llama.feed_forward_length": s["ffn"],
        "llama.attention.head_count": s["heads"],
        "llama.attention.head_count_kv": s["kv_heads"],
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 5000.0,
    }
    metadata.update(changes)
    return {k: v for k, v in metadata.items() if v is not None}


def llama_tensors(rng: np.random.Generator, weight_type: str = "F32", *, tied: bool = True) -> Tensors:
    s = LLAMA_SHAPE
    kv = s["kv_heads"] * s["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (s["vocab"], s["hidden"]), "output_norm": (s["hidden"],)}
    if not tied:
        shapes["output"] = (s["vocab"], s["hidden"])
    for i in range(s["layers"]):
        shapes |= {
            f"blk.{i}.attn_norm": (s["hidden"],),
            f"blk.{i}.attn_q": (s["heads"] * s["head_dim"], s["hidden"]),
            f"blk.{i}.attn_k": (kv, s["hidden"]),
            f"blk.{i}.attn_v": (kv, s["hidden"]),
            f"blk.{i}.attn_output": (s["hidden"], s["heads"] * s["head_dim"]),
            f"blk.{i}.ffn_norm": (s["hidden"],),
            f"blk.{i}.ffn_gate": (s["ffn"], s["hidden"]),
            f"blk.{i}.ffn_up": (s["ffn"], s["hidden"]),
            f"blk.{i}.ffn_down": (s["hidden"], s["ffn"]),
        }
    tensors: Tensors = {}
    for name, shape in shapes.items():
        kind = BLOCK_TYPES_BY_NAME["F32" if len(shape) == 1 else weight_type]
        values = rng.standard_normal(shape).astype(np.float32) * np.float32(1 if len(shape) == 1 else shape[-1] ** -0.5)
        tensors[name + ".weight"] = (shape, kind, quantize(values, kind))
    return tensors


def write_llama(path: Path, metadata: dict[str, Any] | None = None, tensors: Tensors | None = None) -> Path:
    write_gguf(path, metadata or llama_metadata(), tensors or llama_tensors(np.random.default_rng(0)))
    return path
