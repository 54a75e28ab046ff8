"""Who computes how many tokens in the next step. Ints and lists only: no arrays, no model.

Tokens, not phases: every request has a gap between the ids known and the ids computed, and a step closes as
much of it as the token budget allows. Requests whose gap is one token (they are answering) go first, so that
streams keep flowing while long prompts are computed in chunks from what is left of the budget; new requests
come last. When blocks run out, the newest request of the lowest priority gives up its blocks and is computed
again later (recompute preemption); its output is kept.

While answers stream, prompts get no more of a step than keeps it within max_step_ms, as far as the pace of the steps
before tells, and LEAST_CHUNK tokens whatever it tells. A prompt that is short beside the one being computed passes it:
it gets up to half of what prompts get. Requests that only fill the cache (`prefill_only`) are served after everything
else, with a part of that time, and make way for whoever waits.

A request that starts, or starts again, takes the blocks that the prefix cache has for its tokens and computes the
rest. Blocks go into the cache as soon as they are full and computed, so there is nothing to hand over when a request
ends, is aborted or preempted, and the n answers to one prompt find it there like anybody else. Without prefix
caching only those n have a cache key, of their own, and it is forgotten with them.

Why this always ends: the oldest request (the least `Request.order`) can take the blocks of all others, and the pool
holds at least one request of max_model_len; at least half of what prompts get, and never less than LEAST_CHUNK tokens
or the whole budget where that is smaller, is the oldest prompt's. So the oldest always advances, finishes, and makes
the next one the oldest. Only finitely many that come later are put before a request, whatever its priority
(fairness.py).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from pellucid.config import EngineArgs
from pellucid.engine.fairness import FairOrder, Overtaking
from pellucid.engine.step_pace import BACKGROUND_DIVISOR, LEAST_CHUNK, StepLoad, StepPace
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.outputs import FinishReason
from pellucid.request import Request, RequestStatus

SHORT_PART = 4
"""A prompt is short beside another when it has at most this part of the tokens left to compute."""


@dataclass(slots=True)
class ScheduledRequest:
    """`num_new_tokens` known tokens of a request from position `start` on, and drafts of those that may follow.

    All have a place in the block table.
    """

    request: Request
    start: int
    num_new_tokens: int
    block_table: list[int]
    """The manager's own list: valid until the next call of `schedule`."""
    draft_token_ids: list[int] = field(default_factory=list)
    """Guesses at positions `end` and after, computed in the same step; only where all known tokens are."""

    @property
    def end(self) -> int:
        """One past the last known position computed."""
        return self.start + self.num_new_tokens

    @property
    def draws(self) -> bool:
        """Whether all known tokens are computed then, so that the next one is drawn."""
        return self.end == self.request.num_tokens and not self.request.prefill_only

    @property
    def num_rows(self) -> int:
        """Rows of the step's batch."""
        return self.num_new_tokens + len(self.draft_token_ids)


@dataclass(slots=True)
class SchedulerOutput:
    """One step's work."""

    scheduled: list[ScheduledRequest]
    released: list[int]
    """Keys of requests whose tables are gone or changed, not yet forgotten by the runner, which empties this list."""
    admitted: list[Request]
    """Those that start with this step, or start again."""
    is_cut: bool = False
    """Whether prompts got fewer tokens than the token budget had, for lack of time."""
    may_draft: bool = True
    """False where prompts have taken what time streams leave: guesses would come on top of it."""

    @property
    def num_tokens(self) -> int:
        """Rows of the step's batch."""
        return sum(entry.num_rows for entry in self.scheduled)


