"""What a request gives back: plain data with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

LOGPROB_FLOOR = -9999.0
"""JSON has no infinity; this is what OpenAI's and vLLM's answers carry in its place."""

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
    """0 to n − 1."""
    text: str
    """Without end tokens, and without the stop string unless it was asked for."""
    token_ids: list[int]
    """All ids drawn, the end token included."""
    seed: int
    """The seed of the draw; passing it again gives the same answer."""
    cumulative_logprob: float | None = None
    """Sum of the drawn tokens' logprobs; None unless `logprobs` was asked for."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry for each of `token_ids`; None unless asked for."""
    finish_reason: FinishReason | None = None
    """None while the answer is being made."""
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended the answer; None for the model's own end token."""
    error: str | None = None
    """What went wrong, where finish_reason is "error"."""
    error_field: str | None = None
    """The parameter at fault, where it shows in mid-answer that what the request asks for cannot be."""


@dataclass(frozen=True, slots=True)
class RemovedTokens:
    """Tokens `start` … `end` − 1 of a prompt, or of the text of one of its messages, that were left out."""

    start: int
    end: int
    message: int | None = None
    """Place of the message in the conversation; None for a raw prompt."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """What was done to a prompt that did not fit."""

    policy: str
    """The request's `overflow`."""
    num_original_tokens: int
    """Tokens of the prompt that was given."""
    num_kept_tokens: int
    """Tokens of the prompt that was read, marks included."""
    removed: tuple[RemovedTokens, ...]
    """What is not in it, in order."""


@dataclass(frozen=True, slots=True)
class PrefillOutput:
    """What filling the prefix cache ahead of a request came to."""

    num_prompt_tokens: int
    """Tokens of the prompt."""
    num_cached_tokens: int
    """Those that were in the cache before."""
    num_kept_tokens: int
    """Those that are in it now, in whole blocks: a request that begins with this prompt finds them."""


@dataclass(slots=True)
class RequestMetrics:
    """Monotonic times of one request in seconds (time.monotonic); None before they happen."""

    arrival_time: float
    """When the caller asked, before the prompt was rendered or became ids."""
    first_scheduled_time: float | None = None
    """When its first tokens were about to be computed."""
    first_token_time: float | None = None
    """When the first token of any of its answers was chosen."""
    last_token_time: float | None = None
    """The same for the last one so far."""
    token_times: list[float] = field(default_factory=list)
    """When each token of the first answer was chosen."""
    num_preemptions: int = 0
    """How often its answers that have ended gave up their KV blocks and were computed again."""
    num_draft_tokens: int = 0
    """Guesses at its tokens that were verified …"""
    num_accepted_tokens: int = 0
    """… and those that came true: tokens that took no step of their own."""

    @property
    def ttft(self) -> float | None:
        """Time to first token in seconds: arrival to the first token emitted; None before that."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first in seconds, of the first answer; None before its second token."""
        times = self.token_times
        return None if len(times) < 2 else (times[-1] - times[0]) / (len(times) - 1)

    @property
    def itl(self) -> list[float]:
        """Inter-token latencies in seconds, of the first answer: one less than it has tokens."""
        return [later - earlier for earlier, later in pairwise(self.token_times)]


@dataclass(slots=True)
class RequestOutput:
    """State of one request; `finished` when all its answers have a finish_reason.

    Streaming yields deltas: `text`, `token_ids` and `logprobs` of each CompletionOutput then hold what is new
    since the output before.
    """

    request_id: str
    prompt: str | None
    """The text given, or rendered by the chat template; None for a prompt of ids."""
    prompt_token_ids: list[int]
    """What the model read, BOS included."""
    outputs: list[CompletionOutput]
    """The answers, by index; a delta has those with something new."""
    finished: bool
    metrics: RequestMetrics
    num_cached_tokens: int | None = None
    """Prompt tokens that came from the prefix cache and were not computed; None before the request first ran."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """`[None, {id: Logprob}, …]`: position 0 has no prediction."""
    is_prefill: bool = False
    """Nothing was asked for but to fill the prefix cache; see `LLMEngine.add_prefill`."""
    overflow: Overflow | None = None
    """What was done to the prompt because it did not fit; None when nothing was."""
