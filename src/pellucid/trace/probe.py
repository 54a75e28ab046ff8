"""The probe: how a forward pass is watched without slowing an unwatched one.

The model asks `wants(name)` before it hands out a tensor, so nothing is copied or computed for names
nobody asked for. Names are stable: `embedding`, `layers.3.attn.q`, `layers.3.attn.out`, `layers.3.mlp.out`,
`layers.3.residual`, `final_norm`.
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
        """Take the tensor; it is overwritten by later operations, so copy what you keep."""
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
