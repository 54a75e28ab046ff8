"""One step's arrays in, chosen tokens out: ForwardBatch → model → logits of the rows that need them → sampler.

Knows arrays and the model; knows nothing of queues, text or stop conditions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from pellucid.config import ModelConfig, Precision
from pellucid.engine.scheduler import ScheduledRequest, SchedulerOutput
from pellucid.errors import InvalidParameterError, NonFiniteError, PellucidError
from pellucid.forward_batch import BoolArray, Float32Array, ForwardBatch, ForwardOutput, Int32Array
from pellucid.kernels.dispatch import make_sampling_kernels, usable_cores
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.request import Request
from pellucid.sampling.constraints.mask_worker import MaskWorker
from pellucid.sampling.logprobs import raw_logprobs
from pellucid.sampling.sampler import SampledToken, Sampler
from pellucid.sampling.state import SamplingState
from pellucid.trace.probe import Probe

MAX_LOGITS_ROWS = 64
MAX_LOGITS_BYTES = 32 * 1024**2
"""Logits are computed for so many rows at a time: a prompt's worth of them would be gigabytes."""

MIN_FAST_ROWS = 16
"""With precision fast, so many prompt rows of a request in one step are worth it: fewer wait for memory anyway."""

RankedToken = tuple[int, float, int]
"""(id, logprob, rank)."""


class Model(Protocol):
    """What the engine asks of a model; `pellucid.models` has the real one."""

    @property
    def config(self) -> ModelConfig: ...

    def forward(self, batch: ForwardBatch, kv: KVCacheStorage, probe: Probe | None = None) -> ForwardOutput:
        """Store the rows' keys and values at their slots and give back their hidden states [T, hidden_size]."""
        ...

    def compute_logits(self, hidden: Float32Array) -> Float32Array:
        """Hidden states [R, hidden_size] to logits [R, vocab_size]."""
        ...


@dataclass(slots=True)
class StepResult:
    """What one scheduled request got out of a step."""

    entry: ScheduledRequest
    prompt_rows: list[list[RankedToken]] = field(default_factory=list)
    """Logprobs of the next prompt positions: the given token first, then the most probable ones."""
    error: str | None = None
    """Why this request, and it alone, cannot go on."""
    error_field: str | None = None
    """The parameter whose fault it is."""
    is_void: bool = False
    """A draft could not be stored: the step did not happen for this request, and comes again without drafts."""

    def fail(self, error: PellucidError) -> None:
        """End the request here."""
        request = self.entry.request
        self.error = f"request {request.request_id}, position {request.num_tokens}: {error}"
        self.error_field = error.field if isinstance(error, InvalidParameterError) else None


@dataclass(slots=True)
class _Row:
    """A running request's place in the runner's block table."""

    index: int
    sampling: SamplingState
    num_blocks: int = 0


