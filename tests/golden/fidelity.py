"""How far one implementation's logits are from the golden ones, and how the golden fixtures are stored.

A fixture holds, for several documents, the final norm's output of the float32 model (what the LM head takes), the
logsumexp of every position and the 64 largest logits of every fourth. Full logits would be gigabytes, so a comparison
applies the head to the golden hidden states itself. `tools/make_golden_logits.py` writes the fixtures. NumPy only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int32Array = npt.NDArray[np.int32]

MAX_MEAN_KL = 3e-5
"""Law 2, in nats."""
MAX_ROW_KL = 3e-4
"""Worst single position, in nats: a window of 511 or 513 moves few rows, so that the mean alone would not tell."""
GOLDEN_DIR = Path(__file__).resolve().parent
SHORT_DOCUMENT = "short"
"""The document whose hidden states are stored layer by layer."""
NUM_TOP = 64
"""Logits stored per position that has them."""
TOP_STRIDE = 4
"""Every fourth position (0, 4, 8, …) has its largest logits stored: they check the head, and take room."""
GROUP = 32
"""Numbers that share one scale in a stored hidden state."""
VOCAB_BLOCK = 16_384
"""Vocabulary columns handled at a time, so that float64 work arrays stay small."""


@dataclass(frozen=True, slots=True)
class StoredHidden:
    """Hidden states [..., d] rounded to 16 bits: integers · group scale · column scale."""

    integers: npt.NDArray[np.int16]
    """[..., d]"""
    group_scales: Float32Array
    """[..., d / 32]"""
    column_scales: Float32Array
    """[d]"""

    @classmethod
    def encode(cls, hidden: Float32Array) -> StoredHidden:
        """Round `hidden` [..., d], d a multiple of 32; the error is at most 2**-16 of a group's maximum.

        Columns are first divided by the square root of their RMS: a few columns are 30 times larger than the rest, and
        would cost their neighbours 5 bits. Measured: 2e-9 nats instead of 1.2e-8.
        """
        rms = np.sqrt(np.square(hidden, dtype=np.float64).reshape(-1, hidden.shape[-1]).mean(axis=0))
        column_scales = np.sqrt(np.where(rms > 0, rms, 1.0)).astype(np.float32)
        groups = (hidden.astype(np.float64) / column_scales).reshape(*hidden.shape[:-1], -1, GROUP)
        group_scales = (np.abs(groups).max(axis=-1) / 32767.0).astype(np.float32)
        steps = np.where(group_scales > 0, group_scales, 1.0).astype(np.float64)
        rounded = np.clip(np.rint(groups / steps[..., None]), -32767, 32767)
        return cls(rounded.astype(np.int16).reshape(hidden.shape), group_scales, column_scales)

    def decode(self) -> Float32Array:
        """Back to float32 [..., d]."""
        groups = self.integers.reshape(*self.integers.shape[:-1], -1, GROUP).astype(np.float32)
        hidden = (groups * self.group_scales[..., None]).reshape(self.integers.shape) * self.column_scales
        return np.asarray(hidden, dtype=np.float32)

    def arrays(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """The arrays as a fixture names them."""
        return {f"{name}.{part}": getattr(self, part) for part in ("integers", "group_scales", "column_scales")}

    @classmethod
    def from_arrays(cls, name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> StoredHidden:
        """The inverse of `arrays`."""
        return cls(arrays[f"{name}.integers"], arrays[f"{name}.group_scales"], arrays[f"{name}.column_scales"])


@dataclass(frozen=True, slots=True)
class GoldenDocument:
    """One text as the float32 model saw it, from position 0."""

    name: str
    token_ids: Int32Array
    """[T]"""
    hidden: Float32Array
    """[T, d] after the final norm."""
    top_ids: Int32Array
    """[ceil(T / 4), 64] ids of the largest logits of positions 0, 4, 8, …, largest first."""
    top_logits: Float32Array
    """[ceil(T / 4), 64]"""
    logsumexp: Float64Array
    """[T] of all the position's logits."""
    layers: dict[str, Float32Array] = field(default_factory=dict)
    """`embedding` and `layers.N.residual`, [T, d] each; only for the short document."""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Golden:
    """The fixture of one model."""

    meta: dict[str, Any]
    """What was run: model file and its sha256, versions, measured rounding error, loss per document."""
    documents: dict[str, GoldenDocument]

    @property
    def num_tokens(self) -> int:
        """Positions of all documents together."""
        return sum(len(document) for document in self.documents.values())


def save_golden(path: Path, meta: Mapping[str, Any], documents: list[GoldenDocument]) -> None:
    """Write a fixture: a compressed .npz without pickled objects."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for document in documents:
        name = document.name
        arrays[f"{name}.token_ids"] = document.token_ids
        arrays |= StoredHidden.encode(document.hidden).arrays(f"{name}.hidden")
        arrays[f"{name}.top_ids"] = document.top_ids
        arrays[f"{name}.top_logits"] = document.top_logits
        arrays[f"{name}.logsumexp"] = document.logsumexp
        for layer, tensor in document.layers.items():
            arrays |= StoredHidden.encode(tensor).arrays(f"{name}/{layer}")
    header = {**meta, "documents": [document.name for document in documents]}
    arrays["meta"] = np.array(json.dumps(header, ensure_ascii=False, sort_keys=True))
    with path.open("wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]  # numpy's stub reads ** as its own flags


def load_golden(path: Path) -> Golden:
    """Read a fixture written by `save_golden`."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    meta = json.loads(str(arrays["meta"]))
    documents = {}
    for name in meta["documents"]:
        prefix = f"{name}/"
        layers = {
            stem.removeprefix(prefix): StoredHidden.from_arrays(stem, arrays).decode()
            for stem in (key.removesuffix(".integers") for key in arrays if key.endswith(".integers"))
            if stem.startswith(prefix)
        }
        documents[name] = GoldenDocument(
            name=name,
            token_ids=arrays[f"{name}.token_ids"],
            hidden=StoredHidden.from_arrays(f"{name}.hidden", arrays).decode(),
            top_ids=arrays[f"{name}.top_ids"],
            top_logits=arrays[f"{name}.top_logits"],
            logsumexp=arrays[f"{name}.logsumexp"],
            layers=layers,
        )
    return Golden(meta=meta, documents=documents)


