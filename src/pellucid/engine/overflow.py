"""What happens to a prompt that does not fit, by the request's `overflow`. Ids, texts and messages; no engine.

A raw prompt is cut at tokens, never inside a character; its BOS stays. A conversation loses whole turns first (a user's
message with all that answers it), in the order that the policy says; its system message and its last user message stay.
Only when those alone are too long, the longest text among them is cut. So what the model reads is always well formed.

`fit_prompt` and `fit_chat` are generators that do no work of the engine's: where the tokens of a text have to be scored
they yield windows of ids and are sent the logprobs of each window's tokens, however the caller gets them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.engine.compress import MARK, Span, compressed
from pellucid.errors import ContextLengthExceededError, InvalidParameterError, PellucidError
from pellucid.outputs import Overflow, RemovedTokens, RequestOutput
from pellucid.sampling_params import SamplingParams

RESERVED_TOKENS = 256
"""What is left for an answer without max_tokens, at most a quarter of the context."""
MAX_COMPRESSED_CONTEXTS = 16
"""The longest prompt that `compress` reads, in contexts: every token of it is computed."""
SCORING = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)
"""How a window of tokens is scored: its prompt_logprobs are what counts."""
_TRIES = 8
_LEAST_TEXT = 4
"""Tokens that a text which is cut keeps at least."""

Windows = list[list[int]]
Scores = list[list[float]]
"""For each window the logprob of each token after the first, given those before it."""


@dataclass(frozen=True, slots=True)
class FittedPrompt:
    """A prompt that fits, and what was done to it."""

    token_ids: Sequence[int]
    text: str | None = None
    overflow: Overflow | None = None
    template: str | None = None
    """The chat template that rendered it, where one did and somebody asks."""


Fitting = Generator[Windows, Scores, FittedPrompt]


def given_logprobs(output: RequestOutput) -> list[float]:
    """The logprobs of a scored window's tokens after its first. Raises `PellucidError` where it failed."""
    for completion in output.outputs:
        if completion.error is not None:
            raise PellucidError(completion.error)
    rows = zip(output.prompt_token_ids[1:], (output.prompt_logprobs or [])[1:], strict=True)
    return [0.0 if row is None else row[token_id].logprob for token_id, row in rows]


def fits(num_tokens: int, params: SamplingParams, max_model_len: int) -> bool:
    """Whether a prompt leaves room for what was asked, or for one token where nothing was."""
    return num_tokens + (params.max_tokens or 1) <= max_model_len


