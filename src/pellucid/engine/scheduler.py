"""Who computes how many tokens in the next step. Ints and lists only: no arrays, no model.

Tokens, not phases: every request has a gap between the ids known and the ids computed, and a step closes as
much of it as the token budget allows. Requests whose gap is one token (they are answering) go first, so that
streams keep flowing while long prompts are computed in chunks from what is left of the budget; new requests
come last. When blocks run out, the newest request of the lowest priority gives up its blocks and is computed
again later (recompute preemption); its output is kept.

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
    """Keys of requests that lost their blocks and were not yet forgotten by the runner, which empties this list."""

    @property
    def num_tokens(self) -> int:
        """Rows of the step's batch."""
        return sum(entry.num_new_tokens for entry in self.scheduled)


class Scheduler:
    """Owns the queues; the only caller of the KVCacheManager."""

    def __init__(self, kv: KVCacheManager, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: list[Request] = []
        """Sorted by `Request.order`: a preempted request is older than those that never ran, so it is at the head."""
        self.running: list[Request] = []
        self.num_preemptions = 0
        self.released: list[int] = []
        """Keys whose blocks were given up; handed to the runner with the next step."""

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
        if self.waiting and not is_tight:
            self._admit(step, budget)
        return SchedulerOutput(list(step.values()), self.released)

    def mark_computed(self, entry: ScheduledRequest) -> None:
        """The entry's tokens are in the KV cache now."""
        entry.request.num_computed_tokens = entry.end

    def finish(self, request: Request, reason: FinishReason) -> list[int]:
        """Take a request out, whatever it is doing; gives back the blocks that became free."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        if reason in ("stop", "length"):
            self._hand_over_prompt(request)
        self.released.append(request.key)
        return self.kv.free(request.key)

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
            victim = self._newest_holder()
            if victim.status is RequestStatus.RUNNING and victim.order <= request.order:
                return False, refund, preempted
            entry = step.pop(victim.key, None)
            refund += 0 if entry is None else entry.num_new_tokens
            preempted = True
            self._preempt(victim)
        return True, refund, preempted

    def _newest_holder(self) -> Request:
        """Who gives up blocks first: those that only keep a prompt for later, then the newest that runs."""
        idle = [other for other in self.waiting if self.kv.num_blocks_held(other.key)]
        return max(idle or self.running, key=_order)

    def _preempt(self, request: Request) -> None:
        self.kv.free(request.key)
        self.released.append(request.key)
        request.num_computed_tokens = 0
        if request.status is RequestStatus.WAITING:
            return  # it only held its siblings' prompt
        request.status = RequestStatus.WAITING
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.running.remove(request)
        insort(self.waiting, request, key=_order)

    def _admit(self, step: dict[int, ScheduledRequest], budget: int) -> None:
        """Move waiting requests into the running set, strictly in order, while budget, places and blocks last."""
        postponed: set[int] = set()
        index = 0
        while index < len(self.waiting) and budget > 0 and len(self.running) < self.max_num_seqs:
            request = self.waiting[index]
            if request.arrival in postponed or self._sibling_computes_prompt(request):
                postponed.add(request.arrival)
                index += 1
                continue
            source, num_shared = self._shareable_prompt(request)
            if not self._fits_now(request, num_shared):
                break
            self.waiting.pop(index)
            self.running.append(request)
            request.status = RequestStatus.RUNNING
            if source is not None:
                self.kv.share(source.key, request.key, num_shared)
                request.num_computed_tokens = num_shared * self.kv.block_size
            num_new_tokens = min(request.num_tokens - request.num_computed_tokens, budget)
            fits, _, _ = self._make_room(request, request.num_computed_tokens + num_new_tokens, step)
            if not fits:
                raise AssertionError(f"request {request.request_id} was admitted without room for it")
            budget -= self._put(step, request, num_new_tokens)

    def _fits_now(self, request: Request, num_shared: int) -> bool:
        """Whether the ids known fit beside what the running requests will need next.

        Each running request keeps the blocks for its own known ids and one more to grow into; without that,
        newcomers would be preempted as soon as they started. When nothing runs, the request always fits.
        """
        if not self.running:
            return True
        held = num_shared or self.kv.num_blocks_held(request.key)
        needed = self.kv.blocks_for(request.num_tokens) - held
        for other in self.running:
            needed += self.kv.blocks_for(other.num_tokens) - self.kv.num_blocks_held(other.key) + 1
        return needed <= self.kv.pool.num_free

    def _num_shareable_blocks(self, request: Request) -> int:
        """Full blocks of the prompt that a sibling's copy may stand for.

        At least the last prompt token is computed, since its row gives the first logits; rows whose
        prompt_logprobs are still to be reported are computed too.
        """
        num_tokens = request.num_prompt_tokens - 1
        if request.num_prompt_rows_reported < request.num_prompt_rows_wanted:
            num_tokens = min(num_tokens, request.num_prompt_rows_reported)
        return num_tokens // self.kv.block_size

    def _shareable_prompt(self, request: Request) -> tuple[Request | None, int]:
        """A sibling whose blocks hold the computed prompt, and how many of them to take."""
        num_blocks = self._num_shareable_blocks(request)
        if num_blocks == 0 or len(request.siblings) < 2 or self.kv.num_blocks_held(request.key):
            return None, 0
        for sibling in request.siblings:
            if sibling is not request and self._has_prompt(sibling, num_blocks):
                return sibling, num_blocks
        return None, 0

    def _has_prompt(self, request: Request, num_blocks: int) -> bool:
        num_computed = request.num_computed_tokens // self.kv.block_size
        return min(num_computed, self.kv.num_blocks_held(request.key)) >= num_blocks

    def _sibling_computes_prompt(self, request: Request) -> bool:
        """Whether waiting a few steps saves this request the prompt."""
        num_blocks = self._num_shareable_blocks(request)
        if num_blocks == 0 or len(request.siblings) < 2 or self.kv.num_blocks_held(request.key):
            return False
        running = [sibling for sibling in request.siblings if sibling.status is RequestStatus.RUNNING]
        return bool(running) and self._shareable_prompt(request)[0] is None

    def _hand_over_prompt(self, request: Request) -> None:
        """Before a request's blocks go, keep the prompt's for siblings that still wait for a place."""
        waiting = (sibling for sibling in request.siblings if sibling.status is RequestStatus.WAITING)
        heir = next((sibling for sibling in waiting if not self.kv.num_blocks_held(sibling.key)), None)
        if heir is None:
            return
        num_blocks = self._num_shareable_blocks(heir)
        if num_blocks and self._has_prompt(request, num_blocks) and self._shareable_prompt(heir)[0] is request:
            self.kv.share(request.key, heir.key, num_blocks)
            heir.num_computed_tokens = num_blocks * self.kv.block_size


def _order(request: Request) -> tuple[int, int, int]:
    return request.order
