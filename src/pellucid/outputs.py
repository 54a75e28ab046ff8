"""What a request gives back: plain data with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]
"""stop: an end token, stop token or stop string · length: max_tokens or the end of the context · abort: the
caller asked for it · error: this request failed, and `error` says how."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural logarithm of a token's probability under the raw logits, before any sampling stage."""

    logprob: float
    rank: int
    """1 for the most probable token; ties are ordered by id."""
    decoded_token: str
    """The token's own text; bytes that are not whole characters show as U+FFFD."""


TokenLogprobs = dict[int, Logprob]
"""The chosen (or given) token and the most probable ones, by id, the chosen one first."""


@dataclass(slots=True)
class CompletionOutput:
    """One of the n answers to a prompt."""

    index: int
    text: str
    token_ids: list[int]
    seed: int
    """The seed of the draw; passing it again gives the same answer."""
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended the answer; None for the model's own end token."""
    error: str | None = None


@dataclass(slots=True)
class RequestMetrics:
    """Monotonic times of one request in seconds (time.monotonic); None before they happen."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    token_times: list[float] = field(default_factory=list)
    """When each token of the first answer was chosen."""
    num_preemptions: int = 0

    @property
    def ttft(self) -> float | None:
        """Time to first token: arrival to the first token emitted."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass(slots=True)
class RequestOutput:
    """State of one request; `finished` when all its answers have a finish_reason.

    Streaming yields deltas: `text`, `token_ids` and `logprobs` of each CompletionOutput then hold what is new
    since the output before.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """`[None, {id: Logprob}, …]`: position 0 has no prediction."""
