"""One step's rows, as the model sees them: plain arrays, no requests, no phases.

A batch holds T rows (tokens) of S sequences, sequence after sequence. Rows of one sequence are
consecutive positions. There is no prefill and no decode here: a sequence that decodes has one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SequencePart:
    """Tokens of one sequence that are computed together, from position `start` on."""

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    """Blocks of the sequence in order; they reach to the part's end at least."""

    @property
    def end(self) -> int:
        """One past the last position computed."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The input of `Decoder.forward`.

    All arrays are C-contiguous. `T = len(token_ids)`, `S = len(seq_lens)`.
    """

    token_ids: Int32Array
    """[T] ids to embed."""
    positions: Int32Array
    """[T] absolute position of each row in its sequence, from 0."""
    slot_mapping: Int64Array
    """[T] where each row's key and value are stored: block · block_size + offset."""
    query_start_loc: Int32Array
    """[S + 1] rows of sequence s are query_start_loc[s] … query_start_loc[s + 1] − 1."""
    seq_lens: Int32Array
    """[S] tokens of the sequence that are in the cache once this step has stored its rows."""
    block_table: Int32Array
    """[S, max_blocks] physical block of each logical block; unused entries are 0 and never read."""
    fast_rows: BoolArray | None = None
    """[T] True where matrix products may be of precision "fast"; None: all are exact."""


def batch_of(parts: Sequence[SequencePart], block_size: int) -> ForwardBatch:
    """The batch that computes a part of each sequence, in fresh arrays."""
    counts = np.array([len(part.token_ids) for part in parts])
    tables = np.zeros((len(parts), max(len(part.block_table) for part in parts)), dtype=np.int32)
    for row, part in zip(tables, parts, strict=True):
        row[: len(part.block_table)] = part.block_table
    positions = np.concatenate([np.arange(part.start, part.end, dtype=np.int32) for part in parts])
    owners = np.repeat(np.arange(len(parts)), counts)
    return ForwardBatch(
        token_ids=np.concatenate([np.asarray(part.token_ids, dtype=np.int32) for part in parts]),
        positions=positions,
        slot_mapping=tables[owners, positions // block_size].astype(np.int64) * block_size + positions % block_size,
        query_start_loc=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        seq_lens=np.array([part.end for part in parts], dtype=np.int32),
        block_table=tables,
    )


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """The output of `Decoder.forward`; the arrays are valid until the next call of `forward`."""

    hidden: Float32Array
    """[T, hidden_size] after the final norm: what the LM head takes."""
    nonfinite: BoolArray
    """[T] True where a key or value could not be stored as a finite number."""
