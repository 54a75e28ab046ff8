"""The operations of a decoder, as a protocol. Every backend offers exactly these.

Shapes: T rows of a step, d = hidden_size, H query heads, G KV heads, D = head_dim (Dv that of values, if another).
All arrays are float32 and C-contiguous unless said otherwise. Operations write into the array named `out`, or add to
`residual`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pellucid.config import Activation
from pellucid.formats.block_types import BlockType
from pellucid.forward_batch import ForwardBatch
from pellucid.kv_cache.storage import KVLayer

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Rows of a weight matrix as they lie in the file; a matrix is one or more parts, one below the other."""

    name: str
    data: npt.NDArray[np.uint8]
    """[rows · bytes per row] blocks of `type`, row after row."""
    type: BlockType
    rows: int
    columns: int
    row_order: npt.NDArray[np.int32] | None = None
    """[rows] row_order[i] is the file's row that becomes row i; None: as they lie."""
    mapped: bool = False
    """`data` is of a mapped file, or of memory that is read once: a backend may drop its pages as it packs them."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionParams:
    """What one layer's attention does with the scores q · k."""

    scale: float
    """Factor on them."""
    causal: bool = True
    """Whether a row sees only itself and what is before; else all of its sequence, which must be in the step."""
    window: int | None = None
    """Positions a row sees, its own included; None: all before."""
    softcap: float | None = None
    """c in c · tanh(score / c), after the scale (Gemma team 2024, section 2)."""
    sinks: Float32Array | None = None
    """[H] one more score in each head's softmax, without a value (OpenAI 2025, gpt-oss)."""
    slopes: Float32Array | None = None
    """[H] subtracted from a score for each position of distance (Press et al. 2022, ALiBi)."""


class Matrix(Protocol):
    """A weight matrix [rows, columns] in a backend's own form."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def packed_bytes(self) -> int:
        """Bytes it takes in memory."""
        ...


class LayerCache(Protocol):
    """Keys and values of one layer, as `KVCacheStorage` holds them, in a backend's own form."""


class Step(Protocol):
    """A `ForwardBatch` in a backend's own form; `nonfinite` [T] is filled by `rotate_and_store`."""

    @property
    def nonfinite(self) -> npt.NDArray[np.bool_]: ...

    def renew(self, batch: ForwardBatch) -> None:
        """Become the step of another batch with as many rows; nothing is nonfinite yet."""
        ...


class Backend(Protocol):
    """One implementation of the operations."""

    @property
    def name(self) -> str:
        """native or reference."""
        ...

    @property
    def isa(self) -> str:
        """Instruction set in use; numpy for the reference."""
        ...

    @property
    def threads(self) -> int: ...

    def matrix(self, parts: Sequence[WeightPart]) -> Matrix:
        """Pack the parts, which have equal columns, into one matrix. The parts' data may be dropped afterwards."""
        ...

    def packed_bytes(self, type: BlockType, rows: int, columns: int) -> int:
        """Bytes that a matrix of this type takes once packed; 0 for a type that is not served."""
        ...

    def layer_cache(self, layer: KVLayer) -> LayerCache:
        """Bind the arrays of one layer."""
        ...

    def step(self, batch: ForwardBatch) -> Step:
        """Bind the arrays of one step."""
        ...

    def note(self, operations: Callable[[], object]) -> Callable[[], object]:
        """What does `operations` in one call, each time on what the same arrays, step and caches then hold.

        They are calls of what is below, `embed` excepted, and no computing between. Nothing is done yet.
        """
        ...

    def embed(self, table: Matrix, ids: npt.NDArray[np.int32], scale: float, out: Float32Array) -> None:
        """out[t] = scale · table[ids[t]]; out [T, d]."""
        ...

    def rms_norm(self, x: Float32Array, weight: Float32Array, eps: float, out: Float32Array) -> None:
        """out = x / sqrt(mean(x²) + eps) · weight, row by row (Zhang and Sennrich 2019, RMSNorm)."""
        ...

    def layer_norm(
        self, x: Float32Array, weight: Float32Array, bias: Float32Array | None, eps: float, out: Float32Array
    ) -> None:
        """out = (x − mean) / sqrt(variance + eps) · weight + bias, row by row (Ba et al. 2016)."""
        ...

    def rms_norm_add(self, x: Float32Array, weight: Float32Array, eps: float, residual: Float32Array) -> None:
        """residual += rms_norm(x)."""
        ...

    def linear(
        self,
        x: Float32Array,
        norm: Float32Array | None,
        eps: float,
        matrix: Matrix,
        out: Float32Array,
        step: Step | None = None,
        bias: Float32Array | None = None,
    ) -> None:
        """out = rms_norm(x) · matrixᵀ + bias, or x · matrixᵀ + bias where `norm` is None; out [T, rows], bias [rows].

        `step` says which rows may be fast (`ForwardBatch.fast_rows`), here and below; None: all are exact. The
        reference computes all exactly.
        """
        ...

    def linear_add(
        self,
        x: Float32Array,
        matrix: Matrix,
        residual: Float32Array,
        step: Step | None = None,
        bias: Float32Array | None = None,
    ) -> None:
        """residual += x · matrixᵀ, then += bias."""
        ...

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
        """out = activation(gate · n) · (up · n) with n = rms_norm(x) and gate_up = [gate; up] (Shazeer 2020, GLU)."""
        ...

    def activate(self, x: Float32Array, activation: Activation, is_gated: bool, out: Float32Array) -> None:
        """out [T, n] = activation(x); is_gated: x [T, 2 n] = [gate; up] and out = activation(gate) · up.

        swiglu_clamped is always gated: gate · sigmoid(1.702 · gate) · (up + 1), gate at most 7, up from −7 to 7.
        """
        ...

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
        """Normalise (where weights are given) and rotate q, k of qkv [T, (H + G) · D + G · Dv] in place; store k, v.

        cosine and sine are [T, pairs]; pair i of a head is (x[i], x[i + pairs]). Sets `step.nonfinite[t]` where a
        number of row t is not finite as stored.
        """
        ...

    def attention(
        self,
        qkv: Float32Array,
        heads: int,
        params: AttentionParams,
        step: Step,
        cache: LayerCache,
        out: Float32Array,
    ) -> None:
        """out[t] = softmax(scale · q · Kᵀ) · V over the positions row t sees: its own and those before, `window` of
        them at most; query head h reads KV head h // (H / G) (Ainslie et al. 2023, GQA). out [T, H · Dv].
        `AttentionParams` says what else happens to the scores."""
        ...


