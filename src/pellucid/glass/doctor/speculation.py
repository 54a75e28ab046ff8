"""Guesses that never or always come true."""

from __future__ import annotations

from collections.abc import Iterator

from pellucid.glass.doctor.finding import Finding, NotApplicableError, Verdict
from pellucid.glass.doctor.trace_exam import TraceExam, count, over
from pellucid.glass.view import TraceView
from pellucid.trace.events import Event

FEW_DRAFTS = 24
"""Tokens guessed below which nothing can be said."""
NEVER_SHARE = 0.05


def in_trace(exam: TraceExam) -> Verdict:
    """Drafts and how many of them were accepted, by answer and proposer."""
    specs = [one for view in exam.views for one in view.specs]
    drafted = sum(len(one["draft"]) for one in specs)
    accepted = sum(one["accepted"] for one in specs)
    return over(
        exam.views,
        _speculation,
        lambda n: f"{count(drafted, 'token')} guessed in {count(n, 'answer')}, {accepted:,} accepted",
    )


def _speculation(view: TraceView) -> Iterator[Finding]:
    if not view.specs:
        raise NotApplicableError("nothing was guessed")
    for proposer in dict.fromkeys(one["proposer"] for one in view.specs):
        yield from _of_proposer(view, str(proposer), [one for one in view.specs if one["proposer"] == proposer])


def _of_proposer(view: TraceView, proposer: str, specs: list[Event]) -> Iterator[Finding]:
    drafted, accepted = sum(len(one["draft"]) for one in specs), sum(one["accepted"] for one in specs)
    # what follows the end of an answer was not refused: nobody looked at it
    unseen = sum(len(one["draft"]) - one["accepted"] for one in specs if one["bonus_id"] < 0)
    judged = drafted - unseen
    if judged < FEW_DRAFTS:
        return
    evidence = {"proposer": proposer, "drafted": drafted, "accepted": accepted, "verifications": len(specs)}
    if accepted < NEVER_SHARE * judged:
        yield Finding(
            "warning",
            f"{accepted} of {judged} guesses of {proposer} came true: each verification computes rows that are thrown "
            "away.",
            "Set --speculative-method to auto, which guesses as far as it pays, or off; a draft model must be of the "
            "same family and kind (chat or base) as the model.",
            evidence,
            view.name,
        )
    elif accepted == judged:
        yield Finding(
            "info",
            f"All {judged} guesses of {proposer} came true: the answer repeats what is known, or the draft model is "
            "as good as the model.",
            "Raise --num-speculative-tokens; see whether the answer is a loop, or the draft model is the model itself.",
            evidence,
            view.name,
        )