class _Room:
    """What is left of a step: tokens, and time for prompts."""

    __slots__ = ("_has_prompt", "_is_background", "_is_streaming", "_pace", "is_cut", "time_ns", "tokens")

    def __init__(self, tokens: int, pace: StepPace) -> None:
        self.tokens = tokens
        self.time_ns = 0
        self._pace = pace
        self._is_streaming = self._has_prompt = self._is_background = False
        self.is_cut = False
        """Whether a prompt got fewer tokens than there were, for lack of time."""

    def begin_prompts(self, load: StepLoad, is_streaming: bool) -> None:
        """The answers of `load` are in the step; what follows is prompts."""
        self._is_streaming = is_streaming
        self.time_ns = self._pace.prompt_time(load, is_streaming=is_streaming)

    def begin_background(self) -> None:
        """What follows only fills the cache."""
        if self._is_streaming and not self._is_background:
            self.time_ns //= BACKGROUND_DIVISOR
        self._is_background = True

    def chunk(self, request: Request, num_reserved: int = 0) -> int:
        """Prompt tokens that the request may have now, when up to `num_reserved` others are to have room too."""
        start = request.num_computed_tokens
        wanted = request.num_tokens - start
        num_tokens = min(wanted, self.tokens - min(num_reserved, self.tokens // 2))
        time_ns = self.time_ns - min(self._pace.prompt_ns(num_reserved, 0), self.time_ns // 2)
        in_time = self._pace.tokens_within(time_ns, start, is_streaming=self._is_streaming)
        if in_time < num_tokens:
            least = 0 if self._has_prompt else min(num_tokens, LEAST_CHUNK)
            num_tokens = max(in_time - in_time % LEAST_CHUNK, least)
            self.is_cut = True
        return num_tokens

    @property
    def is_spent(self) -> bool:
        """Whether prompts were cut to the time that streams leave."""
        return self._is_streaming and self._has_prompt

    def spend(self, start: int, num_tokens: int) -> None:
        """A chunk of a prompt is in the step."""
        self._has_prompt = True
        self.tokens -= num_tokens
        self.time_ns = max(0, self.time_ns - self._pace.prompt_ns(num_tokens, start))


class Scheduler:
    """Owns the queues; the only caller of the KVCacheManager."""

    def __init__(
        self,
        kv: KVCacheManager,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        *,
        enable_prefix_caching: bool = False,
        pace: StepPace | None = None,
    ) -> None:
        self.kv = kv
        self.pace = pace or StepPace(EngineArgs().max_step_ms)
        """Told by the engine how long every step took."""
        self.enable_prefix_caching = enable_prefix_caching
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: list[Request] = []
        """Sorted by `Request.order`: a preempted request is older than those that never ran, so it is at the head."""
        self.running: list[Request] = []
        self.is_shared = False
        """Whether others may hold blocks of the pool for a while (engine/jobs.py)."""
        self._fair = FairOrder()
        self._overtaking = Overtaking()
        self.num_preemptions = 0
        self.num_queried_tokens = 0
        """Prompt tokens that were looked up in the prefix cache, once for a prompt …"""
        self.num_hit_tokens = 0
        """… and those found there."""
        self.released: list[int] = []
        """Keys whose tables are gone or changed; handed to the runner with the next step."""

    def add(self, request: Request) -> None:
        """Queue a request; it fits into the pool by itself, which the engine has checked."""
        self._fair.arrived(request)
        insort(self.waiting, request, key=_order)

    @property
    def has_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> SchedulerOutput:
        """Choose the next step's tokens and give every one of them a place in the KV cache.

        Nothing is counted as computed until `mark_computed`: a step that failed half-way can be scheduled again.
        """
        step: dict[int, ScheduledRequest] = {}
        room = _Room(self.max_num_batched_tokens, self.pace)
        answering, prompts, background = self._running_order()
        is_tight = False
        for request in answering:
            is_tight |= self._advance(step, room, request, min(1, room.tokens))
        admitted: list[Request] = []
        if prompts or background or (self.waiting and len(self.running) < self.max_num_seqs):
            room.begin_prompts(load_of(step.values()), self._is_streaming())
            is_tight |= self._advance_prompts(step, room, prompts)
            if self.waiting and not is_tight:
                self._admit(step, room, admitted)
                for request in admitted:
                    self._note_overtaking(request)
            if background:
                room.begin_background()
                for request in background:
                    self._advance(step, room, request, room.chunk(request))
        entries = list(step.values())
        return SchedulerOutput(entries, self.released, admitted, is_cut=room.is_cut, may_draft=not room.is_spent)

    def reserve(self, entry: ScheduledRequest, num_drafts: int) -> int:
        """Room in the block table for so many drafts after the entry's tokens; gives back for how many there is.

        Nobody is preempted for a guess, no borrower either, and each running request keeps a block to grow into.
        """
        wanted, key = entry.end + num_drafts, entry.request.key
        missing = self.kv.blocks_for(wanted) - self.kv.num_blocks_held(key)
        if missing > 0 and (self.kv.num_unused < missing + len(self.running) or not self.kv.grow(key, wanted)):
            return max(0, self.kv.num_blocks_held(key) * self.kv.block_size - entry.end)
        return num_drafts

    def mark_computed(self, entry: ScheduledRequest, num_accepted: int = 0) -> None:
        """The entry's tokens are in the KV cache now, and sound: blocks that they fill may be read by others.

        Its first `num_accepted` drafts became known tokens and count too; the rows of the others mean nothing.
        """
        request, size = entry.request, self.kv.block_size
        request.num_computed_tokens = end = entry.end + num_accepted
        first, last = entry.start // size, end // size
        if (
            first != last
            and request.cache_key
            and self.kv.cache_blocks(request.key, request.cache_key, request.tokens_between, first, last)
        ):
            self.released.append(request.key)

    def finish(self, request: Request, reason: FinishReason) -> list[int]:
        """Take a request out, whatever it is doing; gives back the blocks that became free.

        What a request that failed has computed does not stay in the cache.
        """
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._fair.ended(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        self.released.append(request.key)
        free = self.kv.free(request.key, discard=reason == "error")
        if not self.enable_prefix_caching and request.cache_key and _all_finished(request.siblings):
            self.kv.cache.forget(request.cache_key)
        return free

    def why_waiting(self, request: Request) -> str:
        """What a waiting request waits for, in one word; those behind another wait for it at least as long.

        max_num_seqs: for a place · shared_prompt: for a sibling that computes their prompt · kv_blocks: for blocks ·
        step_full: for tokens or time in a step.
        """
        if len(self.running) >= self.max_num_seqs:
            return "max_num_seqs"
        cached = self._cached_blocks(request)
        if self._sibling_computes_prompt(request, len(cached)):
            return "shared_prompt"
        return "step_full" if self._fits_now(request, cached) else "kv_blocks"

    def _running_order(self) -> tuple[list[Request], list[Request], list[Request]]:
        """Requests that answer, those with more to compute, and those that only fill the cache; the oldest first."""
        ordered = sorted(self.running, key=_order) if len(self.running) > 1 else list(self.running)
        answering: list[Request] = []
        prompts: list[Request] = []
        background: list[Request] = []
        for request in ordered:
            if request.prefill_only:
                background.append(request)
            elif request.num_tokens - request.num_computed_tokens == 1:
                answering.append(request)
            else:
                prompts.append(request)
        return answering, prompts, background

    def _is_streaming(self) -> bool:
        """Whether somebody has got a token and waits for the next one."""
        return any(request.output_token_ids for request in self.running)

    def _advance(self, step: dict[int, ScheduledRequest], room: _Room, request: Request, num_new_tokens: int) -> bool:
        """Put so many tokens of a running request into the step; True when blocks are scarce.

        A request that was preempted for one of those before it is passed over.
        """
        if num_new_tokens == 0 or request.status is not RequestStatus.RUNNING:
            return False
        fits, refund, preempted = self._make_room(request, request.num_computed_tokens + num_new_tokens, step)
        room.tokens += refund
        if fits:
            self._put(step, room, request, num_new_tokens)
        return preempted or not fits

    def _advance_prompts(self, step: dict[int, ScheduledRequest], room: _Room, prompts: list[Request]) -> bool:
        """The oldest prompt, those that are short beside it, then the others; True when blocks are scarce."""
        if not prompts:
            return False
        oldest = prompts[0]
        short, num_reserved = self._short_beside(oldest, prompts)
        is_tight = self._advance(step, room, oldest, room.chunk(oldest, num_reserved))
        for request in [*short, *(request for request in prompts[1:] if request not in short)]:
            is_tight |= self._advance(step, room, request, room.chunk(request))
        return is_tight

    def _short_beside(self, oldest: Request, prompts: list[Request]) -> tuple[list[Request], int]:
        """Running prompts that are short beside the oldest, and the tokens that they and the head of the queue need."""
        limit = (oldest.num_tokens - oldest.num_computed_tokens) // SHORT_PART
        short = [r for r in prompts[1:] if r.num_tokens - r.num_computed_tokens <= limit]
        num_tokens = sum(r.num_tokens - r.num_computed_tokens for r in short)
        head = self.waiting[0] if self.waiting and len(self.running) < self.max_num_seqs else None
        if head is not None and not head.prefill_only and head.num_tokens <= limit:
            num_tokens += head.num_tokens
        return short, num_tokens

    def _put(self, step: dict[int, ScheduledRequest], room: _Room, request: Request, num_new_tokens: int) -> None:
        start = request.num_computed_tokens
        step[request.key] = ScheduledRequest(request, start, num_new_tokens, self.kv.block_table(request.key))
        if request.num_tokens - start == 1 and not request.prefill_only:
            room.tokens -= 1
        else:
            room.spend(start, num_new_tokens)

    def _make_room(
        self, request: Request, num_tokens: int, step: dict[int, ScheduledRequest]
    ) -> tuple[bool, int, bool]:
        """Grow the request's table, preempting newer requests as needed.

        Returns whether it fits, the budget given back by preempted entries of this step, and whether any was
        preempted. The newest request itself is left waiting with its blocks instead: nobody older needs them yet.
        """
        refund, preempted = 0, False
        while not self.kv.grow(request.key, num_tokens):
            victim = max(self.running, key=_order)
            if victim.order <= request.order:
                return False, refund, preempted
            entry = step.pop(victim.key, None)
            refund += 0 if entry is None else entry.num_new_tokens
            preempted = True
            self._preempt(victim)
        return True, refund, preempted

    def _preempt(self, request: Request) -> None:
        self.kv.free(request.key, is_preempted=True)
        self.released.append(request.key)
        request.num_computed_tokens = 0
        request.status = RequestStatus.WAITING
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.running.remove(request)
        insort(self.waiting, request, key=_order)

    def _admit(self, step: dict[int, ScheduledRequest], room: _Room, admitted: list[Request]) -> None:
        """Move waiting requests into the running set, strictly in order, while room, places and blocks last."""
        postponed: set[int] = set()
        index = 0
        while index < len(self.waiting) and room.tokens > 0:
            request = self.waiting[index]
            if request.arrival in postponed:
                index += 1
                continue
            cached = self._cached_blocks(request)
            if self._sibling_computes_prompt(request, len(cached)):
                postponed.add(request.arrival)
                index += 1
                continue
            if len(self.running) >= self.max_num_seqs or not self._fits_now(request, cached):
                if self._preempt_background(request):
                    continue
                break
            if not self._start(step, room, request, cached):
                break
            self.waiting.remove(request)
            admitted.append(request)

    def _note_overtaking(self, admitted: Request) -> None:
        pending = [*self.waiting, *(one for one in self.running if one.num_tokens - one.num_computed_tokens > 1)]
        if self._overtaking.note(admitted, pending):
            self.waiting.sort(key=_order)

    def _start(self, step: dict[int, ScheduledRequest], room: _Room, request: Request, cached: list[int]) -> bool:
        """Let a waiting request run from what the cache has on; False, and no change, when there is no time left."""
        if request.prefill_only:
            room.begin_background()
        num_computed, request.num_computed_tokens = request.num_computed_tokens, len(cached) * self.kv.block_size
        num_new_tokens = room.chunk(request)
        if num_new_tokens == 0:
            request.num_computed_tokens = num_computed
            return False
        self.running.append(request)
        self._fair.begins(request)
        request.status = RequestStatus.RUNNING
        self.kv.start(request.key, cached)
        self._note_hit(request)
        fits, _, _ = self._make_room(request, request.num_computed_tokens + num_new_tokens, step)
        if not fits:
            raise AssertionError(f"request {request.request_id} was admitted without room for it")
        self._put(step, room, request, num_new_tokens)
        return True

    def _preempt_background(self, request: Request) -> bool:
        """Make way for a request that is asked for an answer: the newest one that only fills the cache waits again."""
        victims = [other for other in self.running if other.prefill_only]
        if request.prefill_only or not victims:
            return False
        self._preempt(max(victims, key=_order))
        return True

    def _fits_now(self, request: Request, cached: list[int]) -> bool:
        """Whether the ids known fit beside what the running requests will need next.

        Each running request keeps the blocks for its own known ids and one more to grow into; without that,
        newcomers would be preempted as soon as they started. Cached blocks cost nothing where others use them too;
        the rest can then no longer be evicted. When nothing else uses the pool, the request always fits.

        Beside a borrower that has waited for too long it must fit to its end, so that no growth takes the blocks away
        which are left for that. What only fills the cache takes nothing that is borrowed.
        """
        if not self.running and not self.is_shared:
            return True
        owed = self.kv.num_owed
        needed = owed - len(cached) + self.kv.cache.num_unused(cached)
        if owed:
            needed += sum(self.kv.blocks_for(_most_tokens(one)) for one in (request, *self.running))
            needed -= sum(self.kv.num_blocks_held(other.key) for other in self.running)
        else:
            needed += self.kv.blocks_for(request.num_tokens)
            for other in self.running:
                needed += self.kv.blocks_for(other.num_tokens) - self.kv.num_blocks_held(other.key) + 1
        return needed <= (self.kv.num_unused if request.prefill_only else self.kv.num_available)

    def _cached_blocks(self, request: Request) -> list[int]:
        """Blocks in the cache that hold the request's first tokens; not yet taken."""
        if not request.cache_key:
            return []
        return self.kv.cache.match(request.cache_key, request.tokens_between, self._num_readable_tokens(request))

    def _num_readable_tokens(self, request: Request) -> int:
        """Tokens that may come from the cache.

        At least the last known token is computed, since its row gives the logits; rows whose prompt_logprobs are
        still to be reported are computed too.
        """
        if request.num_prompt_rows_reported < request.num_prompt_rows_wanted:
            return request.num_prompt_rows_reported
        return request.num_tokens - 1

    def _note_hit(self, request: Request) -> None:
        """Count what a prompt found when it first ran; its siblings find it because the first has computed it."""
        if request.num_cached_tokens is not None or request.sample_index != 0:
            return
        request.num_cached_tokens = request.num_computed_tokens
        if self.enable_prefix_caching and request.params.prompt_logprobs is None and not request.prefill_only:
            self.num_queried_tokens += request.num_prompt_tokens
            self.num_hit_tokens += request.num_cached_tokens

    def _sibling_computes_prompt(self, request: Request, num_cached: int) -> bool:
        """Whether waiting a few steps saves this request the prompt."""
        if len(request.siblings) < 2:
            return False
        num_tokens = min(self._num_readable_tokens(request), request.num_prompt_tokens - 1)
        if num_cached >= num_tokens // self.kv.block_size:
            return False
        return any(sibling.status is RequestStatus.RUNNING for sibling in request.siblings)


def _all_finished(siblings: list[Request]) -> bool:
    return all(sibling.status is RequestStatus.FINISHED for sibling in siblings)


def load_of(entries: Iterable[ScheduledRequest]) -> StepLoad:
    """What the entries compute; tokens behind the prompt's are answers."""
    load = StepLoad()
    for entry in entries:
        is_answer = entry.start >= entry.request.num_prompt_tokens and entry.num_new_tokens <= LEAST_CHUNK
        load.add(entry.start, entry.num_rows, is_answer=is_answer)
    return load


def _most_tokens(request: Request) -> int:
    """Ids that the request has when it ends, at most."""
    return request.num_tokens if request.prefill_only else request.num_prompt_tokens + request.max_output_tokens


def _order(request: Request) -> tuple[int, int, int, int, int, int]:
    return request.order
