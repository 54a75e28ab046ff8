"""What a structure leaves no choice about: names of fields, punctuation, the rest of a choice that has begun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pellucid.engine.scheduler import ScheduledRequest
from pellucid.engine.speculation.acceptance import Acceptance
from pellucid.engine.speculation.drafts import Draft
from pellucid.request import Request

PRIOR = 0.9
"""Share of right guesses expected before any were seen: the model may spell the text in other tokens."""
IN_VAIN, THEN_EVERY = 64, 8
"""Having found nothing forced so many times in a row, a request is looked at in every eighth step until there is."""


@dataclass(slots=True)
class _Answer:
    acceptance: Acceptance = field(default_factory=lambda: Acceptance((PRIOR,)))
    num_in_vain: int = 0
    """Looks since one last found something."""


class ForcedProposer:
    """Guesses that need no model and no earlier text; nothing for a request without a structure."""

    name = "forced"

    def __init__(self) -> None:
        self._answers: dict[int, _Answer] = {}

    def propose(self, wanted: Sequence[tuple[ScheduledRequest, int]]) -> list[Draft]:
        return [self._draft(entry.request, count) for entry, count in wanted]

    def learn(self, request: Request, draft: Draft, drawn: Sequence[int]) -> None:
        answer = self._answers.get(request.key)
        if answer is not None:
            answer.acceptance.observe_draft(draft.token_ids, drawn)

    def table_changed(self, key: int) -> None:
        """Nothing here lies in blocks."""

    def forget(self, key: int) -> None:
        self._answers.pop(key, None)

    def _draft(self, request: Request, count: int) -> Draft:
        if request.constraint is None:
            return Draft()
        answer = self._answers.get(request.key)
        if answer is None:
            answer = self._answers[request.key] = _Answer()
        answer.num_in_vain += 1
        if answer.num_in_vain > IN_VAIN and answer.num_in_vain % THEN_EVERY:
            return Draft()
        token_ids = request.constraint.forced_tokens(count)
        if not token_ids:
            return Draft()
        answer.num_in_vain = 0
        return Draft(token_ids, [answer.acceptance.probability(0)] * len(token_ids))
