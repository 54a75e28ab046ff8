"""A request as the scheduler sees it: ids known, ids computed, and the gap between them.

There is no prefill and no decode state. `num_tokens` ids are known (prompt and output so far) and
`num_computed_tokens` of them have their keys and values in the cache; a step closes some of the gap, and when
it is closed the next id is drawn, which opens it again by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pellucid.outputs import FinishReason
from pellucid.sampling_params import SamplingParams

LogitsProcessor = Callable[[list[int], npt.NDArray[np.float32]], npt.NDArray[np.float32]]
"""Takes the output's ids so far and logits [vocab], which it may change in place; gives back logits [vocab]."""


class TokenConstraint(Protocol):
    """Which tokens may come next in one answer; `pellucid.sampling.constraints` has the real one."""

    kind: str
    must_end: bool
    error: str | None

    @property
    def is_complete(self) -> bool: ...

    def fill_mask(self) -> None: ...

    def apply(self, logits: npt.NDArray[np.float32]) -> None: ...

    def advance(self, token_id: int) -> None: ...

    def look_ahead(self) -> TokenConstraint: ...

    def few_allowed(self) -> tuple[int, ...] | None: ...

    def forced_bytes(self) -> bytes: ...


class RequestStatus(Enum):
    """Where a request is: in the waiting queue, in the running set, or done."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Request:
    """One sequence. A caller's request with n answers is n of these, `siblings` of each other."""

    key: int
    """Unique while the engine lives; names the sequence in the KV cache."""
    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    max_output_tokens: int
    """max_tokens, or what is left of the context when that is unset."""
    end_token_ids: frozenset[int]
    """The model's end tokens (unless ignore_eos) and stop_token_ids."""
    sample_index: int = 0
    arrival: int = 0
    """Number of the caller's request, in order of arrival."""
    priority: int = 0
    """Lower is served earlier and preempted later."""
    client: str = ""
    """Whose request it is; clients of equal priority get equal shares."""
    turn: int = 0
    """Its place among those of its priority, given by the scheduler when it comes (engine/fairness.py); 0 before."""
    is_overdue: bool = False
    """Whether the scheduler has put it before all priorities, because so many that came later went first."""
    logits_processors: tuple[LogitsProcessor, ...] = ()
    constraint: TokenConstraint | None = None
    """The shape its answer must have, advanced by its output: recomputation keeps both."""
    prefill_only: bool = False
    """Fills the prefix cache and draws nothing."""
    cache_key: tuple[str, ...] = ()
    """Under what its blocks are cached: salt, KV type and precision, or a name of its own without prefix caching.

    Empty: neither looked up nor kept.
    """
    siblings: list[Request] = field(default_factory=list)
    """All n sequences of the prompt, this one included."""
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int | None = None
    """Prompt tokens that were found in the prefix cache when it first ran; None before that."""
    num_prompt_rows_reported: int = 0
    """Prompt positions whose prompt_logprobs have been handed out; recomputation does not repeat them."""
    num_preemptions: int = 0
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None

    @property
    def order(self) -> tuple[int, int, int, int, int, int]:
        """Who is served first: answers before what only fills the cache, by priority, then by turn, then by arrival.

        What was overtaken too often comes before all priorities.
        """
        if self.is_overdue:
            return (self.prefill_only, 0, 0, 0, self.arrival, self.sample_index)
        return (self.prefill_only, 1, self.priority, self.turn, self.arrival, self.sample_index)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Ids known so far, prompt and output."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_prompt_rows_wanted(self) -> int:
        """Prompt positions that predict a later prompt token and whose logprobs are asked for.

        The first of n siblings reports for all of them.
        """
        if self.params.prompt_logprobs is None or self.sample_index != 0:
            return 0
        return len(self.prompt_token_ids) - 1

    def token_at(self, position: int) -> int:
        """The id at a position of prompt and output together."""
        num_prompt = len(self.prompt_token_ids)
        return (
            self.prompt_token_ids[position] if position < num_prompt else self.output_token_ids[position - num_prompt]
        )

    def tokens_between(self, start: int, end: int) -> list[int]:
        """The ids at positions start … end − 1 of prompt and output together."""
        num_prompt = len(self.prompt_token_ids)
        if end <= num_prompt:
            return self.prompt_token_ids[start:end]
        output = self.output_token_ids[max(0, start - num_prompt) : end - num_prompt]
        return self.prompt_token_ids[start:] + output if start < num_prompt else output
