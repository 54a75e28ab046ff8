"""A text shortened to a budget by leaving out what the model expected anyway. Ids in, spans out.

Self-information as the measure of what may go is Selective Context's (Li et al. 2023, section 3): −ln p of each token
given those before it. Here it is averaged over sentences and clauses, so that what stays can be read; the beginning and
the end of the text, where instructions stand, are kept.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

MARK = " [...] "
"""Stands where something was left out."""
WINDOW_TOKENS = 1024
"""A text is scored in windows of so many tokens, or of the context where that is shorter …"""
OVERLAP_TOKENS = 128
"""… of which the first ones are only read, so that the others have something before them."""
UNIT_TOKENS = 32
"""Longest piece that stays or goes as a whole."""
KEPT_ENDS = 64
"""Tokens kept at each end of a text, at most an eighth of the budget."""

Span = tuple[int, int]


def compressed(
    ids: Sequence[int], budget: int, mark_tokens: int, tokenizer: Any, max_model_len: int, surprisal: list[float]
) -> Generator[list[list[int]], list[list[float]], list[Span]]:
    """Spans of `ids` that stay; with a mark between any two they have at most `budget` tokens.

    Yields windows of ids and is sent the logprobs of each window's tokens after its first, unless the tokens' surprisal
    is given; an empty list is filled with it.
    """
    if not surprisal:
        surprisal += yield from _surprisal(ids, max_model_len)
    return choose(split_units(ids, tokenizer), surprisal, budget, mark_tokens)


def _surprisal(ids: Sequence[int], max_model_len: int) -> Generator[list[list[int]], list[list[float]], list[float]]:
    """−ln p of every token, in nats; the first one of all, of which nothing is known, has the mean."""
    size = min(WINDOW_TOKENS, max_model_len - 1)
    step = size - min(OVERLAP_TOKENS, size // 2)
    starts = range(0, max(1, len(ids) - (size - step)), step)
    scores = yield [list(ids[start : start + size]) for start in starts]
    surprisal = [0.0] * len(ids)
    for start, logprobs in zip(starts, scores, strict=True):
        first = 1 if start == 0 else size - step
        for place in range(first, len(logprobs) + 1):
            surprisal[start + place] = -logprobs[place - 1]
    if len(ids) > 1:
        surprisal[0] = sum(surprisal) / (len(ids) - 1)
    return surprisal


def split_units(ids: Sequence[int], tokenizer: Any) -> list[Span]:
    """Sentences and clauses: pieces that end with . ! ? ; : or a line, at most UNIT_TOKENS long, cut before words."""
    units: list[Span] = []
    start, word = 0, 0
    for place, token_id in enumerate(ids):
        token = tokenizer.token_bytes(token_id)
        if token[:1].isspace() and place > start:
            word = place
        if place - start >= UNIT_TOKENS:
            end = word if word > start else place
            units.append((start, end))
            start = end
        if token.endswith((b".", b"!", b"?", b";", b":", b"\n")) or b"\xe3\x80\x82" in token:
            units.append((start, place + 1))
            start = place + 1
    if start < len(ids):
        units.append((start, len(ids)))
    return units


def choose(units: Sequence[Span], surprisal: Sequence[float], budget: int, mark_tokens: int) -> list[Span]:
    """The ends, then the units with the highest mean surprisal, as long as they fit with the marks they need."""
    ends = min(KEPT_ENDS, budget // 8)
    total = units[-1][1]
    kept = [False] * len(units)
    used = 0

    def cost(number: int) -> int:
        """Tokens of a unit, and the marks that it brings or saves: one for each gap between kept units."""
        start, end = units[number]
        before = number == 0 or kept[number - 1]
        after = number == len(units) - 1 or kept[number + 1]
        return end - start + mark_tokens * (1 - before - after)

    def keep(number: int) -> None:
        nonlocal used
        if not kept[number] and used + max(cost(number), 0) + mark_tokens <= budget:
            used += cost(number)
            kept[number] = True

    order = sorted(range(len(units)), key=lambda number: -_mean(surprisal, units[number]))
    is_end = [start < ends or end > total - ends for start, end in units]
    for number in [n for n in range(len(units)) if is_end[n]] + [n for n in order if not is_end[n]]:
        keep(number)
    spans: list[Span] = []
    for (start, end), stays in zip(units, kept, strict=True):
        if stays and spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        elif stays:
            spans.append((start, end))
    return spans or [(0, max(1, budget))]


def _mean(surprisal: Sequence[float], unit: Span) -> float:
    start, end = unit
    return sum(surprisal[start:end]) / (end - start)
