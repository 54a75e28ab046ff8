"""What a structure leaves no choice about: names of fields, punctuation, the rest of a choice that has begun.

Its text is certain, its tokens are not: `"name` may be drawn as `"name`, as `"` and `name`, or letter by letter. Where
few tokens are allowed the guess is, in this order: the only one; the one that this answer drew where it had the same
choice before; the spelling of the tokenizer for the answer and the text that must follow; the longest.
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
NUM_SPELLED_AGAIN = 8
"""Tokens of the answer that are spelled together with the text to follow: a word goes on as it began."""


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

    def known(self, place: _Place, previous: int, *, is_forced: bool) -> None:
        """Guess the only token, or what was drawn before."""
        if len(place.allowed) == 1:
            place.guess, place.kind = place.allowed[0], Kind.ONLY
            return
        place.guess, place.kind = (
            self.drawn.get((previous, place.allowed)),
            Kind.AGAIN if is_forced else Kind.CHOSEN_AGAIN,
        )
        if place.guess is None and is_forced:
            place.guess, place.kind = self.drawn.get((None, place.allowed)), Kind.AGAIN_ELSEWHERE


class ForcedProposer:
    """Guesses that need no model and no earlier text; nothing for a request without a structure."""

    name = "forced"

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self._tokenizer = tokenizer
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
        answer.places = self._places(answer, constraint, request.output_token_ids, count)
        token_ids: list[int] = []
        odds: list[float] = []
        for place in answer.places:
            if place.guess is not None:
                token_ids.append(place.guess)
                odds.append(answer.acceptance.probability(place.kind))
                if place.kind is not Kind.CHOSEN_AGAIN:
                    answer.num_in_vain = 0
        return Draft(token_ids, odds)

    def _places(
        self, answer: _Answer, constraint: TokenConstraint, token_ids: Sequence[int], most: int
    ) -> list[_Place]:
        """Up to `most`, the last one perhaps without a guess; a copy of the constraint reads the guesses."""
        ahead = constraint.look_ahead()
        tail = list(token_ids[-NUM_SPELLED_AGAIN:])
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
            answer.known(place, tail[-1], is_forced=longest is not None)
            if place.guess is None:
                kind = Kind.SPELLED_ON if spelled else Kind.SPELLED
                spelled = spelled or self._spelling(tail, ahead.forced_bytes())
                if self._is_within(spelled, allowed):
                    place.guess, place.kind = spelled[0], kind
                else:
                    place.guess, place.kind = longest, Kind.LONGEST
            if place.guess is None:
                break
            tail.append(place.guess)
            spelled = spelled[1:] if spelled[:1] == [place.guess] else []
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

    def _spelling(self, tail: Sequence[int], forced: bytes) -> list[int]:
        """The tokens of the text that is forced, as it is spelled behind the tail, or by itself.

        Of its beginning, where it is long.
        """
        text = forced[:MOST_SPELLED].decode("utf-8", "ignore")
        return (self._behind(tail, text) or self._behind((), text)) if text else []

    def _behind(self, tail: Sequence[int], text: str) -> list[int]:
        """The tokens of `text` in the spelling of both together; none where a token has parts of both."""
        try:
            whole = b"".join(map(self._tokenizer.token_bytes, tail)).decode() + text
            ids = self._tokenizer.encode(whole, add_special_tokens=False)
        except (UnicodeDecodeError, PellucidError):  # half a character, or one that the tokenizer has no token for
            return []
        before = self._length(ids) - len(text.encode())  # the tail, and a space where the tokenizer puts one first
        for at, token_id in enumerate(ids):
            if before <= 0:
                return ids[at:] if before == 0 else []
            before -= len(self._tokenizer.token_bytes(token_id))
        return []

    def _length(self, token_ids: Sequence[int]) -> int:
        return sum(len(self._tokenizer.token_bytes(i)) for i in token_ids)