class RowSurvey(NamedTuple):
    """One row of logits as a trace needs it. Weights are those of `sampling/candidates.py`, whole numbers."""

    largest: float
    possible: int
    """Tokens whose logit is above −∞."""
    rank: int
    """Of the token asked about, from 1."""
    raw_weight: int
    """Sum of the weights at temperature 1 …"""
    raw_moment: float
    """… and of −exponent · exp(exponent), in float32: with Z = weight / 2**42, entropy is log Z + moment / Z."""
    weight: int
    """The same at the temperature asked for."""
    moment: float
    ids: bytes
    """int32: the first candidates, in their order."""
    logits: bytes
    """float32: theirs."""
    ends: bytes
    """uint64: the weight of the first i + 1 of them, at the temperature asked for."""


class RowDraw(NamedTuple):
    """A row to draw from, and how: see `SamplingKernels.draw`."""

    logits: Float32Array
    temperature: float
    """0: the first candidate."""
    min_p: float
    top_k: int
    top_p: float
    u: float


class SamplingKernels(Protocol):
    """What sampling asks of one row of logits, float32 [vocab]; `sampling/candidates.py` is the definition."""

    def draw(
        self, logits: Float32Array, *, temperature: float, min_p: float, top_k: int, top_p: float, u: float
    ) -> tuple[int, float]:
        """(the id that temperature, min-p, top-k, top-p and the draw u choose, the largest logit, NaN if any is NaN).

        `temperature` is above 0 and a finite float32; `top_k` 0, `min_p` 0 and `top_p` 1 are off. The id is -1 where
        the largest logit is not finite.
        """
        ...

    def draw_rows(self, rows: Sequence[RowDraw]) -> list[tuple[int, float]]:
        """`draw` of each row, side by side on the kernels' threads."""
        ...

    def start_surveys(
        self, rows: Sequence[tuple[Float32Array, int, float]], num_top: int
    ) -> Callable[[], list[RowSurvey]]:
        """Begin `survey` of each (logits, token id, temperature) on the kernels' threads; what it gives waits for them.

        The logits must not be written to until then.
        """
        ...

    def survey(self, logits: Float32Array, token_id: int, temperature: float, num_top: int) -> RowSurvey:
        """What a trace tells of the row; the largest logit must be finite."""
        ...

    def rank(self, logits: Float32Array, token_id: int, num_top: int) -> tuple[float, int, int, list[int]]:
        """(largest logit, sum of the whole weights at temperature 1, rank of `token_id` from 1, most probable ids)."""
        ...
