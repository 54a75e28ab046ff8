"""How often the guesses of one request come true: estimates that follow what is observed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from pellucid.engine.speculation.drafts import num_right

MATCH_LENGTHS = (1, 2, 3, 4, 6, 9, 16)
"""Matches are told apart by their length: 1, 2, 3, 4–5, 6–8, 9–15, 16 and more."""
MATCH_PRIORS = (0.40, 0.40, 0.55, 0.60, 0.75, 0.85, 0.97)
"""Share of right guesses at each of them, measured on chats of the default model (docs/speculation.md)."""
PRIOR_WEIGHT = 4.0
"""Observations that a prior counts as; it fades as they do."""
MEMORY = 0.94
"""What an observation's weight is multiplied by with each later one: some 16 of them count."""


class Acceptance:
    """Probabilities in classes, each a mean of observations that fade, beginning with a prior."""

    __slots__ = ("_right", "_total")

    def __init__(self, priors: Sequence[float]) -> None:
        self._right = [PRIOR_WEIGHT * prior for prior in priors]
        self._total = [PRIOR_WEIGHT] * len(priors)

    def probability(self, kind: int) -> float:
        """The estimate for a class, from 0 to 1."""
        return self._right[kind] / self._total[kind]

    def observe(self, kind: int, *, is_right: bool) -> None:
        """A guess of this class was right, or not."""
        self._right[kind] = self._right[kind] * MEMORY + is_right
        self._total[kind] = self._total[kind] * MEMORY + 1.0

    def observe_draft(
        self, draft: Sequence[int], drawn: Sequence[int], kind_of: Callable[[int], int] = lambda place: 0
    ) -> int:
        """What was drawn in place of a draft: its guesses up to the first wrong one; gives back how many were right.

        kind_of: the class of the guess at a place.
        """
        right = num_right(draft, drawn)
        for place in range(min(right + 1, len(draft), len(drawn))):
            self.observe(kind_of(place), is_right=place < right)
        return right


def match_kind(length: int) -> int:
    """The class of a match of so many tokens, 1 or more."""
    return bisect_right(MATCH_LENGTHS, length) - 1
