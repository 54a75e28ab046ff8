"""What a structure leaves no choice about: names of fields, punctuation, the rest of a choice that has begun.

Its text is certain, its tokens are not: `"name` may be drawn as `"name`, as `"` and `name`, or letter by letter. Where
few tokens are allowed the guess is, in this order: the only one; the one that this answer drew where it had the same
choice before; the first of the tokenizer's spelling of the text that must follow; the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from pellucid.engine.output_processor import TokenizerLike
from pellucid.engine.scheduler import ScheduledRequest
from pellucid.engine.speculation.acceptance import Acceptance
from pellucid.engine.speculation.drafts import Draft
from pellucid.errors import PellucidError
from pellucid.request import Request, TokenConstraint

IN_VAIN, THEN_EVERY = 64, 8
"""Having found nothing forced so many times in a row, a request is looked at in every eighth step until there is."""
MOST_SPELLED = 96
"""Bytes of text that are spelled at once: more than a draft has."""


class Kind(IntEnum):
    """Where a guess comes from. All allowed are beginnings of one token, unless said otherwise."""

    ONLY = 0
    AGAIN = 1
    """The token drawn when the same tokens were allowed after the same token."""
    AGAIN_ELSEWHERE = 2
    """The token drawn when the same tokens were allowed after another."""
    SPELLED = 3
    """The first token of a spelling."""
    SPELLED_ON = 4
    LONGEST = 5
    CHOSEN_AGAIN = 6
    """As AGAIN, among tokens that are not beginnings of one."""


PRIORS = (0.99, 0.95, 0.85, 0.55, 0.85, 0.4, 0.8)
"""Share of right guesses of each kind, measured on 24 answers of the default model (docs/speculation.md)."""

_Allowed = tuple[int, ...]


@dataclass(slots=True)
class _Place:
    """One of the next tokens."""

    allowed: _Allowed
    guess: int | None = None
    kind: Kind = Kind.ONLY


@dataclass(slots=True)
class _Answer:
    acceptance: Acceptance = field(default_factory=lambda: Acceptance(PRIORS))
    num_in_vain: int = 0
    """Looks since one last found something."""
    num_known: int = 0
    """Tokens that the answer had when it was last looked at."""
    places: list[_Place] = field(default_factory=list)
    """What was seen then, each behind right guesses at those before it."""
    drawn: dict[tuple[int | None, _Allowed], int] = field(default_factory=dict)
    """By the tokens that were allowed, after a token and after any: the one drawn."""

    def learn(self, token_ids: Sequence[int]) -> None:
        """How the guesses fared, whether they were verified or not."""
        for at, (place, token_id) in enumerate(zip(self.places, token_ids[self.num_known :], strict=False)):
            self.drawn[None, place.allowed] = token_id
            self.drawn[token_ids[self.num_known + at - 1], place.allowed] = token_id
            if place.guess is not None:
                self.acceptance.observe(place.kind, is_right=place.guess == token_id)
            if place.guess != token_id:
                break
        self.places = []
        self.num_known = len(token_ids)

    def guess_known(self, place: _Place, previous: int, *, is_forced: bool) -> None:
        """Guess the only token, or what was drawn before; `previous` is the token before the place."""
        if len(place.allowed) == 1:
            place.guess, place.kind = place.allowed[0], Kind.ONLY
            return
        place.guess = self.drawn.get((previous, place.allowed))
        place.kind = Kind.AGAIN if is_forced else Kind.CHOSEN_AGAIN
        if place.guess is None and is_forced:
            place.guess, place.kind = self.drawn.get((None, place.allowed)), Kind.AGAIN_ELSEWHERE


class ForcedProposer:
    """Guesses that need no model and no earlier text; nothing for a request without a structure."""

    name = "forced"

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self._tokenizer = tokenizer
        self._lead = "\n" if tokenizer.add_space_prefix else ""
        """Stands before what is spelled, so that the space put before a text is not before that."""
        self._answers: dict[int, _Answer] = {}

    def propose(self, wanted: Sequence[tuple[ScheduledRequest, int]]) -> list[Draft]:
        return [self._draft(entry.request, count) for entry, count in wanted]

    def learn(self, request: Request, draft: Draft, drawn: Sequence[int]) -> None:
        """The next look at the answer sees it."""

    def table_changed(self, key: int) -> None:
        """Nothing here lies in blocks."""

    def forget(self, key: int) -> None:
        self._answers.pop(key, None)

    def _draft(self, request: Request, count: int) -> Draft:
        constraint = request.constraint
        if constraint is None:
            return Draft()
        answer = self._answers.get(request.key)
        if answer is None:
            answer = self._answers[request.key] = _Answer()
        answer.learn(request.output_token_ids)
        answer.num_in_vain += 1
        if answer.num_in_vain > IN_VAIN and answer.num_in_vain % THEN_EVERY:
            return Draft()
        if constraint.few_allowed() is None:
            return Draft()
        answer.places = self._places(answer, constraint, request.output_token_ids[-1], count)
        token_ids: list[int] = []
        odds: list[float] = []
        for place in answer.places:
            if place.guess is not None:
                token_ids.append(place.guess)
                odds.append(answer.acceptance.probability(place.kind))
                if place.kind is not Kind.CHOSEN_AGAIN:
                    answer.num_in_vain = 0
        return Draft(token_ids, odds)

    def _places(self, answer: _Answer, constraint: TokenConstraint, previous: int, most: int) -> list[_Place]:
        """Up to `most`, the last one perhaps without a guess; a copy of the constraint reads the guesses.

        `previous` is the answer's last token.
        """
        ahead = constraint.look_ahead()
        spelled: list[int] = []
        """What is left of the spelling that the last guess is part of."""
        places: list[_Place] = []
        while len(places) < most and not ahead.is_complete:
            allowed = ahead.few_allowed()
            if allowed is None:
                break
            place = _Place(allowed)
            places.append(place)
            longest = self._longest(allowed)
            answer.guess_known(place, previous, is_forced=longest is not None)
            if place.guess is None:
                kind = Kind.SPELLED_ON if spelled else Kind.SPELLED
                spelled = spelled or self._spelling(ahead.forced_bytes())
                if self._is_within(spelled, allowed):
                    place.guess, place.kind = spelled[0], kind
                else:
                    place.guess, place.kind = longest, Kind.LONGEST
            if place.guess is None:
                break
            spelled = spelled[1:] if spelled[:1] == [place.guess] else []
            previous = place.guess
            ahead.advance(place.guess)
        return places

    def _longest(self, allowed: _Allowed) -> int | None:
        """The longest token allowed, if all others are beginnings of it."""
        spellings = [self._tokenizer.token_bytes(i) for i in allowed]
        longest = max(spellings, key=len)
        return allowed[spellings.index(longest)] if all(map(longest.startswith, spellings)) else None

    def _is_within(self, spelled: Sequence[int], allowed: _Allowed) -> bool:
        """Whether a spelling's first token is allowed, and none that goes on behind the spelling's end."""
        if not spelled or spelled[0] not in allowed:
            return False
        length = self._length(spelled)
        return all(len(self._tokenizer.token_bytes(i)) <= length for i in allowed)

    def _spelling(self, forced: bytes) -> list[int]:
        """The tokens of the text that is forced, of its beginning where it is long; none where it has no spelling.

        By itself: where a border between tokens lies here, the answer before it does not change what follows.
        """
        text = forced[:MOST_SPELLED].decode("utf-8", "ignore")
        if not text:
            return []
        try:
            before = self._tokenizer.encode(self._lead, add_special_tokens=False) if self._lead else []
            ids = self._tokenizer.encode(self._lead + text, add_special_tokens=False)
        except PellucidError:  # a character that the tokenizer has no token for
            return []
        return ids[len(before) :] if ids[: len(before)] == before else []

    def _length(self, token_ids: Sequence[int]) -> int:
        return sum(len(self._tokenizer.token_bytes(i)) for i in token_ids)
