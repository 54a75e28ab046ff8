"""What a beam search is asked for, and what it gives back: plain data with vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pellucid.errors import InvalidParameterError, shown
from pellucid.outputs import FinishReason
from pellucid.sampling_params import MAX_INTEGER

MAX_BEAM_WIDTH = 64


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """Parameters of `LLM.beam_search`. Raises `InvalidParameterError` for a value out of range."""

    beam_width: int
    """Sequences followed at a time, and given back."""
    max_tokens: int
    """Most tokens of a sequence."""
    length_penalty: float = 1.0
    """Scores are divided by length ** length_penalty: above 0 favours long sequences, below 0 short ones."""
    early_stopping: bool | Literal["never"] = False
    """True: end with beam_width finished sequences. False: when the best one running would not be better if it ended
    now. "never": when none could become better."""
    ignore_eos: bool = False
    """Go on past the model's end tokens."""

    def __post_init__(self) -> None:
        for name, high in (("beam_width", MAX_BEAM_WIDTH), ("max_tokens", MAX_INTEGER)):
            value: Any = getattr(self, name)
            if type(value) is not int or not 1 <= value <= high:
                raise InvalidParameterError(
                    name, f"{name} is {shown(value)}, but must be a whole number from 1 to {high}"
                )
        penalty: Any = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, (int, float)) or not -100.0 <= penalty <= 100.0:
            raise InvalidParameterError(
                "length_penalty", f"length_penalty is {shown(penalty)}, but must be a number from -100 to 100"
            )
        if self.early_stopping not in (True, False, "never") or isinstance(self.early_stopping, (int, float)) != (
            isinstance(self.early_stopping, bool)
        ):
            raise InvalidParameterError(
                "early_stopping", f'early_stopping is {shown(self.early_stopping)}, but must be True, False or "never"'
            )
        if not isinstance(self.ignore_eos, bool):
            raise InvalidParameterError(
                "ignore_eos", f"ignore_eos is {shown(self.ignore_eos)}, but must be True or False"
            )


@dataclass(slots=True)
class BeamSearchSequence:
    """One sequence that a beam search found."""

    text: str
    token_ids: list[int]
    """The end token included."""
    cumulative_logprob: float
    """Sum of its tokens' raw logprobs."""
    score: float
    """cumulative_logprob / number of tokens ** length_penalty."""
    finish_reason: FinishReason


@dataclass(slots=True)
class BeamSearchOutput:
    """The sequences found for one prompt, the best first."""

    prompt_token_ids: list[int]
    sequences: list[BeamSearchSequence]
