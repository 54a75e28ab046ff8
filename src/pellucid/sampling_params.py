"""How the next token is chosen and when a request ends: the one place for these fields, defaults and ranges.

The command line's flags and the server's request model are generated from `SamplingParams`; its checks
run before any work starts, and each names the field and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from pellucid.errors import InvalidParameterError

PresetName = Literal["factual", "creative", "greedy"]

PRESETS: dict[PresetName, dict[str, float | int]] = {
    "factual": {"temperature": 0.3, "top_p": 0.9, "top_k": 40},
    "creative": {"temperature": 1.0, "min_p": 0.05, "top_p": 0.95},
    "greedy": {"temperature": 0.0},
}

MAX_N = 128
MAX_STOP_STRINGS = 64
MAX_LOGPROBS = 1024
MIN_TEMPERATURE = 1e-5
"""Temperatures at or below this are greedy: the quotient of two float32 logits would overflow or be noise."""


def _help(text: str, **extra: Any) -> dict[str, Any]:
    return {"help": text, **extra}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of one request. Names and meanings follow vLLM and the OpenAI API.

    Raises `InvalidParameterError` for a value out of range; nothing is clamped.
    """

    n: int = field(default=1, metadata=_help("Answers to draw for the prompt."))
    temperature: float = field(default=1.0, metadata=_help("Divides the logits; 0 is greedy."))
    top_k: int = field(default=0, metadata=_help("Keep the k most probable tokens; 0 or -1 keeps all."))
    top_p: float = field(default=1.0, metadata=_help("Keep the fewest tokens whose probabilities reach this sum."))
    min_p: float = field(default=0.0, metadata=_help("Drop tokens less probable than this times the most probable one."))
    repetition_penalty: float = field(
        default=1.0, metadata=_help("Divides positive and multiplies negative logits of tokens in prompt or output.")
    )
    frequency_penalty: float = field(default=0.0, metadata=_help("Subtracted once per occurrence in the output."))
    presence_penalty: float = field(default=0.0, metadata=_help("Subtracted once if the token is in the output."))
    seed: int | None = field(default=None, metadata=_help("Seed of the draw; one is given and reported when unset."))
    max_tokens: int | None = field(default=None, metadata=_help("Most tokens to generate; to the end of the context when unset."))
    min_tokens: int = field(default=0, metadata=_help("End and stop tokens are impossible before this many tokens."))
    stop: tuple[str, ...] = field(default=(), metadata=_help("Strings that end the answer and are not part of it."))
    stop_token_ids: tuple[int, ...] = field(default=(), metadata=_help("Token ids that end the answer."))
    include_stop_str_in_output: bool = field(default=False, metadata=_help("Keep the stop string in the text."))
    ignore_eos: bool = field(default=False, metadata=_help("Do not stop at the model's end tokens."))
    logit_bias: Mapping[int, float] = field(default_factory=dict, metadata=_help("Added to the logits of these ids."))
    allowed_token_ids: tuple[int, ...] | None = field(default=None, metadata=_help("Only these ids can be drawn."))
    banned_token_ids: tuple[int, ...] = field(default=(), metadata=_help("These ids can not be drawn."))
    logprobs: int | None = field(default=None, metadata=_help("Report this many most probable tokens per position."))
    prompt_logprobs: int | None = field(default=None, metadata=_help("The same for the prompt's positions."))
    skip_special_tokens: bool = field(default=True, metadata=_help("Leave control tokens out of the text."))

    def __post_init__(self) -> None:
        self._set("stop", _strings("stop", self.stop))
        self._set("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        self._set("banned_token_ids", _ids("banned_token_ids", self.banned_token_ids))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise InvalidParameterError("allowed_token_ids", "allowed_token_ids is empty, but must name at least one id")
        self._set("logit_bias", _bias(self.logit_bias))
        _integer("n", self.n, 1, MAX_N)
        _number("temperature", self.temperature, 0.0, math.inf)
        _integer("top_k", self.top_k, -1, None, note="a whole number of at least 1, or 0 or -1 to keep all tokens")
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, open_low=True)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _integer("seed", self.seed, 0, 2**63 - 1, optional=True)
        _integer("max_tokens", self.max_tokens, 1, None, optional=True)
        _integer("min_tokens", self.min_tokens, 0, None)
        _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS, optional=True)
        _integer("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS, optional=True)
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameterError(name, f"{name} is {getattr(self, name)!r}, but must be true or false")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameterError(
                "min_tokens", f"min_tokens is {self.min_tokens}, but must not be above max_tokens, which is {self.max_tokens}"
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken without a draw."""
        return self.temperature <= MIN_TEMPERATURE

    @classmethod
    def from_preset(cls, preset: str, **overrides: Any) -> SamplingParams:
        """The preset's values with the given fields put over them."""
        if preset not in PRESETS:
            raise InvalidParameterError("preset", f"preset is {preset!r}, but must be one of {', '.join(PRESETS)}")
        return cls(**{**PRESETS[preset], **overrides})  # type: ignore[arg-type]


def sampling_param_names() -> tuple[str, ...]:
    """The public names of all fields, in the order of the class."""
    return tuple(f.name for f in fields(SamplingParams))


def _integer(name: str, value: Any, low: int, high: int | None, *, optional: bool = False, note: str | None = None) -> None:
    if value is None and optional:
        return
    if isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high):
        return
    span = note or (f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}")
    raise InvalidParameterError(name, f"{name} is {value!r}, but must be {span}")


def _number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if is_number and (value > low if open_low else value >= low) and value <= high:
        return
    floor = f"above {low:g}" if open_low else f"at least {low:g}"
    span = f"a finite number {floor}" if high == math.inf else f"a number {floor} and at most {high:g}"
    raise InvalidParameterError(name, f"{name} is {value!r}, but must be {span}")


def _strings(name: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, (list, tuple)) else None
    if strings is None or not all(isinstance(s, str) and s for s in strings) or len(strings) > MAX_STOP_STRINGS:
        raise InvalidParameterError(name, f"{name} must be a non-empty string or a list of at most {MAX_STOP_STRINGS} of them")
    return strings


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = tuple(value) if isinstance(value, (list, tuple, set, frozenset, range)) else None
    if ids is None or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise InvalidParameterError(name, f"{name} must be a list of token ids, whole numbers from 0")
    return ids


def _bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    message = "logit_bias must map token ids to numbers from -100 to 100"
    if not isinstance(value, Mapping):
        raise InvalidParameterError("logit_bias", message)
    bias: dict[int, float] = {}
    for key, number in value.items():
        try:
            token_id = int(key)
        except (TypeError, ValueError):
            raise InvalidParameterError("logit_bias", f"{message}, but has the key {key!r}") from None
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not -100 <= number <= 100 or token_id < 0:
            raise InvalidParameterError("logit_bias", f"{message}, but has {key!r}: {number!r}")
        bias[token_id] = float(number)
    return bias
