"""Who computes how many tokens in the next step. Ints and lists only: no arrays, no model.

Tokens, not phases: every request has a gap between the ids known and the ids computed, and a step closes as
much of it as the token budget allows. Requests whose gap is one token (they are answering) go first, so that
streams keep flowing while long prompts are computed in chunks from what is left of the budget; new requests
come last. When blocks run out, the newest request of the lowest priority gives up its blocks and is computed
again later (recompute preemption); its output is kept.

A request that starts, or starts again, takes the blocks that the prefix cache has for its tokens and computes the
rest. Blocks go into the cache as soon as they are full and computed, so there is nothing to hand over when a request
ends, is aborted or preempted, and the n answers to one prompt find it there like anybody else. Without prefix
caching only those n have a cache key, of their own, and it is forgotten with them.

Why this always ends: the oldest request can take the blocks of all others, and the pool holds at least one
request of max_model_len; so the oldest always advances, finishes, and makes the next one the oldest.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from pellucid.kv_cache.manager import KVCacheManager
from pellucid.outputs import FinishReason
from pellucid.request import Request, RequestStatus


@dataclass(slots=True)
class ScheduledRequest:
    """`num_new_tokens` tokens of a request from position `start` on, all with a place in the block table."""

    request: Request
    start: int
    num_new_tokens: int
    block_table: list[int]
    """The manager's own list: valid until the next call of `schedule`."""

    @property
    def end(self) -> int:
        """One past the last position computed."""
        return self.start + self.num_new_tokens


@dataclass(slots=True)
class SchedulerOutput:
    """One step's work."""

    scheduled: list[ScheduledRequest]
    released: list[int]
    """Keys of requests whose tables are gone or changed, not yet forgotten by the runner, which empties this list."""
    admitted: list[Request]
    """Those that start with this step, or start again."""

    @property
    def num_tokens(self) -> int:
        """Rows of the step's batch."""
        return sum(entry.num_new_tokens for entry in self.scheduled)


class Scheduler:
    """Owns the queues; the only caller of the KVCacheManager."""

    def __init__(
        self,
        kv: KVCacheManager,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        *,
        enable_prefix_caching: bool = False,
    ) -> None:
        self.kv = kv
        self.enable_prefix_caching = enable_prefix_caching
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: list[Request] = []
        """Sorted by `Request.order`: a preempted request is older than those that never ran, so it is at the head."""
        self.running: list[Request] = []
        self.num_preemptions = 0
        self.num_queried_tokens = 0
        """Prompt tokens that were looked up in the prefix cache, once for a prompt …"""
        self.num_hit_tokens = 0
        """… and those found there."""
        self.released: list[int] = []
        """Keys whose tables are gone or changed; handed to the runner with the next step."""

    def add(self, request: Request) -> None:
        """Queue a request; it fits into the pool by itself, which the engine has checked."""
        insort(self.waiting, request, key=_order)

    @property
    def has_requests(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> SchedulerOutput:
        """Choose the next step's tokens and give every one of them a place in the KV cache.

        Nothing is counted as computed until `mark_computed`: a step that failed half-way can be scheduled again.
        """
        step: dict[int, ScheduledRequest] = {}
        budget = self.max_num_batched_tokens
        is_tight = False
        for request in self._running_order():
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted for one of those before it
            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            if num_new_tokens == 0:
                break
            fits, refund, preempted = self._make_room(request, request.num_computed_tokens + num_new_tokens, step)
            is_tight = is_tight or preempted or not fits
            budget += refund
            if fits:
                budget -= self._put(step, request, num_new_tokens)
        admitted: list[Request] = []
        if self.waiting and not is_tight:
            self._admit(step, budget, admitted)
        return SchedulerOutput(list(step.values()), self.released, admitted)

    def mark_computed(self, entry: ScheduledRequest) -> None:
        """The entry's tokens are in the KV cache now, and sound: blocks that they fill may be read by others."""
        request, size = entry.request, self.kv.block_size
        request.num_computed_tokens = entry.end
        first, last = entry.start // size, entry.end // size
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
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        self.released.append(request.key)
        free = self.kv.free(request.key, discard=reason == "error")
        if not self.enable_prefix_caching and request.cache_key and _all_finished(request.siblings):
            self.kv.cache.forget(request.cache_key)
        return free

    def _running_order(self) -> list[Request]:
        """Requests that answer, then those with more to compute, each in the order of service."""
        ordered = sorted(self.running, key=_order) if len(self.running) > 1 else list(self.running)
        answering = [request for request in ordered if request.num_tokens - request.num_computed_tokens == 1]
        if len(answering) == len(ordered):
            return ordered
        return answering + [request for request in ordered if request.num_tokens - request.num_computed_tokens != 1]

    def _put(self, step: dict[int, ScheduledRequest], request: Request, num_new_tokens: int) -> int:
        start = request.num_computed_tokens
        step[request.key] = ScheduledRequest(request, start, num_new_tokens, self.kv.block_table(request.key))
        return num_new_tokens

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
        self.kv.free(request.key)
        self.released.append(request.key)
        request.num_computed_tokens = 0
        request.status = RequestStatus.WAITING
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.running.remove(request)
        insort(self.waiting, request, key=_order)

    def _admit(self, step: dict[int, ScheduledRequest], budget: int, admitted: list[Request]) -> None:
        """Move waiting requests into the running set, strictly in order, while budget, places and blocks last."""
        postponed: set[int] = set()
        index = 0
        while index < len(self.waiting) and budget > 0 and len(self.running) < self.max_num_seqs:
            request = self.waiting[index]
            if request.arrival in postponed:
                index += 1
                continue
            cached = self._cached_blocks(request)
            if self._sibling_computes_prompt(request, len(cached)):
                postponed.add(request.arrival)
                index += 1
                continue
            if not self._fits_now(request, cached):
                break
            self.waiting.pop(index)
            self.running.append(request)
            admitted.append(request)
            request.status = RequestStatus.RUNNING
            self.kv.start(request.key, cached)
            request.num_computed_tokens = len(cached) * self.kv.block_size
            self._note_hit(request)
            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            fits, _, _ = self._make_room(request, request.num_computed_tokens + num_new_tokens, step)
            if not fits:
                raise AssertionError(f"request {request.request_id} was admitted without room for it")
            budget -= self._put(step, request, num_new_tokens)

    def _fits_now(self, request: Request, cached: list[int]) -> bool:
        """Whether the ids known fit beside what the running requests will need next.

        Each running request keeps the blocks for its own known ids and one more to grow into; without that,
        newcomers would be preempted as soon as they started. Cached blocks cost nothing where others use them too;
        the rest can then no longer be evicted. When nothing runs, the request always fits.
        """
        if not self.running:
            return True
        needed = self.kv.blocks_for(request.num_tokens) - len(cached) + self.kv.cache.num_unused(cached)
        for other in self.running:
            needed += self.kv.blocks_for(other.num_tokens) - self.kv.num_blocks_held(other.key) + 1
        return needed <= self.kv.num_available

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
        if self.enable_prefix_caching and request.params.prompt_logprobs is None:
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


def _order(request: Request) -> tuple[int, int, int]:
    return request.order
