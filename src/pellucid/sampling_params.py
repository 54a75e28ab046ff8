"""How the next token is chosen and when a request ends: the one place for these fields, defaults and ranges.

The command line's flags and the server's request model are generated from `SamplingParams`; its checks
run before any work starts, and each names the field and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, get_args

from pellucid.errors import InvalidParameterError, shown
from pellucid.structured_outputs import StructuredOutputsParams

OverflowPolicy = Literal["error", "truncate_left", "truncate_right", "truncate_middle", "compress"]
OVERFLOW_POLICIES: tuple[OverflowPolicy, ...] = get_args(OverflowPolicy)
PresetName = Literal["factual", "creative", "greedy"]

PRESETS: dict[PresetName, dict[str, float | int]] = {
    "factual": {"temperature": 0.3, "top_p": 0.9, "top_k": 40},
    "creative": {"temperature": 1.0, "min_p": 0.05, "top_p": 0.95},
    "greedy": {"temperature": 0.0},
}

MAX_N = 128
MAX_STOP_STRINGS = 64
MAX_LOGPROBS = 1024
MAX_LOGIT_BIAS = 100.0
MAX_PENALTY_FACTOR = 1e6
"""Logits stay finite in float32, whatever they were."""
MAX_SEED = 2**63 - 1
MAX_INTEGER = 2**63 - 1
"""Of fields without a limit of their own; Python's own have none, and messages and JSON could not hold them."""
MAX_TOKEN_ID = 2**31 - 1
MAX_TOKEN_IDS = 2**20
"""Longest list of token ids: several vocabularies."""
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
    min_p: float = field(
        default=0.0, metadata=_help("Drop tokens less probable than this times the most probable one.")
    )
    repetition_penalty: float = field(
        default=1.0, metadata=_help("Divides positive and multiplies negative logits of tokens in prompt or output.")
    )
    frequency_penalty: float = field(default=0.0, metadata=_help("Subtracted once per occurrence in the output."))
    presence_penalty: float = field(default=0.0, metadata=_help("Subtracted once if the token is in the output."))
    seed: int | None = field(default=None, metadata=_help("Seed of the draw; one is given and reported when unset."))
    max_tokens: int | None = field(
        default=None, metadata=_help("Most tokens to generate; to the end of the context when unset.")
    )
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
    overflow: OverflowPolicy = field(
        default="error", metadata=_help("What is done to a prompt that does not fit; the answer tells.")
    )
    skip_special_tokens: bool = field(default=True, metadata=_help("Leave control tokens out of the text."))
    structured_outputs: StructuredOutputsParams | None = field(
        default=None, metadata=_help("The shape the answer must have: a JSON Schema, a regex, a choice, a grammar.")
    )

    def __post_init__(self) -> None:
        keep_all = "a whole number of at least 1, or 0 or -1 to keep all tokens"
        self._set("n", _integer("n", self.n, 1, MAX_N))
        self._set("temperature", _number("temperature", self.temperature, 0.0, math.inf))
        self._set("top_k", _integer("top_k", self.top_k, -1, None, allowed=keep_all))
        self._set("top_p", _number("top_p", self.top_p, 0.0, 1.0, open_low=True))
        self._set("min_p", _number("min_p", self.min_p, 0.0, 1.0))
        self._set(
            "repetition_penalty",
            _number("repetition_penalty", self.repetition_penalty, 1 / MAX_PENALTY_FACTOR, MAX_PENALTY_FACTOR),
        )
        self._set("frequency_penalty", _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0))
        self._set("presence_penalty", _number("presence_penalty", self.presence_penalty, -2.0, 2.0))
        self._set("seed", _optional_integer("seed", self.seed, 0, MAX_SEED))
        self._set("max_tokens", _optional_integer("max_tokens", self.max_tokens, 1, None))
        self._set("min_tokens", _integer("min_tokens", self.min_tokens, 0, None))
        self._set("stop", _strings("stop", self.stop))
        self._set("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        self._set("logit_bias", _bias(self.logit_bias))
        self._set("banned_token_ids", _ids("banned_token_ids", self.banned_token_ids))
        self._set("logprobs", _optional_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS))
        self._set("prompt_logprobs", _optional_integer("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids))
        _check_structured_outputs(self.structured_outputs)
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise _refusal(name, getattr(self, name), "true or false")
        if self.overflow not in OVERFLOW_POLICIES:
            raise _refusal("overflow", self.overflow, f"one of {', '.join(OVERFLOW_POLICIES)}")
        self._check_together()

    def _check_together(self) -> None:
        """Refuse values that are in range one by one, but leave nothing to do."""
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise _refusal("min_tokens", self.min_tokens, f"at most max_tokens, which is {shown(self.max_tokens)}")
        if self.structured_outputs is not None and self.ignore_eos:
            raise InvalidParameterError(
                "ignore_eos",
                "ignore_eos and structured_outputs exclude each other: a structure ends where it is complete",
            )
        if self.allowed_token_ids is None:
            return
        if not self.allowed_token_ids:
            raise _refusal("allowed_token_ids", [], "a list of at least one token id")
        if set(self.allowed_token_ids) <= set(self.banned_token_ids):
            raise InvalidParameterError(
                "allowed_token_ids", "allowed_token_ids has only ids that are in banned_token_ids too"
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
            raise _refusal("preset", preset, f"one of {', '.join(PRESETS)}")
        return cls(**{**PRESETS[preset], **overrides})


def _refusal(name: str, value: Any, allowed: str) -> InvalidParameterError:
    return InvalidParameterError(name, f"{name} is {shown(value)}, but must be {allowed}")


def _integer(name: str, value: Any, low: int, high: int | None, *, allowed: str | None = None) -> int:
    most = MAX_INTEGER if high is None else high
    if not _is_integer(value) or not low <= value <= most:
        is_open = high is None and not (_is_integer(value) and value > most)
        raise _refusal(
            name, value, allowed or f"a whole number {f'of at least {low}' if is_open else f'from {low} to {most}'}"
        )
    return int(value)


def _optional_integer(name: str, value: Any, low: int, high: int | None) -> int | None:
    return None if value is None else _integer(name, value, low, high)


def _number(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> float:
    floor = f"above {low:g}" if open_low else f"at least {low:g}"
    span = f"a finite number {floor}" if high == math.inf else f"a number {floor} and at most {high:g}"
    number = _finite(value)
    if number is None or number > high or number < low or (open_low and number == low):
        raise _refusal(name, value, span)
    return number


def _is_integer(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral)


def _finite(value: Any) -> float | None:
    """The value as a float, or None where it is no number or not finite."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond float64
        return None
    return number if math.isfinite(number) else None


def _strings(name: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = (value,) if isinstance(value, str) else value
    allowed = f"a string or a list of at most {MAX_STOP_STRINGS} strings, none of them empty or half a surrogate pair"
    if not isinstance(strings, (list, tuple)) or not all(isinstance(s, str) and s and _is_text(s) for s in strings):
        raise _refusal(name, value, allowed)
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidParameterError(name, f"{name} has {len(strings)} strings, more than {MAX_STOP_STRINGS}")
    return tuple(strings)


def _check_structured_outputs(value: Any) -> None:
    if value is not None and not isinstance(value, StructuredOutputsParams):
        raise _refusal("structured_outputs", value, "StructuredOutputsParams")


def _is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple, set, frozenset, range)):
        raise _refusal(name, value, "a list of token ids, whole numbers from 0")
    if len(value) > MAX_TOKEN_IDS:
        raise InvalidParameterError(name, f"{name} has {len(value)} token ids, more than {MAX_TOKEN_IDS}")
    for token_id in value:
        if not _is_token_id(token_id):
            raise InvalidParameterError(
                name, f"{name} has {shown(token_id)}, but token ids are whole numbers from 0 to {MAX_TOKEN_ID}"
            )
    return tuple(sorted(map(int, value)) if isinstance(value, (set, frozenset)) else map(int, value))


def _is_token_id(value: Any) -> bool:
    return _is_integer(value) and 0 <= value <= MAX_TOKEN_ID


def _bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    name = "logit_bias"
    if not isinstance(value, Mapping):
        raise _refusal(name, value, f"a mapping of token ids to numbers from -{MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}")
    bias: dict[int, float] = {}
    for key, number in value.items():
        token_id = _bias_id(key)
        if token_id is None:
            raise InvalidParameterError(
                name, f"{name} has the key {shown(key)}, but ids are whole numbers from 0 to {MAX_TOKEN_ID}"
            )
        if token_id in bias:
            raise InvalidParameterError(name, f"{name} has the token id {token_id} twice, but must have it once")
        bias[token_id] = _number(f"{name}[{token_id}]", number, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
    return bias


def _bias_id(key: Any) -> int | None:
    """The key as a token id; JSON objects have only strings as keys."""
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10:
        key = int(key)
    return int(key) if _is_token_id(key) else None
