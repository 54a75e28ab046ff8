"""Numbers of one text, over its token ids, so that they mean the same in every language."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence


def distinct_n(texts: Iterable[Sequence[Hashable]], n: int) -> float | None:
    """Distinct-n: different n-grams / all n-grams, over all texts together; None where there is no n-gram.

    Li, Galley, Brockett, Gao, Dolan 2016, "A Diversity-Promoting Objective Function for Neural Conversation Models",
    section 5.2. They divide by the number of words; by the number of n-grams, as most do, a text that repeats nothing
    has 1 whatever its length. It falls with length, so compare texts of about the same one.
    """
    seen: set[tuple[Hashable, ...]] = set()
    total = 0
    for text in texts:
        count = max(0, len(text) - n + 1)
        total += count
        seen.update(tuple(text[at : at + n]) for at in range(count))
    return len(seen) / total if total else None


def repetition(text: Sequence[Hashable], n: int = 4) -> float | None:
    """seq-rep-n: 1 − different n-grams / n-grams; 0 repeats nothing, near 1 goes in circles. None below n tokens.

    Welleck, Kulikov, Roller, Dinan, Cho, Weston 2020, "Neural Text Generation with Unlikelihood Training", section 6.
    """
    distinct = distinct_n([text], n)
    return None if distinct is None else 1.0 - distinct


def longest_repeat(text: Sequence[Hashable]) -> int:
    """Tokens of the longest run that stands at two places at least, which may overlap: a loop shows as a long one.

    A run of k + 1 tokens that repeats has one of k within, so the length is found by bisection.
    """
    low, high = 0, max(0, len(text) - 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _repeats(text, middle) else (low, middle - 1)
    return low


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _repeats(text: Sequence[Hashable], length: int) -> bool:
    seen: set[tuple[Hashable, ...]] = set()
    for at in range(len(text) - length + 1):
        run = tuple(text[at : at + length])
        if run in seen:
            return True
        seen.add(run)
    return False
