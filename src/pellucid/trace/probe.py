"""The probe: how a forward pass is watched without slowing an unwatched one.

The model asks `wants(name)` before it hands out a tensor, so nothing is copied or computed for names
nobody asked for. Names are stable; T rows, H query and G KV heads of D numbers, d = hidden_size:

    embedding                       [T, d]      after scaling
    layers.3.attn.q, .k, .v         [T, H · D], [T, G · D] twice; q and k after norm and rotation
    layers.3.attn.out               [T, H · D]  what attention gives, before its output matrix
    layers.3.mlp.gated              [T, intermediate_size]  activation(gate) · up, before the down matrix
    layers.3.residual               [T, d]      after both branches were added
    final_norm                      [T, d]      what the LM head takes
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class Probe(Protocol):
    """Receives named tensors of one forward pass."""

    def wants(self, name: str) -> bool:
        """Whether `record` should be called for this name in this pass."""
        ...

    def record(self, name: str, tensor: npt.NDArray[np.float32]) -> None:
        """Take the float32 tensor [T, …]; it is overwritten by later operations, so copy what you keep."""
        ...


class Recorder:
    """A probe that keeps a copy of every tensor whose name is in `names` (all names when `names` is None)."""

    def __init__(self, names: frozenset[str] | None = None) -> None:
        self.names = names
        self.tensors: dict[str, npt.NDArray[np.float32]] = {}

    def wants(self, name: str) -> bool:
        return self.names is None or name in self.names

    def record(self, name: str, tensor: npt.NDArray[np.float32]) -> None:
        self.tensors[name] = tensor.copy()
