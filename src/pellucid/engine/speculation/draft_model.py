"""A smaller model that guesses: it draws each token as the target would, from its own logits with the same numbers.

Its keys and values lie in a storage of its own at the target's slots, so that it needs no blocks, and prefixes that
requests share are shared here too. It computes what it lacks when it is asked for a draft, not before; what it has is
known by the ids a block was computed for. Nothing here can change an answer: a wrong key makes a bad guess.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pellucid.engine.model_runner import Model
from pellucid.engine.scheduler import ScheduledRequest
from pellucid.engine.speculation.acceptance import Acceptance
from pellucid.engine.speculation.costs import StepCosts
from pellucid.engine.speculation.drafts import Draft
from pellucid.errors import PellucidError
from pellucid.forward_batch import Float32Array, SequencePart, batch_of
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.request import Request
from pellucid.sampling.sampler import Sampler
from pellucid.sampling.state import SamplingState

PRIOR = 0.7
"""Share of right guesses that a draft model is expected to have before any were seen."""
FIRST_PAUSE, LAST_PAUSE = 64, 1024
"""Tokens until a draft model that did not pay is tried again; doubled each time."""
TEXT_SHARE = 4
"""A request that was never guessed for is tried after so many times its tokens: they are computed for the trial."""


@dataclass(slots=True)
class _Sequence:
    """A request as the draft model sees it."""

    sampling: SamplingState
    acceptance: Acceptance
    num_computed: int | None = None
    """Tokens whose keys and values are in the draft's storage; None: read from the blocks."""
    num_marked: int = 0
    """Leading blocks that `_contents` names."""
    prefix: int = 0
    """Hash of the ids in those."""
    is_broken: bool = False
    """Its logits were of no use: no more drafts for this request."""
    idle_tokens: int = 0
    """Tokens drawn since it was last asked."""
    pause: int = FIRST_PAUSE


@dataclass(slots=True)
class _Run:
    """One entry in the middle of being guessed."""

    sequence: _Sequence
    entry: ScheduledRequest
    count: int
    start: int
    """Position of the next row."""
    token_ids: list[int]
    """Ids of the rows to compute next."""
    draft: Draft


