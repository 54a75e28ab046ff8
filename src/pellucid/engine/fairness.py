"""In which order requests are served, so that none of several clients of equal priority crowds out the others.

Start-time fair queueing (Goyal, Vin and Cheng 1996, section 2), in tokens: every request is given a turn once, when it
comes. A client that owes nothing gets one shortly after the latest turn that has begun; what it sends further comes
later by what it has asked for already. So a client with one request is served beside the first of another's hundred,
and a client alone is served in the order of arrival.

Why nobody starves: turns never change. Newcomers that owe nothing get turns that lie NEWCOMER_STEP apart, so only so
many of them fit before the turn of a request that waits, and each of them owes for what it sends next. What overtakes
a waiting request is therefore bounded by its turn, however many clients there are.

Priorities delay a request and do not starve it either: see `Overtaking`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pellucid.request import Request

NEWCOMER_STEP = 16
"""What lies between the turns of two clients that owe nothing."""
MAX_OVERTAKING = 64
"""So many requests start before an earlier one because of their priority; then the earliest of those goes first."""
UNKNOWN_ANSWER_TOKENS = 256
"""What an answer without max_tokens is taken to need."""


@dataclass(slots=True)
class _Lane:
    """Requests of one priority."""

    num_requests: int = 0
    begun: int = 0
    """The latest turn that has begun."""
    newcomer: int = 0
    """The latest turn given to a client that owed nothing."""
    next_turns: dict[str, int] = field(default_factory=dict)
    """By client: the earliest turn of its next request."""


class FairOrder:
    """Gives out turns; ints only."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[bool, int], _Lane] = {}

    def arrived(self, request: Request) -> None:
        """Give the request its turn; siblings share one."""
        lane = self._lanes.setdefault(_lane(request), _Lane())
        lane.num_requests += 1
        for sibling in request.siblings:
            if sibling is not request and sibling.turn:
                request.turn = sibling.turn
                return
        request.turn = lane.next_turns.get(request.client, 0)
        newcomer = max(lane.newcomer, lane.begun) + NEWCOMER_STEP
        if request.turn <= newcomer:
            request.turn = lane.newcomer = newcomer
        lane.next_turns[request.client] = request.turn + _cost(request)

    def begins(self, request: Request) -> None:
        """The request is admitted."""
        lane = self._lanes[_lane(request)]
        lane.begun = max(lane.begun, request.turn)

    def ended(self, request: Request) -> None:
        """The request is finished; clients that owe nothing are forgotten."""
        lane = self._lanes[_lane(request)]
        lane.num_requests -= 1
        if lane.num_requests == 0:
            del self._lanes[_lane(request)]
        elif len(lane.next_turns) > 2 * lane.num_requests + 64:
            lane.next_turns = {client: turn for client, turn in lane.next_turns.items() if turn > lane.begun}


class Overtaking:
    """Counts requests that start before an earlier one because of their priority."""

    def __init__(self) -> None:
        self._num_since = 0
        """Since one was put to the front."""

    def note(self, admitted: Request, pending: Iterable[Request]) -> bool:
        """Whether one of the pending requests, which wait or have a prompt to compute, goes before all from now on.

        That is the only change of an order there is. One of 65 starts at most is of a request put to the front, so a
        crowd of a low priority does not turn the order round.
        """
        if admitted.prefill_only:
            return False
        overtaken = [one for one in pending if _is_overtaken(one, admitted)]
        if not overtaken:
            return False
        self._num_since += 1
        if self._num_since < MAX_OVERTAKING:
            return False
        self._num_since = 0
        for sibling in min(overtaken, key=lambda one: one.arrival).siblings:
            sibling.is_overdue = True
        return True


def _is_overtaken(request: Request, admitted: Request) -> bool:
    is_pending = not (request.is_overdue or request.prefill_only)
    return is_pending and request.arrival < admitted.arrival and request.priority > admitted.priority


def _lane(request: Request) -> tuple[bool, int]:
    return request.prefill_only, request.priority


def _cost(request: Request) -> int:
    """Tokens that the request and its siblings are taken to need, at least 1."""
    answer = UNKNOWN_ANSWER_TOKENS if request.params.max_tokens is None else request.max_output_tokens
    return request.params.n * (request.num_prompt_tokens + answer)
