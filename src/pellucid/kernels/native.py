"""The compiled twin of the reference: the only file that knows that C++ exists (csrc/)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from pellucid.config import Activation
from pellucid.errors import BackendError, UnsupportedModelError
from pellucid.formats.block_types import BlockType
from pellucid.forward_batch import ForwardBatch
from pellucid.kernels.backend import (
    AttentionParams,
    Float32Array,
    LayerCache,
    Matrix,
    RowDraw,
    RowSurvey,
    Step,
    WeightPart,
)
from pellucid.kv_cache.storage import KVLayer

try:
    from pellucid.kernels import _native  # type: ignore[attr-defined]
except ImportError as error:  # pragma: no cover - a broken installation
    raise BackendError(
        f"the compiled kernels could not be loaded ({error}): install Pellucid with pip so that they are built, "
        "or use the reference backend"
    ) from None

_NO_SCALES = np.empty((0, 0, 0, 0), dtype=np.float32)
_NO_FACTORS = np.empty((0, 0, 0, 0), dtype=np.uint8)
_ACTIVATION_CODES: dict[Activation, int] = {
    "silu": 0,
    "gelu_tanh": 1,
    "gelu": 2,
    "relu": 3,
    "swiglu_clamped": 4,
}


def available_isas() -> list[str]:
    """Instruction sets this build has kernels for and this machine can run, the fastest first."""
    return cast(list[str], _native.available_isas())


def unused_instructions() -> str:
    """Why faster instructions of this processor, AMX or AVX-VNNI, are not used; else empty."""
    return cast(str, _native.unused_instructions())


def start_thread(run: Callable[[], None], stack_bytes: int) -> None:
    """Start a thread with a stack of so many bytes; `run` must not raise. Raises `RuntimeError` where there is none."""
    _native.start_thread(run, stack_bytes)


class NativeStep(_native.Step):  # type: ignore[misc]
    """The arrays of one step, checked once and passed as one object."""

    def __init__(self, batch: ForwardBatch) -> None:
        self.nonfinite: npt.NDArray[np.bool_] = np.zeros(len(batch.token_ids), dtype=np.bool_)
        super().__init__(
            batch.positions,
            batch.slot_mapping,
            batch.query_start_loc,
            batch.block_table,
            self.nonfinite,
            batch.fast_rows,
        )

    def renew(self, batch: ForwardBatch) -> None:
        super().renew(batch.positions, batch.slot_mapping, batch.query_start_loc, batch.block_table, batch.fast_rows)


class NativeBackend:
    """The operations of `Backend` on the compiled kernels.

    `isa` "" takes the fastest instruction set of the machine. Raises `BackendError` for an unknown one.
    """

    name = "native"

    def __init__(self, threads: int, isa: str = "") -> None:
        try:
            self._runtime = _native.Runtime(threads, isa)
        except (ValueError, RuntimeError) as error:
            raise BackendError(str(error)) from None
        self.isa: str = self._runtime.isa
        self.threads: int = self._runtime.threads
        runtime = self._runtime
        # Bound methods of the compiled object: a decode step calls them some two hundred times.
        self.rms_norm = runtime.rms_norm
        self.rms_norm_add = runtime.rms_norm_add
        self.layer_norm = runtime.layer_norm
        self.linear = runtime.linear
        self.linear_add = runtime.linear_add
        self.embed = runtime.embed

    def matrix(self, parts: Sequence[WeightPart]) -> Matrix:
        for part in parts:
            if not part.type.served:
                raise UnsupportedModelError(f"tensor {part.name} is of type {part.type.name}, which has no kernels")
        described = [(p.data, p.type.ggml_id, p.rows, p.row_order, p.mapped) for p in parts]
        try:
            return cast(Matrix, self._runtime.pack(described, parts[0].columns))
        except ValueError as error:
            raise UnsupportedModelError(f"tensor {parts[0].name} can not be packed: {error}") from None

    def packed_bytes(self, type: BlockType, rows: int, columns: int) -> int:
        return cast(int, _native.packed_bytes(type.ggml_id, rows, columns)) if type.served else 0

    def layer_cache(self, layer: KVLayer) -> LayerCache:
        scales = _NO_SCALES if layer.scales is None else layer.scales
        factors = _NO_FACTORS if layer.factors is None else layer.factors
        try:
            return cast(LayerCache, _native.LayerCache(layer.keys, layer.values, scales, factors))
        except ValueError as error:
            raise UnsupportedModelError(f"the KV cache does not fit the native backend: {error}") from None

    def step(self, batch: ForwardBatch) -> Step:
        return NativeStep(batch)

    def note(self, operations: Callable[[], object]) -> Callable[[], object]:
        program = _native.Program()
        self._runtime.note_in(program)
        try:
            operations()
        finally:
            self._runtime.note_in(None)
        return cast(Callable[[], object], program.run)

    def linear_gated(
        self,
        x: Float32Array,
        norm: Float32Array,
        eps: float,
        gate_up: Matrix,
        activation: Activation,
        out: Float32Array,
        step: Step | None = None,
    ) -> None:
        self._runtime.linear_gated(x, norm, eps, gate_up, _ACTIVATION_CODES[activation], out, step)

    def activate(self, x: Float32Array, activation: Activation, is_gated: bool, out: Float32Array) -> None:
        self._runtime.activate(x, _ACTIVATION_CODES[activation], is_gated, out)

    def rotate_and_store(
        self,
        qkv: Float32Array,
        heads: int,
        q_norm: Float32Array | None,
        k_norm: Float32Array | None,
        eps: float,
        cosine: Float32Array,
        sine: Float32Array,
        step: Step,
        cache: LayerCache,
    ) -> None:
        self._runtime.rotate_and_store(qkv, heads, q_norm, k_norm, eps, cosine, sine, step, cache)

    def attention(
        self,
        qkv: Float32Array,
        heads: int,
        params: AttentionParams,
        step: Step,
        cache: LayerCache,
        out: Float32Array,
    ) -> None:
        self._runtime.attention(
            qkv, heads, params.window or 0, params.scale, params.causal, step, cache, out,
            params.softcap, params.sinks, params.slopes,
        )  # fmt: skip


class NativeSampling:
    """The operations of `SamplingKernels` on the compiled kernels; the bits are the same on every instruction set."""

    def __init__(self, isa: str = "", threads: int = 1) -> None:
        """threads: of `draw_rows` and `start_surveys`."""
        try:
            self._rows = _native.RowSampler(isa)
            self._together = _native.RowsSampler(isa, threads)
        except ValueError as error:
            raise BackendError(str(error)) from None
        self.rank = self._rows.rank

    def survey(self, logits: Float32Array, token_id: int, temperature: float, num_top: int) -> RowSurvey:
        return RowSurvey(*self._rows.survey(logits, token_id, temperature, num_top))

    def start_surveys(
        self, rows: Sequence[tuple[Float32Array, int, float]], num_top: int
    ) -> Callable[[], list[RowSurvey]]:
        running = self._together.survey(rows, num_top)
        return lambda: [RowSurvey(*found) for found in running.results()]

    def draw_rows(self, rows: Sequence[RowDraw]) -> list[tuple[int, float]]:
        described = [(r.logits, r.temperature, _log(r.min_p), r.top_k, r.top_p, r.u) for r in rows]
        return cast(list[tuple[int, float]], self._together.draw(described))

    def draw(
        self, logits: Float32Array, *, temperature: float, min_p: float, top_k: int, top_p: float, u: float
    ) -> tuple[int, float]:
        return cast(tuple[int, float], self._rows.draw(logits, temperature, _log(min_p), top_k, top_p, u))


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf
