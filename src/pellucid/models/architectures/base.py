"""What a family declares, and how GGUF metadata is read with errors that name the key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pellucid.config import ModelConfig, RopeConfig
from pellucid.errors import ModelFileError, UnsupportedModelError, shown


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names of a family's tensors in a GGUF file, without ".weight"; {i} is the layer. None: the family has none."""

    embedding: str = "token_embd"
    final_norm: str = "output_norm"
    head: str = "output"
    attention_norm: str = "blk.{i}.attn_norm"
    query: str = "blk.{i}.attn_q"
    key: str = "blk.{i}.attn_k"
    value: str = "blk.{i}.attn_v"
    q_norm: str | None = None
    k_norm: str | None = None
    attention_output: str = "blk.{i}.attn_output"
    post_attention_norm: str | None = None
    mlp_norm: str = "blk.{i}.ffn_norm"
    gate: str = "blk.{i}.ffn_gate"
    up: str = "blk.{i}.ffn_up"
    down: str = "blk.{i}.ffn_down"
    post_mlp_norm: str | None = None
    ignored: tuple[str, ...] = ()
    """Tensors that may be present and are not weights of the decoder, such as precomputed frequencies."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One family."""

    gguf_name: str
    """The value of `general.architecture`."""
    config: Callable[[Metadata], ModelConfig]
    tensors: TensorNames = field(default_factory=TensorNames)
    interleaved_rope_rows: bool = False
    """GGUF keeps the rows of q and k in the order of interleaved pairs; they are put back to half-split order."""


class Metadata:
    """GGUF metadata of one file, read through the architecture's prefix."""

    def __init__(self, values: Mapping[str, Any], architecture: str, file_name: str) -> None:
        self.values = values
        self.architecture = architecture
        self.file_name = file_name

    def _full(self, key: str) -> str:
        return key if "." in key and key.split(".", 1)[0] in ("general", "tokenizer") else f"{self.architecture}.{key}"

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = 1 << 24) -> int:
        """A whole number in [low, high]; the default where the key is absent."""
        value = self.values.get(self._full(key), default)
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and low <= value <= high:
            return int(value)
        raise self._bad(key, value, f"a whole number from {low} to {high}")

    def number(self, key: str, default: float | None = None, low: float = 0.0, high: float = 1e12) -> float:
        """A finite number above `low`, at most `high`."""
        value = self.values.get(self._full(key), default)
        if isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and low < value <= high:
            return float(value)
        raise self._bad(key, value, f"a number above {low:g} and at most {high:g}")

    def text(self, key: str, default: str = "") -> str:
        """A string; the default where the key is absent."""
        value = self.values.get(self._full(key), default)
        if isinstance(value, str):
            return value
        raise self._bad(key, value, "a string")

    def _bad(self, key: str, value: object, allowed: str) -> ModelFileError:
        found = "missing" if value is None else shown(value)
        return ModelFileError(f"{self.file_name}: metadata key {self._full(key)} is {found}, but must be {allowed}")

    def refuse(self, message: str) -> ModelFileError:
        """The error of a file that contradicts itself."""
        return ModelFileError(f"{self.file_name}: {message}")

    def unsupported(self, message: str) -> UnsupportedModelError:
        """The error of a sound file that needs what we do not have."""
        return UnsupportedModelError(f"{self.file_name}: {message}")


def linear_rope_factor(metadata: Metadata) -> float:
    """What positions are divided by: 1 without scaling. Raises `UnsupportedModelError` for any scaling but linear."""
    scaling = metadata.text("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise metadata.unsupported(f"rope.scaling.type is {shown(scaling)}, but only none and linear are supported")
    return metadata.number("rope.scaling.factor", default=1.0) if scaling == "linear" else 1.0


def common_config(metadata: Metadata, *, rope_theta: float, head_dim: int | None = None) -> ModelConfig:
    """What the decoder families say in the same keys; a family puts its own over it with `dataclasses.replace`.

    rope_theta, head_dim: what the family means where the file is silent; hidden_size / heads for head_dim None.
    `vocab_size` stays 0: the rows of the embedding decide (loading.py).
    """
    heads = metadata.integer("attention.head_count", high=1024)
    hidden = metadata.integer("embedding_length")
    head_dim = metadata.integer("attention.key_length", default=head_dim or hidden // heads, high=1024)
    return ModelConfig(
        architecture=metadata.architecture,
        name=metadata.text("general.name", metadata.architecture),
        vocab_size=0,
        hidden_size=hidden,
        num_layers=metadata.integer("block_count", high=1024),
        num_heads=heads,
        num_kv_heads=metadata.integer("attention.head_count_kv", default=heads, high=1024),
        head_dim=head_dim,
        intermediate_size=metadata.integer("feed_forward_length"),
        context_length=metadata.integer("context_length", low=2, high=1 << 30),
        norm_eps=metadata.number("attention.layer_norm_rms_epsilon", high=1.0),
        rope=RopeConfig(
            theta=metadata.number("rope.freq_base", default=rope_theta),
            dim=metadata.integer("rope.dimension_count", default=head_dim, high=1024),
            linear_factor=linear_rope_factor(metadata),
        ),
    )


def half_split_rows(heads: int, head_dim: int, rotated: int) -> npt.NDArray[np.int32]:
    """Row order that turns interleaved pairs (2 i, 2 i + 1) into half-split pairs (i, i + rotated / 2), head by head.

    The inverse of the permutation that llama.cpp's converter applies to q and k: out row h · D + i is in row
    h · D + 2 i, out row h · D + rotated / 2 + i is in row h · D + 2 i + 1.
    """
    head = np.arange(head_dim, dtype=np.int32)
    head[:rotated] = np.concatenate([np.arange(0, rotated, 2), np.arange(1, rotated, 2)])
    return (np.arange(heads, dtype=np.int32)[:, None] * np.int32(head_dim) + head[None, :]).reshape(-1)
