"""What is refused before any work starts; every refusal names the field and what is allowed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from pellucid.config import ModelConfig
from pellucid.errors import ContextLengthExceededError, InvalidParameterError, shown
from pellucid.request import LogitsProcessor
from pellucid.sampling.sampler import check_params_against_vocab
from pellucid.sampling_params import SamplingParams
from pellucid.trace.events import LEVEL_HELP, MAX_LEVEL


def is_listed(value: Any) -> bool:
    """Whether a value is a list, tuple or other sequence of things, or an array of them; text and bytes are not."""
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return False
    return isinstance(value, Sequence) or getattr(value, "ndim", 0) > 0


def checked_prompt(token_ids: Any, vocab_size: int) -> list[int]:
    """The prompt's ids as plain ints.

    Raises `InvalidParameterError` for what is no list, for a prompt without ids, or with one that the vocabulary does
    not have.
    """
    if not is_listed(token_ids):
        raise InvalidParameterError("prompt", f"prompt is {shown(token_ids)}, but must be text or a list of token ids")
    ids: list[int] = []
    for position, token_id in enumerate(token_ids):
        try:
            number = -1 if isinstance(token_id, bool) else operator.index(token_id)
        except TypeError:
            number = -1
        if not 0 <= number < vocab_size:
            raise InvalidParameterError(
                "prompt",
                f"prompt has {shown(token_id)} at position {position}, but a token id must be a whole number from 0 to "
                f"{vocab_size - 1}",
            )
        ids.append(number)
    if not ids:
        raise InvalidParameterError(
            "prompt",
            "prompt is empty and the model puts no beginning-of-sequence (BOS) token before it, so there is nothing "
            "to start from: give at least one token",
        )
    return ids


def check_generates(config: ModelConfig) -> None:
    """Refuse to generate with an encoder: its tokens see those behind them, and it has no next one to give."""
    if not config.causal:
        raise InvalidParameterError(
            "model",
            f"the model {shown(config.name)} is an encoder ({config.architecture}): it gives embeddings "
            "(/v1/embeddings, LLM.embed) and no text",
        )


def check_text_length(tokenizer: Any, text: str, max_model_len: int, *, answers: bool = True) -> None:
    """Refuse a text that cannot fit before it is encoded, which takes a second for a megabyte or so.

    answers: one place is needed for the answer. Raises `ContextLengthExceededError` with the number of tokens that the
    text has at least.
    """
    if 4 * len(text) < max_model_len:  # as many bytes at most, and a token has one or more
        return
    least = tokenizer.least_tokens(text)
    if least + answers > max_model_len:
        raise ContextLengthExceededError(least, max_model_len, None if answers else 0, is_least=True)


def checked_processors(processors: Any) -> tuple[LogitsProcessor, ...]:
    """The logits processors as a tuple. Raises `InvalidParameterError` for anything but a list of callables."""
    if not isinstance(processors, Sequence) or not all(map(callable, processors)):
        raise InvalidParameterError(
            "logits_processors",
            "logits_processors must be a list of functions, each from (output ids, logits [vocab]) to logits [vocab]",
        )
    return tuple(processors)


def checked_priority(priority: Any) -> int:
    """The priority as a plain int. Raises `InvalidParameterError` for anything but a whole number."""
    if isinstance(priority, bool) or not isinstance(priority, Integral):
        raise InvalidParameterError(
            "priority", f"priority is {shown(priority)}, but must be a whole number; lower is earlier"
        )
    return int(priority)


def checked_client(client: Any) -> str:
    """The client's name as it is. Raises `InvalidParameterError` for anything but a string."""
    if not isinstance(client, str):
        raise InvalidParameterError("client", f"client is {shown(client)}, but must be a string")
    return client


def checked_trace_level(trace_level: Any) -> int:
    """The level as it is. Raises `InvalidParameterError` for anything but a whole number from 0 to MAX_LEVEL."""
    if type(trace_level) is not int or not 0 <= trace_level <= MAX_LEVEL:
        raise InvalidParameterError(
            "trace_level", f"trace_level is {shown(trace_level)}, but must be from 0 to {MAX_LEVEL}: {LEVEL_HELP}"
        )
    return trace_level


def checked_salt(cache_salt: Any) -> str:
    """The salt as it is. Raises `InvalidParameterError` for anything but a string."""
    if not isinstance(cache_salt, str):
        raise InvalidParameterError("cache_salt", f"cache_salt is {shown(cache_salt)}, but must be a string")
    return cache_salt


def check_params(params: SamplingParams, num_prompt_tokens: int, vocab_size: int, max_model_len: int) -> None:
    """Whether the parameters fit the model and the context.

    Raises `ContextLengthExceededError` when prompt and answer cannot fit into max_model_len,
    `InvalidParameterError` for a token id outside the vocabulary or a min_tokens that cannot be reached.
    """
    if not isinstance(params, SamplingParams):
        raise InvalidParameterError(
            "sampling_params", f"sampling_params is a {type(params).__name__}, but must be SamplingParams"
        )
    if num_prompt_tokens >= max_model_len:
        raise ContextLengthExceededError(num_prompt_tokens, max_model_len)
    if params.max_tokens is not None and num_prompt_tokens + params.max_tokens > max_model_len:
        raise ContextLengthExceededError(num_prompt_tokens, max_model_len, params.max_tokens)
    if params.min_tokens > max_model_len - num_prompt_tokens:
        raise InvalidParameterError(
            "min_tokens",
            f"min_tokens is {params.min_tokens}, but after a prompt of {num_prompt_tokens} tokens max_model_len "
            f"{max_model_len} leaves room for {max_model_len - num_prompt_tokens}",
        )
    check_params_against_vocab(params, vocab_size)
