"""One step's rows, as the model sees them: plain arrays, no requests, no phases.

A batch holds T rows (tokens) of S sequences, sequence after sequence. Rows of one sequence are
consecutive positions. There is no prefill and no decode here: a sequence that decodes has one row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


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


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """The output of `Decoder.forward`; the arrays are valid until the next call of `forward`."""

    hidden: Float32Array
    """[T, hidden_size] after the final norm: what the LM head takes."""
    nonfinite: BoolArray
    """[T] True where a key or value could not be stored as a finite number."""
