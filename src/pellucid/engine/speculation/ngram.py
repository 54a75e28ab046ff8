"""Prompt lookup: what followed the last time these tokens stood together (Saxena, "Prompt lookup decoding", 2023).

Ints only. Every pair of neighbouring tokens is entered once, so a new token costs O(1); a proposal looks at a bounded
number of earlier places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pellucid.engine.scheduler import ScheduledRequest
from pellucid.engine.speculation.acceptance import MATCH_PRIORS, Acceptance, match_kind
from pellucid.engine.speculation.drafts import Draft
from pellucid.request import Request

MIN_MATCH = 2
"""Tokens that must agree before a place counts as a match: the index is over pairs."""
MAX_MATCH = 16
"""Agreement beyond this many tokens is not told apart."""
MAX_PLACES = 16
"""The latest places of the last pair that are compared; beside them only the one that was right the last time."""

RESUME_WITHIN, RESUME_REACH = 16, 32
"""So many tokens long a copy that was lost is looked for again, so many tokens from where it was lost: an edit has
replaced some words, a summary has left some out."""


class Match(NamedTuple):
    """An earlier place that agrees with the end of the text."""

    position: int
    """One past the earlier occurrence: where its continuation begins; 0 when there is none."""
    length: int
    """Tokens that agree, up to MAX_MATCH; 0 when there is none, 1 where a lost copy seems to go on."""


NO_MATCH = Match(0, 0)


class NgramIndex:
    """The tokens of one sequence and where each pair of them stood."""

    __slots__ = ("_followed", "_latest", "_lost", "_lost_at", "_previous", "token_ids")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._latest: dict[tuple[int, int], int] = {}
        """Pair -> one past its latest occurrence."""
        self._previous: list[int] = [0]
        """[len + 1] for every prefix length: the same for the pair that ends there, without itself; 0 when new."""
        self._followed = 0
        """The place whose continuation came true last, moved along with the text; 0 for none."""
        self._lost = 0
        """Where in the text the last such place was when another token came; 0 for none."""
        self._lost_at = 0
        """How long the text was then."""

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take in the next tokens."""
        known, latest, previous = self.token_ids, self._latest, self._previous
        for token_id in token_ids:
            followed = self._followed
            if followed and known[followed] != token_id:
                self._followed, self._lost, self._lost_at = 0, followed, len(known)
            elif followed:
                self._followed = followed + 1
            known.append(token_id)
            end = len(known)
            if end < MIN_MATCH:
                previous.append(0)
                continue
            pair = (known[-2], token_id)
            previous.append(latest.get(pair, 0))
            latest[pair] = end

    def match(self) -> Match:
        """The longest agreement among the latest places of the last pair, the latest of equally long ones.

        The place that is being copied from is compared as well, however old it is. Where the last pair is new, a copy
        that was lost a moment ago may go on at the last token alone.
        """
        position = self._previous[-1]
        if not position:
            return self._resumed()
        best = Match(self._followed, self._agreement(self._followed)) if self._followed else NO_MATCH
        for _ in range(MAX_PLACES):
            if best.length == MAX_MATCH:
                break
            length = self._agreement(position)
            if length > best.length or (length == best.length and position > best.position):
                best = Match(position, length)
            position = self._previous[position]
            if not position:
                break
        self._followed = best.position
        return best

    def continuation(self, match: Match, count: int) -> list[int]:
        """The `count` tokens after the match; beyond the end of the text its last stretch goes round."""
        end, distance = len(self.token_ids), len(self.token_ids) - match.position
        found = self.token_ids[match.position : min(match.position + count, end)]
        while len(found) < count:
            found.append(found[len(found) - distance])
        return found

    def _resumed(self) -> Match:
        """The next place with the last token behind the one where a copy was lost."""
        end = len(self.token_ids)
        if not self._lost or end - self._lost_at > RESUME_WITHIN:
            return NO_MATCH
        try:
            place = self.token_ids.index(self.token_ids[-1], self._lost, min(self._lost + RESUME_REACH, end - 1))
        except ValueError:
            return NO_MATCH
        return Match(place + 1, 1)

    def _agreement(self, position: int) -> int:
        """How many tokens before `position` are those at the end of the text, up to MAX_MATCH."""
        known, end = self.token_ids, len(self.token_ids)
        length, most = 0, min(MAX_MATCH, position)
        while length < most and known[position - 1 - length] == known[end - 1 - length]:
            length += 1
        return length


class NgramProposer:
    """Prompt lookup in each request's own prompt and output. Guesses cost nothing, so it learns from all of them,
    those that were not verified too: a request whose text begins to repeat is noticed at once."""

    name = "ngram"

    def __init__(self) -> None:
        self._texts: dict[int, tuple[NgramIndex, Acceptance]] = {}

    def propose(self, wanted: Sequence[tuple[ScheduledRequest, int]]) -> list[Draft]:
        return [self._draft(entry.request, count) for entry, count in wanted]

    def learn(self, request: Request, draft: Draft, drawn: Sequence[int]) -> None:
        """Every guess up to the first wrong one was right or wrong for a match as long as it had become by then."""
        text = self._texts.get(request.key)
        if text is not None:
            text[1].observe_draft(draft.token_ids, drawn, lambda place: match_kind(draft.kind + place))

    def table_changed(self, key: int) -> None:
        """Nothing here lies in blocks."""

    def forget(self, key: int) -> None:
        self._texts.pop(key, None)

    def _draft(self, request: Request, count: int) -> Draft:
        text = self._texts.get(request.key)
        if text is None:
            text = self._texts[request.key] = (NgramIndex(), Acceptance(MATCH_PRIORS))
        index, acceptance = text
        index.extend(request.tokens_between(len(index.token_ids), request.num_tokens))
        match = index.match()
        if not match.length:
            return Draft()
        odds = [acceptance.probability(match_kind(match.length + place)) for place in range(count)]
        return Draft(index.continuation(match, count), odds, match.length)