def golden_path(model: str) -> Path:
    """The fixture of a model, by short name: `smollm2-135m` or `gemma3-270m`."""
    return GOLDEN_DIR / f"{model}.npz"


def apply_head(hidden: Float32Array, head: Float32Array) -> Float32Array:
    """Logits [R, vocab] of hidden states [R, d] under the LM head [vocab, d], in float32."""
    return np.asarray(np.matmul(hidden, head.T), dtype=np.float32)


def logsumexp(logits: Float32Array) -> Float64Array:
    """log Σ exp of each row of [R, vocab], in float64, vocabulary block by block."""
    peak = logits.max(axis=1).astype(np.float64)
    total = np.zeros(len(logits))
    for block in _vocab_blocks(logits.shape[1]):
        total += np.exp(logits[:, block].astype(np.float64) - peak[:, None]).sum(axis=1)
    return np.asarray(peak + np.log(total))


def kl_divergence(ref_logits: Float32Array, our_logits: Float32Array) -> Float64Array:
    """KL(ref ‖ ours) of each row's softmax, in nats [R], from logits [R, vocab].

    Σ p (log p − log q) = Σ p (ref − ours) − logsumexp(ref) + logsumexp(ours) with p = softmax(ref), summed in
    float64: the differences of first order cancel to about 1e-14, far below any bound asked of it.
    """
    if ref_logits.shape != our_logits.shape:
        raise ValueError(f"logits have shapes {ref_logits.shape} and {our_logits.shape}, but must have the same")
    ref_peak = ref_logits.max(axis=1).astype(np.float64)[:, None]
    our_peak = our_logits.max(axis=1).astype(np.float64)[:, None]
    ref_sum, our_sum, weighted = (np.zeros(len(ref_logits)) for _ in range(3))
    for block in _vocab_blocks(ref_logits.shape[1]):
        ref = ref_logits[:, block].astype(np.float64) - ref_peak
        ours = our_logits[:, block].astype(np.float64) - our_peak
        weights = np.exp(ref)
        ref_sum += weights.sum(axis=1)
        weighted += np.einsum("rv,rv->r", weights, ref - ours)
        our_sum += np.exp(ours).sum(axis=1)
    return np.asarray(weighted / ref_sum - np.log(ref_sum) + np.log(our_sum))


def agreement(ref_logits: Float32Array, our_logits: Float32Array) -> npt.NDArray[np.bool_]:
    """[R] whether both choose the same id greedily (ties to the lowest id)."""
    return np.asarray(ref_logits.argmax(axis=1) == our_logits.argmax(axis=1))


@dataclass(slots=True)
class Fidelity:
    """Collects KL and agreement over many rows."""

    kl: list[Float64Array] = field(default_factory=list)
    agree: list[npt.NDArray[np.bool_]] = field(default_factory=list)

    def add(self, ref_logits: Float32Array, our_logits: Float32Array) -> None:
        """Compare one more block of rows [R, vocab]."""
        self.kl.append(kl_divergence(ref_logits, our_logits))
        self.agree.append(agreement(ref_logits, our_logits))

    @property
    def num_tokens(self) -> int:
        """Rows compared so far."""
        return sum(len(rows) for rows in self.kl)

    @property
    def mean_kl(self) -> float:
        """Mean KL in nats; NaN when no row was compared, so that no bound holds by accident."""
        return float(np.concatenate(self.kl).mean()) if self.kl else float("nan")

    @property
    def max_kl(self) -> float:
        """Largest KL of one row in nats."""
        return float(np.concatenate(self.kl).max()) if self.kl else float("nan")

    @property
    def agreement(self) -> float:
        """Share of rows with the same greedy choice, 0 to 1."""
        return float(np.concatenate(self.agree).mean()) if self.agree else float("nan")

    def summary(self) -> dict[str, float | int]:
        """The figures as plain numbers."""
        return {
            "tokens": self.num_tokens,
            "mean_kl": self.mean_kl,
            "max_kl": self.max_kl,
            "agreement": self.agreement,
        }


def relative_error(ref: Float32Array, ours: Float32Array) -> float:
    """The worst row's ‖ours − ref‖ / ‖ref‖ (Euclidean, float64) over rows [T, d]."""
    difference = np.linalg.norm(ours.astype(np.float64) - ref, axis=-1)
    return float((difference / np.linalg.norm(ref.astype(np.float64), axis=-1)).max())


def row_chunks(num_rows: int, size: int) -> Iterator[slice]:
    """Slices that cut `num_rows` rows into chunks of `size`, the last one shorter."""
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def _vocab_blocks(vocab_size: int) -> Iterator[slice]:
    return row_chunks(vocab_size, VOCAB_BLOCK)
