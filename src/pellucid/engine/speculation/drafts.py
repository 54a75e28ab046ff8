"""What passes between proposers and the speculator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pellucid.engine.scheduler import ScheduledRequest
from pellucid.request import Request


@dataclass(slots=True)
class Draft:
    """Guesses at the next tokens of one request."""

    token_ids: list[int] = field(default_factory=list)
    odds: list[float] = field(default_factory=list)
    """For each, the estimated probability that it is right once those before it are."""
    kind: int = 0
    """What the proposer wants to know again when it learns how the draft fared."""


class Proposer(Protocol):
    """Guesses; remembers what it needs by request key until `forget`."""

    name: str

    def propose(self, wanted: Sequence[tuple[ScheduledRequest, int]]) -> list[Draft]:
        """A draft of at most so many tokens for each entry, to follow all its known tokens. May be empty."""
        ...

    def learn(self, request: Request, draft: Draft, drawn: Sequence[int]) -> None:
        """What the target drew in place of the draft, after it was appended to the request."""
        ...

    def table_changed(self, key: int) -> None:
        """The request's block table was taken or changed other than at its end."""
        ...

    def forget(self, key: int) -> None:
        """The request is over."""
        ...


def num_right(draft: Sequence[int], drawn: Sequence[int]) -> int:
    """How many drafts came true before the first that did not."""
    count = 0
    for guess, token_id in zip(draft, drawn, strict=False):
        if guess != token_id:
            break
        count += 1
    return count