def prompt_budget(params: SamplingParams, max_model_len: int) -> int:
    """Tokens that a prompt which has to be shortened may have: the rest is the answer's."""
    reserved = params.max_tokens or max(min(RESERVED_TOKENS, max_model_len // 4), params.min_tokens)
    return max_model_len - reserved


def fit_prompt(
    ids: Sequence[int], text: str | None, params: SamplingParams, tokenizer: Any, max_model_len: int
) -> Fitting:
    """Shorten a raw prompt; `text` is what was given, where it was text.

    Raises `ContextLengthExceededError` where nothing would be left of it.
    """
    if fits(len(ids), params, max_model_len):
        return FittedPrompt(ids, text)
    budget = prompt_budget(params, max_model_len)
    num_fixed = 1 if ids[0] == tokenizer.bos_id else 0
    if budget < num_fixed + _LEAST_TEXT:
        raise ContextLengthExceededError(len(ids), max_model_len, params.max_tokens)
    _check_length(len(ids), params, max_model_len)
    mark = _mark(params.overflow, tokenizer)
    spans = yield from _kept(ids[num_fixed:], budget - num_fixed, params.overflow, tokenizer, max_model_len, [])
    shifted = [(start + num_fixed, end + num_fixed) for start, end in spans]
    kept = [*ids[:num_fixed]]
    for number, (start, end) in enumerate(shifted):
        kept += [*(mark if number else []), *ids[start:end]]
    removed = _removed(shifted, num_fixed, len(ids), None)
    overflow = Overflow(params.overflow, len(ids), len(kept), removed)
    shown = None if text is None else tokenizer.decode(kept[num_fixed:], skip_special_tokens=False)
    return FittedPrompt(kept, shown, overflow)


def truncated_prompt(
    ids: Sequence[int], text: str | None, params: SamplingParams, tokenizer: Any, max_model_len: int
) -> FittedPrompt:
    """`fit_prompt` for who cannot score tokens: raises `InvalidParameterError` for what is to be compressed."""
    try:
        next(fit_prompt(ids, text, params, tokenizer, max_model_len))
    except StopIteration as done:
        fitted: FittedPrompt = done.value
        return fitted
    raise InvalidParameterError(
        "overflow", "overflow is 'compress', which takes steps of its own: LLM, AsyncLLM and the server make them"
    )


def fit_chat(
    render: Callable[[list[dict[str, Any]]], tuple[Sequence[int], str]],
    messages: Sequence[Mapping[str, Any]],
    params: SamplingParams,
    tokenizer: Any,
    max_model_len: int,
) -> Fitting:
    """Shorten a conversation; `render` gives the ids and the text of messages.

    Raises `ContextLengthExceededError` where the system message and what the template adds leave no room.
    """
    chat = _Chat(render, [dict(message) for message in messages], params, tokenizer, max_model_len)
    ids, text = render(chat.messages)
    if fits(len(ids), params, max_model_len):
        return FittedPrompt(ids, text)
    _check_length(len(ids), params, max_model_len)
    num_original = len(ids)
    if params.overflow != "compress":
        ids, text = chat.drop_turns(ids, text)
    ids, text = yield from chat.cut_texts(ids, text)
    removed = tuple(part for index in sorted(chat.removed) for part in chat.removed[index])
    return FittedPrompt(ids, text, Overflow(params.overflow, num_original, len(ids), removed))


class _Chat:
    """A conversation while it is being shortened."""

    def __init__(
        self,
        render: Callable[[list[dict[str, Any]]], tuple[Sequence[int], str]],
        messages: list[dict[str, Any]],
        params: SamplingParams,
        tokenizer: Any,
        max_model_len: int,
    ) -> None:
        self.messages = messages
        self.removed: dict[int, tuple[RemovedTokens, ...]] = {}
        self._render, self._params, self._tokenizer = render, params, tokenizer
        self._max_model_len = max_model_len
        self._budget = prompt_budget(params, max_model_len)
        self._ids = [self._encode(message.get("content")) for message in messages]
        self._surprisal: list[list[float]] = [[] for _ in messages]
        self._places = list(range(len(messages)))
        """Which of the original messages are left."""
        users = [index for index, message in enumerate(messages) if message.get("role") == "user"]
        self._last_user = users[-1] if users else len(messages) - 1
        self._users = users

    def drop_turns(self, ids: Sequence[int], text: str) -> tuple[Sequence[int], str]:
        """Leave out as few turns as need be, found by bisection, since more turns always take more tokens."""
        order = self._droppable()
        low, high = 0, len(order)
        rendered = ids, text
        while low < high:
            middle = (low + high) // 2
            candidate = self._without(order[:middle]) if middle else rendered
            if len(candidate[0]) <= self._budget:
                high = middle
            else:
                low = middle + 1
        if low == 0:
            return rendered
        dropped = {index for turn in order[:low] for index in turn}
        for index in dropped:
            self.removed[index] = (RemovedTokens(0, len(self._ids[index]), index),)
        self._places = [index for index in self._places if index not in dropped]
        return self._render([self.messages[index] for index in self._places])

    def cut_texts(self, ids: Sequence[int], text: str) -> Generator[Windows, Scores, tuple[Sequence[int], str]]:
        """Shorten texts until all fits: what was said before, then the last user message, then the system's."""
        kept = {index: len(self._ids[index]) for index in self._places}
        spans: dict[int, list[Span]] = {}
        for _ in range(_TRIES):
            excess = len(ids) - self._budget
            if excess <= 0:
                return ids, text
            for index in self._shares(excess, kept):
                policy, count = self._params.overflow, kept[index]
                spans[index] = yield from _kept(
                    self._ids[index], count, policy, self._tokenizer, self._max_model_len, self._surprisal[index]
                )
                self.messages[index] = {**self.messages[index], "content": self._joined(index, spans[index])}
                self.removed[index] = _removed(spans[index], 0, len(self._ids[index]), index)
            ids, text = self._render([self.messages[index] for index in self._places])
        if len(ids) > self._budget:
            raise ContextLengthExceededError(len(ids), self._max_model_len, self._params.max_tokens)
        return ids, text

    def _shares(self, excess: int, kept: dict[int, int]) -> list[int]:
        """Take `excess` tokens (and a few for marks) off `kept`, and give back the places that lost some.

        Earlier turns come down to a quarter first, in proportion; then the last user message, then everything else.
        """
        wanted, changed = excess + 4, []
        earlier = [i for i in self._places if i != self._last_user and self.messages[i].get("role") not in _SYSTEM]
        fixed = [i for i in self._places if self.messages[i].get("role") in _SYSTEM]
        groups = [(earlier, 4), ([self._last_user], 1), (earlier, 1), (fixed, 1)]
        if self._params.overflow != "compress":  # only what must stay is left: the longest text gives way
            groups = [([max(self._places, key=lambda i: kept[i])], 1), *groups[1:]]
        for group, part in groups:
            room = {i: kept[i] - max(_LEAST_TEXT, len(self._ids[i]) // part if part > 1 else 0) for i in group}
            total = sum(free for free in room.values() if free > 0)
            take = min(wanted, total)
            if take <= 0:
                continue
            for i, free in room.items():
                if free > 0:
                    kept[i] -= min(free, -(-take * free // total))
                    changed.append(i)
            wanted -= take
            if wanted <= 0:
                break
        if not changed:
            raise ContextLengthExceededError(self._budget + excess, self._max_model_len, self._params.max_tokens)
        return list(dict.fromkeys(changed))

    def _droppable(self) -> list[list[int]]:
        """Turns before the last user message, in the order in which they go."""
        starts = [index for index in self._users if index < self._last_user]
        ends = [*starts[1:], self._last_user] if starts else []
        turns = [
            [i for i in range(start, end) if self.messages[i].get("role") not in _SYSTEM]
            for start, end in zip(starts, ends, strict=True)
        ]
        if self._params.overflow == "truncate_right":
            return turns[::-1]
        if self._params.overflow == "truncate_middle":
            middle = (len(turns) - 1) / 2
            return [turn for _, turn in sorted(enumerate(turns), key=lambda entry: abs(entry[0] - middle))]
        return turns

    def _without(self, turns: list[list[int]]) -> tuple[Sequence[int], str]:
        dropped = {index for turn in turns for index in turn}
        return self._render([self.messages[index] for index in self._places if index not in dropped])

    def _encode(self, content: Any) -> list[int]:
        return list(self._tokenizer.encode(content, add_special_tokens=False)) if isinstance(content, str) else []

    def _joined(self, index: int, spans: list[Span]) -> str:
        ids = self._ids[index]
        pieces = [self._tokenizer.decode(ids[start:end], skip_special_tokens=False) for start, end in spans]
        return MARK.join(pieces) if self._params.overflow in _MARKED else "".join(pieces)


_SYSTEM = ("system", "developer")
_MARKED = ("truncate_middle", "compress")


def _kept(
    ids: Sequence[int], budget: int, policy: str, tokenizer: Any, max_model_len: int, surprisal: list[float]
) -> Generator[Windows, Scores, list[Span]]:
    """The spans of a text that stay; with the marks between them at most `budget` tokens."""
    mark = len(_mark(policy, tokenizer))
    if policy == "compress":
        return (yield from compressed(ids, budget, mark, tokenizer, max_model_len, surprisal))
    if policy == "truncate_left":
        return [(_next_character(ids, len(ids) - budget, tokenizer), len(ids))]
    if policy == "truncate_right":
        return [(0, _last_character(ids, budget, tokenizer))]
    room = max(2, budget - mark)
    front, back = _last_character(ids, room // 2, tokenizer), len(ids) - (room - room // 2)
    return [(0, front), (_next_character(ids, back, tokenizer), len(ids))]


def _mark(policy: str, tokenizer: Any) -> list[int]:
    return list(tokenizer.encode(MARK, add_special_tokens=False)) if policy in _MARKED else []


def _next_character(ids: Sequence[int], start: int, tokenizer: Any) -> int:
    """The first token from `start` on that does not continue a character."""
    while start < len(ids) and _continues(tokenizer.token_bytes(ids[start])):
        start += 1
    return start


def _last_character(ids: Sequence[int], end: int, tokenizer: Any) -> int:
    """The last cut up to `end` that is not inside a character."""
    while 0 < end < len(ids) and _continues(tokenizer.token_bytes(ids[end])):
        end -= 1
    return end


def _continues(token: bytes) -> bool:
    return len(token) > 0 and 0x80 <= token[0] < 0xC0


def _removed(spans: Sequence[Span], start: int, end: int, message: int | None) -> tuple[RemovedTokens, ...]:
    """What lies between the spans from `start` to `end`."""
    removed, at = [], start
    for first, last in [*spans, (end, end)]:
        if first > at:
            removed.append(RemovedTokens(at, first, message))
        at = last
    return tuple(removed)


def _check_length(num_tokens: int, params: SamplingParams, max_model_len: int) -> None:
    """`compress` computes every token of the prompt: there must be an end to that."""
    most = MAX_COMPRESSED_CONTEXTS * max_model_len
    if params.overflow == "compress" and num_tokens > most:
        raise InvalidParameterError(
            "overflow",
            f"overflow is 'compress', which reads at most {MAX_COMPRESSED_CONTEXTS} times max_model_len, {most} "
            f"tokens, but the prompt has {num_tokens}: shorten it or truncate",
        )
