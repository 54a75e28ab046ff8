"""What `LLM` takes, checked and brought into one form: lists of prompts and of params, chat options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.engine.output_processor import TokenizerLike
from pellucid.engine.validation import check_text_length, checked_prompt, is_listed
from pellucid.errors import ContextLengthExceededError, InvalidParameterError, shown
from pellucid.request import LogitsProcessor
from pellucid.sampling_params import SamplingParams

Message = Mapping[str, Any]
"""{"role": "user", "content": "…"} as in the OpenAI API."""
Prompt = str | Sequence[int]
"""Text, or token ids taken as they are."""


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What a request may carry beside its prompt and its SamplingParams; see `LLMEngine.add_request`."""

    cache_salt: str = ""
    logits_processors: Sequence[LogitsProcessor] = ()
    trace_level: int = 0
    template: str | None = None
    """What the prompt was rendered with, for the trace."""


def listed_prompts(prompts: Any) -> list[Prompt]:
    """One prompt or several, as a list of prompts."""
    if isinstance(prompts, str):
        return [prompts]
    if not is_listed(prompts):
        raise InvalidParameterError(
            "prompts", "prompts must be a string, a list of strings, or a list of lists of token ids"
        )
    if len(prompts) and not _is_prompt(prompts[0]):
        return [prompts]
    items = list(prompts)
    wrong = next((place for place, item in enumerate(items) if not _is_prompt(item)), None)
    if wrong is not None:
        raise InvalidParameterError(
            "prompts",
            f"prompts has {shown(items[wrong])} at position {wrong}, but each must be text or a list of token ids",
        )
    return items


def encoded_prompts(
    prompts: Any, tokenizer: TokenizerLike, vocab_size: int, max_model_len: int, max_tokens: int
) -> list[list[int]]:
    """The ids of one prompt or several. Raises `ContextLengthExceededError` where they and max_tokens do not fit.

    max_tokens: 0 where no answer is asked for. Of several prompts the error names the one: prompts[3].
    """
    listed: list[list[int]] = []
    given = listed_prompts(prompts)
    for place, prompt in enumerate(given):
        try:
            if isinstance(prompt, str):
                check_text_length(tokenizer, prompt, max_model_len, answers=max_tokens > 0)
            ids = checked_prompt(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt, vocab_size)
            if len(ids) + max_tokens > max_model_len:
                raise ContextLengthExceededError(len(ids), max_model_len, max_tokens)
        except InvalidParameterError as error:
            if len(given) > 1 and error.field == "prompt":
                error.field = "prompts"
                error.args = (str(error).replace("prompt", f"prompts[{place}]", 1),)
            raise
        listed.append(ids)
    return listed


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or is_listed(value)


def listed_params(params: Any, num_prompts: int) -> list[SamplingParams]:
    """One SamplingParams for each prompt: the one given for all, or the list given."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    listed = list(params) if isinstance(params, Sequence) else None
    if listed is None or not all(isinstance(one, SamplingParams) for one in listed) or len(listed) != num_prompts:
        raise InvalidParameterError(
            "sampling_params",
            f"sampling_params must be one SamplingParams or a list of {num_prompts}, one for each prompt",
        )
    return listed


def is_messages(prompt: Any) -> bool:
    """Whether it is one conversation, rather than text or token ids."""
    return (
        not isinstance(prompt, str)
        and isinstance(prompt, Sequence)
        and len(prompt) > 0
        and isinstance(prompt[0], Mapping)
    )


def is_listed_conversations(messages: Any) -> bool:
    """Whether it is several conversations."""
    return isinstance(messages, Sequence) and len(messages) > 0 and not isinstance(messages[0], Mapping)


def chat_options(
    add_generation_prompt: bool | None,
    continue_final_message: bool,
    chat_template: str | None,
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The arguments of `encode_chat`, which opens an answer unless the last message is to be continued."""
    options: dict[str, Any] = {
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
        "chat_template": chat_template,
        "tools": tools,
    }
    given = {} if variables is None else variables
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidParameterError(
            "chat_template_kwargs", "chat_template_kwargs must be a mapping of the template's variables to their values"
        )
    taken = sorted(given.keys() & {*options, "tokenizer", "messages"})
    if taken:
        raise InvalidParameterError(
            "chat_template_kwargs", f"chat_template_kwargs has {', '.join(taken)}, which has a parameter of its own"
        )
    return {**options, **given}
