"""The oracle: one sequence at a time, the whole history hashed anew for each token, text decoded as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from mock_model import SPECIAL, ByteTokenizer, history_hash, logits_of_hash
from naive_constraint import NaiveConstraint

from pellucid.sampling.logprobs import raw_logprobs
from pellucid.sampling.sampler import Sampler
from pellucid.sampling.state import SamplingState
from pellucid.sampling_params import SamplingParams


@dataclass
class Expected:
    """What one answer must be."""

    token_ids: list[int]
    text: str
    finish_reason: str
    stop_reason: int | str | None
    logprobs: list[list[tuple[int, float, int]]]


def naive_generate(
    prompt: list[int], params: SamplingParams, seed: int, sample_index: int, max_model_len: int
) -> Expected:
    """One answer by the definitions alone."""
    tokenizer = ByteTokenizer()
    ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else tokenizer.eos_ids)
    output: list[int] = []
    state = SamplingState(params, seed, sample_index, prompt, output, ends)
    constraint = state.constraint = params.structured_outputs and NaiveConstraint(params.structured_outputs)
    sampler = Sampler(tokenizer.vocab_size)
    limit = params.max_tokens or max_model_len - len(prompt)
    logprobs = []
    while True:
        tokens = prompt + output
        sampled = sampler.sample(logits_of_hash(history_hash(tokens, range(len(tokens)))), state)
        output.append(sampled.token_id)
        logprobs.append(sampled.top_logprobs or [])
        can_stop = len(output) > params.min_tokens
        if can_stop and sampled.token_id in ends:
            is_eos = not params.ignore_eos and sampled.token_id in tokenizer.eos_ids
            shown = output if params.include_stop_str_in_output and not is_eos else output[:-1]
            text = tokenizer.decode(shown, skip_special_tokens=params.skip_special_tokens)
            return Expected(output, text, "stop", None if is_eos else sampled.token_id, logprobs)
        if constraint is not None:
            constraint.advance(sampled.token_id)
        if can_stop:
            found = naive_stop(output, params, tokenizer)
            if found is not None:
                return Expected(output, found[0], "stop", found[1], logprobs)
        if constraint is not None and constraint.is_complete:
            text = tokenizer.decode(output, skip_special_tokens=params.skip_special_tokens)
            return Expected(output, text, "stop", None, logprobs)
        if len(output) == limit:
            text = tokenizer.decode(output, skip_special_tokens=params.skip_special_tokens)
            return Expected(output, text, "length", None, logprobs)


def naive_stop(output: list[int], params: SamplingParams, tokenizer: ByteTokenizer) -> tuple[str, str] | None:
    """(text, stop string) when the last token completes a stop string: character by character, the first to be whole.

    For stop strings in ASCII only: their characters never wait for further bytes.
    """
    last = output[-1]
    skip = params.skip_special_tokens
    before = tokenizer.decode(output[:-1], skip_special_tokens=skip) if last < 128 or last in SPECIAL else None
    shown = tokenizer.decode(output, skip_special_tokens=skip)
    for end in range(len(shown) if before is None else len(before) + 1, len(shown) + 1):
        ended = [stop for stop in params.stop if shown[:end].endswith(stop)]
        if ended and before is not None:
            stop = max(ended, key=len)
            return shown[:end] if params.include_stop_str_in_output else shown[: end - len(stop)], stop
        if skip and end == len(shown) and last < 128:
            break
    return _naive_hidden_stop(output, params, tokenizer, shown) if skip else None


def _naive_hidden_stop(
    output: list[int], params: SamplingParams, tokenizer: ByteTokenizer, shown: str
) -> tuple[str, str] | None:
    """The same for stop strings that have left-out control tokens in them, which count as wholes."""
    for start in range(len(output)):
        tail = output[start:]
        text = tokenizer.decode(tail, skip_special_tokens=False)
        if text in params.stop and any(token_id in SPECIAL for token_id in tail):
            num_shown = len(tokenizer.decode(tail))
            return shown if params.include_stop_str_in_output else shown[: len(shown) - num_shown], text
    return None


def naive_prompt_logprobs(prompt: list[int], num: int) -> list[list[tuple[int, float, int]] | None]:
    """(id, logprob, rank) of every prompt position after the first."""
    rows: list[list[tuple[int, float, int]] | None] = [None]
    for position in range(1, len(prompt)):
        logits = logits_of_hash(history_hash(prompt[:position], range(position)))
        rows.append(raw_logprobs(logits, num, prompt[position]))
    return rows
