"""The probe: how a forward pass is watched without slowing an unwatched one.

The model asks `wants(name)` before it hands out a tensor, so nothing is copied or computed for names
nobody asked for. Names are stable; T rows, H query and G KV heads of D numbers, d = hidden_size:

    embedding                       [T, d]      after scaling
    layers.3.attn.q, .k, .v         [T, H · D], [T, G · D] twice; q and k after norm and rotation
    layers.3.attn.out               [T, H · D]  what attention gives, before its output matrix
    layers.3.attn.added             [T, d]      after attention's branch was added
    layers.3.mlp.input              [T, d]      what the MLP is added to; only where sums are normalised (GPT-1)
    layers.3.mlp.gated              [T, intermediate_size]  activation(gate) · up, before the down matrix
    layers.3.mlp.added              [T, d]      after the MLP's branch was added; only where sums are normalised
    layers.3.moe.router             [T, experts]  the router's logits; only where the layer has experts
    layers.3.moe.ids, .weights      [T, chosen]   the experts of each row (int64), and their weights
    layers.3.residual               [T, d]      after both branches were added
    final_norm                      [T, d]      what the LM head takes
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt


class Probe(Protocol):
    """Receives named tensors of one forward pass."""

    def wants(self, name: str) -> bool:
        """Whether `record` should be called for this name in this pass."""
        ...

    def record(self, name: str, tensor: npt.NDArray[Any]) -> None:
        """Take the tensor [T, …], float32 but for ids; it is overwritten by later operations, so copy what you keep."""
        ...


def show(probe: Probe, name: str, tensor: npt.NDArray[Any]) -> None:
    """Hand out a tensor if it is wanted."""
    if probe.wants(name):
        probe.record(name, tensor)


class Recorder:
    """A probe that keeps a copy of every tensor whose name is in `names` (all names when `names` is None)."""

    def __init__(self, names: frozenset[str] | None = None) -> None:
        self.names = names
        self.tensors: dict[str, npt.NDArray[Any]] = {}

    def wants(self, name: str) -> bool:
        return self.names is None or name in self.names

    def record(self, name: str, tensor: npt.NDArray[Any]) -> None:
        self.tensors[name] = tensor.copy()