class DraftModelProposer:
    """Guesses with a model; see the module."""

    name = "draft_model"

    TRIAL_TOKENS = 2

    def __init__(
        self, model: Model, storage: KVCacheStorage, sampler: Sampler, *, max_num_batched_tokens: int, cost: float
    ) -> None:
        """`cost` is what a step is expected to cost beside one of the target, until one has been seen."""
        self.model = model
        self.storage = storage
        self.costs = StepCosts()
        self._cost = cost
        self._sampler = sampler
        self._max_num_batched_tokens = max_num_batched_tokens
        self._sequences: dict[int, _Sequence] = {}
        self._idle_tokens = 0
        """Tokens drawn since a draft was asked for, for any request."""
        self._contents: dict[int, int] = {}
        """Block -> hash of all ids up to its end, for blocks that are wholly computed here."""

    def probability(self, key: int) -> float:
        """The chance that a guess for this request is right."""
        sequence = self._sequences.get(key)
        if sequence is None:
            return PRIOR
        return 0.0 if sequence.is_broken else sequence.acceptance.probability(0)

    def step_seconds(self, num_rows: int, target: StepCosts) -> float:
        """What a step of so many rows takes, in the target's unit."""
        return self.costs.seconds(num_rows) if self.costs.is_seen else self._cost * target.seconds(num_rows)

    def is_trial_due(self, request: Request) -> bool:
        """Whether a request that was not guessed for in a while should be, to see how it goes now."""
        sequence = self._sequences.get(request.key)
        if sequence is None:
            return self._idle_tokens >= max(LAST_PAUSE, TEXT_SHARE * request.num_tokens)
        return not sequence.is_broken and sequence.idle_tokens >= sequence.pause

    def propose(self, wanted: Sequence[tuple[ScheduledRequest, int]]) -> list[Draft]:
        """Raises nothing for a request whose logits are of no use: its draft is short, and it gets no more."""
        drafts = [Draft() for _ in wanted]
        runs: list[_Run] = []
        room = self._max_num_batched_tokens
        written: set[int] = set()
        for (entry, count), draft in zip(wanted, drafts, strict=True):
            sequence = self._synced(entry)
            if sequence.is_broken or room == 0:
                continue
            start = sequence.num_computed or 0
            rows = entry.request.tokens_between(start, min(entry.end, start + room))
            blocks = self._blocks(entry, start, len(rows))
            if not written.isdisjoint(blocks):
                sequence.num_computed = None  # what another request computes just now is there in the next step
                continue
            written.update(blocks)
            room -= len(rows)
            runs.append(_Run(sequence, entry, count, start, rows, draft))
        while runs:
            logits = self._forward(runs)
            runs = [run for run, row in zip(runs, logits, strict=True) if self._advance(run, row)]
        for run_draft, (entry, _) in zip(drafts, wanted, strict=True):
            del self._sequences[entry.request.key].sampling.output_token_ids[len(entry.request.output_token_ids) :]
            self._sequences[entry.request.key].sampling.forget_counts()
            chance = self.probability(entry.request.key)
            run_draft.odds = [chance] * len(run_draft.token_ids)
        return drafts

    def learn(self, request: Request, draft: Draft, drawn: Sequence[int]) -> None:
        sequence = self._sequences.get(request.key)
        if sequence is None:
            return
        if not draft.token_ids:
            return
        right = sequence.acceptance.observe_draft(draft.token_ids, drawn)
        if sequence.num_computed is not None:
            known = request.num_tokens - len(drawn)
            sequence.num_computed = known + min(right, len(draft.token_ids) - 1)

    def note_drawn(self, key: int, count: int, *, was_asked: bool) -> None:
        """So many tokens were drawn for a request in a step in which it was asked for a draft, or not."""
        self._idle_tokens = 0 if was_asked else self._idle_tokens + count
        sequence = self._sequences.get(key)
        if sequence is None:
            return
        if not was_asked:
            sequence.idle_tokens += count
        elif sequence.idle_tokens >= sequence.pause:
            sequence.idle_tokens, sequence.pause = 0, min(2 * sequence.pause, LAST_PAUSE)
        else:
            sequence.idle_tokens, sequence.pause = 0, FIRST_PAUSE

    def table_changed(self, key: int) -> None:
        sequence = self._sequences.get(key)
        if sequence is not None:
            sequence.num_computed = None

    def forget(self, key: int) -> None:
        self._sequences.pop(key, None)

    def _synced(self, entry: ScheduledRequest) -> _Sequence:
        """The sequence with all known tokens; `num_computed` is at most all but the last of them."""
        request = entry.request
        sequence = self._sequences.get(request.key)
        if sequence is None:
            sampling = SamplingState(
                params=request.params,
                seed=request.seed,
                sample_index=request.sample_index,
                prompt_token_ids=request.prompt_token_ids,
                end_token_ids=request.end_token_ids,
            )
            sequence = self._sequences[request.key] = _Sequence(sampling, Acceptance((PRIOR,)))
        output = sequence.sampling.output_token_ids
        output += request.output_token_ids[len(output) :]
        self._mark(sequence, entry)
        sequence.num_computed = min(sequence.num_computed or 0, request.num_tokens - 1)
        return sequence

    def _mark(self, sequence: _Sequence, entry: ScheduledRequest) -> None:
        """Name the contents of blocks that have become whole; or find out what the blocks of a new table hold."""
        size, table = self.storage.block_size, entry.block_table
        is_new = sequence.num_computed is None
        if is_new:
            sequence.num_marked, sequence.prefix = 0, hash(entry.request.cache_key)
        while True:
            first = sequence.num_marked * size
            if first + size > (entry.end if is_new else sequence.num_computed or 0):
                break
            block = table[sequence.num_marked]
            content = hash((sequence.prefix, *entry.request.tokens_between(first, first + size)))
            if is_new and self._contents.get(block) != content:
                break
            self._contents[block] = content
            sequence.prefix = content
            sequence.num_marked += 1
        if is_new:
            sequence.num_computed = sequence.num_marked * size

    def _blocks(self, entry: ScheduledRequest, start: int, num_rows: int) -> list[int]:
        """The blocks that hold so many rows from `start` on."""
        size = self.storage.block_size
        return entry.block_table[start // size : (start + num_rows - 1) // size + 1]

    def _advance(self, run: _Run, logits: Float32Array) -> bool:
        """Take the logits of the run's last row; whether it goes on."""
        run.start += len(run.token_ids)
        if run.start <= run.entry.end:
            run.sequence.num_computed = run.start
            self._mark(run.sequence, run.entry)
        if run.start < run.entry.end:
            return False  # a long prompt: the rest in the next step
        try:
            token_id = self._sampler.sample(logits, run.sequence.sampling).token_id
        except PellucidError:
            run.sequence.is_broken = True
            return False
        run.draft.token_ids.append(token_id)
        run.sequence.sampling.output_token_ids.append(token_id)
        run.token_ids = [token_id]
        return len(run.draft.token_ids) < run.count

    def _forward(self, runs: Sequence[_Run]) -> Float32Array:
        """Compute the runs' next rows; logits [R, vocab] of the last one of each."""
        for run in runs:
            for block in self._blocks(run.entry, run.start, len(run.token_ids)):
                self._contents.pop(block, None)
        parts = [SequencePart(run.token_ids, run.start, run.entry.block_table) for run in runs]
        batch = batch_of(parts, self.storage.block_size)
        lasts = batch.query_start_loc[1:] - 1
        began = time.perf_counter()
        hidden = self.model.forward(batch, self.storage).hidden
        logits = self.model.compute_logits(hidden if len(hidden) == len(runs) else hidden[lasts])
        if len(hidden) <= 2 * len(runs):  # to catch up on a prompt tells little of what a guess takes
            self.costs.observe(len(hidden), time.perf_counter() - began)
        return logits