class ModelRunner:
    """Keeps the block tables of running requests as one array, so that a decode step writes only what is new."""

    def __init__(
        self,
        model: Model,
        storage: KVCacheStorage,
        *,
        max_model_len: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        backend: str = "native",
        threads: int | None = None,
        precision: Precision = "exact",
    ) -> None:
        """threads: of the model's kernels; all cores when None."""
        self.model = model
        self.storage = storage
        self.probe: Probe | None = None
        """When set, every forward pass is shown to it."""
        self.sampler = Sampler(model.config.vocab_size, make_sampling_kernels(backend, threads))
        self.max_logits_rows = min(MAX_LOGITS_ROWS, max(1, MAX_LOGITS_BYTES // (4 * model.config.vocab_size)))
        self._masks = MaskWorker(overlaps=threads is not None and threads < usable_cores())
        self.seconds = 0.0
        """What the model took for the last step: its blocks and the LM head on the rows drawn from."""
        self._hidden: Float32Array = np.zeros((0, model.config.hidden_size), dtype=np.float32)
        self._block_size = storage.block_size
        self._rows: dict[int, _Row] = {}
        self._free_indices = list(range(max_num_seqs - 1, -1, -1))
        self._block_table = np.zeros((max_num_seqs, -(-max_model_len // self._block_size)), dtype=np.int32)
        self._token_ids = np.zeros(max_num_batched_tokens, dtype=np.int32)
        self._positions = np.zeros(max_num_batched_tokens, dtype=np.int32)
        self._slot_mapping = np.zeros(max_num_batched_tokens, dtype=np.int64)
        self._fast_rows = np.zeros(max_num_batched_tokens, dtype=np.bool_) if precision == "fast" else None
        self._query_start_loc = np.zeros(max_num_seqs + 1, dtype=np.int32)
        self._seq_lens = np.zeros(max_num_seqs, dtype=np.int32)

    @property
    def held_keys(self) -> set[int]:
        """Keys of the requests that have a row; those released but not yet told in a step included."""
        return set(self._rows)

    def execute(self, step: SchedulerOutput) -> list[StepResult]:
        """Run one step; results in the order of `step.scheduled`. Requests are read and not changed.

        The tokens are still to be drawn: `draw`.
        """
        while step.released:
            self._release(step.released.pop())
        if not step.scheduled:
            return []
        batch = self._build_batch(step.scheduled)
        constraints = [entry.request.constraint for entry in step.scheduled if entry.draws]
        self._masks.start([constraint for constraint in constraints if constraint is not None])
        began = time.perf_counter()
        try:
            output = self.model.forward(batch, self.storage, self.probe)
        finally:
            self.seconds = time.perf_counter() - began
            self._masks.wait()
        self._hidden = output.hidden
        results = [StepResult(entry) for entry in step.scheduled]
        if output.nonfinite.any():
            self._mark_nonfinite(results, output, batch)
        self._compute_prompt_logprobs(results, output.hidden, batch.query_start_loc)
        return results

    def draw(self, results: list[StepResult]) -> Iterator[tuple[StepResult, Iterator[SampledToken]]]:
        """The requests of the step just executed whose known tokens are all computed, each with its next tokens.

        Without drafts that is one token. The caller appends a token to the request before it takes the next one:
        then a draft that is this token is known to be right, and its row decides the one after it. The caller may
        stop early; what it did not take was not drawn.
        """
        drawing: list[tuple[StepResult, int, int]] = []
        end = 0
        for result in results:
            entry, first = result.entry, end
            end += entry.num_rows
            if entry.draws and result.error is None and not result.is_void:
                drawing.append((result, first + entry.num_new_tokens - 1, end))
        for part in self._parts(drawing):
            rows = [row for _, first, end in part for row in range(first, end)]
            began = time.perf_counter()
            hidden = self._hidden
            logits = self.model.compute_logits(hidden if len(rows) == len(hidden) else hidden[rows])
            self.seconds += time.perf_counter() - began
            drawn = self._drawn_ahead(part, logits)
            place = 0
            for result, first, end in part:
                yield result, self._tokens(result, logits[place : place + end - first], drawn.get(place))
                place += end - first

    def _drawn_ahead(
        self, part: list[tuple[StepResult, int, int]], logits: Float32Array
    ) -> dict[int, tuple[int, float]]:
        """Draws of requests without drafts, by their row of the logits."""
        places: list[int] = []
        rows: list[tuple[Float32Array, SamplingState]] = []
        place = 0
        for result, first, end in part:
            if end - first == 1:
                places.append(place)
                rows.append((logits[place], self._rows[result.entry.request.key].sampling))
            place += end - first
        found = self.sampler.draw_ahead(rows) if len(rows) > 1 else []
        return {place: one for place, one in zip(places, found, strict=False) if one is not None}

    def _parts(self, drawing: list[tuple[StepResult, int, int]]) -> Iterator[list[tuple[StepResult, int, int]]]:
        """The same in pieces whose logits are made together; one request's rows are not torn apart."""
        part: list[tuple[StepResult, int, int]] = []
        num_rows = 0
        for item in drawing:
            count = item[2] - item[1]
            if part and num_rows + count > self.max_logits_rows:
                yield part
                part, num_rows = [], 0
            part.append(item)
            num_rows += count
        if part:
            yield part

    def _tokens(
        self, result: StepResult, logits: Float32Array, drawn: tuple[int, float] | None
    ) -> Iterator[SampledToken]:
        request, draft = result.entry.request, result.entry.draft_token_ids
        sampling = self._rows[request.key].sampling
        for place, row_logits in enumerate(logits):
            if place and request.constraint is not None:
                request.constraint.fill_mask()  # the first one's was filled while the model computed
            try:
                sampled = self.sampler.sample(row_logits, sampling, drawn=drawn)
            except PellucidError as error:
                result.fail(error)
                return
            yield sampled
            if place == len(draft) or sampled.token_id != draft[place]:
                return

    def _release(self, key: int) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._free_indices.append(row.index)

    def _row_of(self, request: Request) -> _Row:
        row = self._rows.get(request.key)
        if row is None:
            sampling = SamplingState(
                params=request.params,
                seed=request.seed,
                sample_index=request.sample_index,
                prompt_token_ids=request.prompt_token_ids,
                output_token_ids=request.output_token_ids,
                end_token_ids=request.end_token_ids,
                logits_processors=request.logits_processors,
                constraint=request.constraint,
            )
            row = self._rows[request.key] = _Row(self._free_indices.pop(), sampling)
        return row

    def _build_batch(self, scheduled: Sequence[ScheduledRequest]) -> ForwardBatch:
        """The step as arrays; they are views of the runner's own, overwritten by the next step."""
        block_size = self._block_size
        indices: list[int] = []
        num_rows = 0
        for i, entry in enumerate(scheduled):
            row = self._row_of(entry.request)
            indices.append(row.index)
            table = entry.block_table
            if len(table) != row.num_blocks:
                self._block_table[row.index, row.num_blocks : len(table)] = table[row.num_blocks :]
                row.num_blocks = len(table)
            start, end = entry.start, entry.start + entry.num_rows
            self._query_start_loc[i] = num_rows
            self._seq_lens[i] = end
            if end - start == 1:
                self._token_ids[num_rows] = entry.request.token_at(start)
                self._positions[num_rows] = start
                self._slot_mapping[num_rows] = table[start // block_size] * block_size + start % block_size
            else:
                rows = slice(num_rows, num_rows + end - start)
                positions = np.arange(start, end, dtype=np.int32)
                self._token_ids[rows] = entry.request.tokens_between(start, entry.end) + entry.draft_token_ids
                self._positions[rows] = positions
                blocks = self._block_table[row.index, positions // block_size].astype(np.int64)
                self._slot_mapping[rows] = blocks * block_size + positions % block_size
            if self._fast_rows is not None:
                self._mark_fast(entry, num_rows, self._fast_rows)
            num_rows += end - start
        self._query_start_loc[len(scheduled)] = num_rows
        return ForwardBatch(
            token_ids=self._token_ids[:num_rows],
            positions=self._positions[:num_rows],
            slot_mapping=self._slot_mapping[:num_rows],
            query_start_loc=self._query_start_loc[: len(scheduled) + 1],
            seq_lens=self._seq_lens[: len(scheduled)],
            block_table=self._table_rows(indices),
            fast_rows=None if self._fast_rows is None else self._fast_rows[:num_rows],
        )

    @staticmethod
    def _mark_fast(entry: ScheduledRequest, first_row: int, fast_rows: BoolArray) -> None:
        """Only positions of the prompt may be fast, whether they are computed for the first time or again."""
        num_fast = min(entry.end, entry.request.num_prompt_tokens) - entry.start
        if num_fast < MIN_FAST_ROWS:
            num_fast = 0
        fast_rows[first_row : first_row + num_fast] = True
        fast_rows[first_row + num_fast : first_row + entry.num_rows] = False

    def _table_rows(self, indices: list[int]) -> Int32Array:
        """[S, max_blocks] block tables in batch order; a view where the rows lie that way already."""
        if indices == list(range(len(indices))):
            return self._block_table[: len(indices)]
        return self._block_table[indices]

    def _mark_nonfinite(self, results: list[StepResult], output: ForwardOutput, batch: ForwardBatch) -> None:
        for i, result in enumerate(results):
            first, end = int(batch.query_start_loc[i]), int(batch.query_start_loc[i + 1])
            first_draft = end - len(result.entry.draft_token_ids)
            known = output.nonfinite[first:first_draft]
            if known.any():
                position = result.entry.start + int(known.argmax())
                result.error = str(
                    NonFiniteError(
                        f"request {result.entry.request.request_id}: a key or value of position {position} is NaN "
                        f"or too large for the {self.storage.dtype} KV cache; this request ends here, others go on"
                    )
                )
            if output.nonfinite[first_draft:end].any():
                result.is_void = result.error is None
                self.storage.clear_slots(batch.slot_mapping[first_draft:end].tolist())

    def _compute_prompt_logprobs(
        self, results: list[StepResult], hidden: Float32Array, query_start_loc: Int32Array
    ) -> None:
        for i, result in enumerate(results):
            request, entry = result.entry.request, result.entry
            first = max(entry.start, request.num_prompt_rows_reported)
            last = min(entry.end, request.num_prompt_rows_wanted)
            if first >= last or result.error is not None or result.is_void:
                continue
            offset = int(query_start_loc[i]) - entry.start
            num_logprobs = request.params.prompt_logprobs or 0
            for position in range(first, last, self.max_logits_rows):
                stop = min(position + self.max_logits_rows, last)
                logits = self.model.compute_logits(hidden[offset + position : offset + stop])
                try:
                    for row, given in zip(logits, request.prompt_token_ids[position + 1 : stop + 1], strict=True):
                        result.prompt_rows.append(raw_logprobs(row, num_logprobs, given, self.sampler.kernels))
                except PellucidError as error:
                    result.fail(error)
                    break
