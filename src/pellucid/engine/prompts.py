"""What a caller gives → ids that fit: text, ids or messages, under the request's `overflow`. No engine.

Both functions are generators as in overflow.py: they yield what is to be scored, which only `compress` needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pellucid.engine.overflow import FittedPrompt, Fitting, fit_chat, fit_prompt
from pellucid.engine.validation import check_text_length, checked_prompt
from pellucid.sampling_params import SamplingParams


def prompt_fitting(prompt: Any, params: SamplingParams, tokenizer: Any, vocab_size: int, max_model_len: int) -> Fitting:
    """A raw prompt. Where overflow is "error", a text that cannot fit is refused before it is encoded, and ids are
    taken as they are: the engine checks them.
    """
    text = prompt if isinstance(prompt, str) else None
    if text is not None:
        if is_strict(params):
            check_text_length(tokenizer, text, max_model_len)
        prompt = tokenizer.encode(text)
    if is_strict(params):
        return FittedPrompt(prompt, text)
    ids = checked_prompt(prompt, vocab_size)
    return (yield from fit_prompt(ids, text, params, tokenizer, max_model_len))


def chat_fitting(
    messages: Any, options: Mapping[str, Any], params: SamplingParams, tokenizer: Any, max_model_len: int
) -> Fitting:
    """A conversation; `options` are those of `encode_chat`."""
    if is_strict(params):
        from pellucid.tokenizer.chat_template import encode_rendered, render_chat

        rendered = render_chat(tokenizer, messages, **options)
        check_text_length(tokenizer, rendered.text, max_model_len)
        return FittedPrompt(encode_rendered(tokenizer, rendered).token_ids, rendered.text)
    from pellucid.tokenizer.chat_template import check_messages, encode_chat

    def render(messages: list[dict[str, Any]]) -> tuple[Sequence[int], str]:
        prompt = encode_chat(tokenizer, messages, **options)
        return prompt.token_ids, prompt.text

    return (yield from fit_chat(render, check_messages(messages), params, tokenizer, max_model_len))


def is_strict(params: Any) -> bool:
    """Whether a prompt that does not fit is refused; what is no SamplingParams the engine refuses."""
    return not isinstance(params, SamplingParams) or params.overflow == "error"
