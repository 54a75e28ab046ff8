"""Activations of one step, kept between steps and grown when a step is larger."""

from __future__ import annotations

import numpy as np

from pellucid.config import ModelConfig
from pellucid.kernels.backend import Float32Array


class Workspace:
    """Named arrays [rows, width]; an array is overwritten by whoever asks for its name next."""

    def __init__(self, config: ModelConfig) -> None:
        heads, key_dim, value_dim = config.num_heads, config.head_dim, config.kv_value_dim
        experts = config.experts
        inner = config.intermediate_size
        self._widths = {
            "residual": config.hidden_size,
            "normed": config.hidden_size,
            "qkv": (heads + config.num_kv_heads) * key_dim + config.num_kv_heads * value_dim,
            "attended": heads * value_dim,
            "inner": inner * (2 if config.gated_mlp else 1),
            "gated": inner,
            "branch": config.hidden_size,
            "hidden": config.hidden_size,
            "logits": config.vocab_size,
        }
        if experts is not None:
            self._widths |= {"router": experts.num_experts, "mixed": config.hidden_size}
        self._buffers: dict[str, Float32Array] = {}
        self.generation = 0
        """Changes whenever an array moves."""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def rows(self, name: str, count: int) -> Float32Array:
        """[count, width] of the array `name`, uninitialised."""
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < count:
            buffer = self._buffers[name] = np.empty((count, self._widths[name]), dtype=np.float32)
            self.generation += 1
        return buffer[:count]
