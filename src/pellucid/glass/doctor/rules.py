"""The table of rules, and the examination that runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.errors import PellucidError
from pellucid.glass.doctor import (
    bos,
    memory,
    never_stops,
    overflow,
    positions,
    sampling,
    speculation,
    timing,
    wrong_tokenizer,
)
from pellucid.glass.doctor.finding import SEVERITIES, Finding, NotApplicableError, Severity, Verdict
from pellucid.glass.doctor.model_exam import ModelExam
from pellucid.glass.doctor.trace_exam import TraceExam
from pellucid.trace.events import Event


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: the fault it looks for, and how in a trace and in a model."""

    name: str
    """As `finding` events have it."""
    title: str
    """The fault, for people; `web/findings.js` has it in Chinese too."""
    trace: Callable[[TraceExam], Verdict] | None
    """None: a trace cannot show it."""
    model: Callable[[ModelExam], Verdict] | None
    """None: only a request can show it."""


RULES: tuple[Rule, ...] = (
    Rule("double-bos", "Double BOS", bos.double_in_trace, bos.double_in_model),
    Rule("missing-bos", "Missing BOS", bos.missing_in_trace, bos.missing_in_model),
    Rule("wrong-tokenizer", "Tokenizer of another model", wrong_tokenizer.in_trace, wrong_tokenizer.in_model),
    Rule("never-stops", "Answers that never stop", never_stops.in_trace, never_stops.in_model),
    Rule("positions", "Positions and scaling", positions.in_trace, positions.in_model),
    Rule("overflow", "Numbers that overflow", overflow.in_trace, overflow.in_model),
    Rule("sampling", "Sampling too narrow or wide", sampling.variation, None),
    Rule("strict-penalty", "Penalty or mask too strict", sampling.strictness, None),
    Rule("slow-ttft", "Slow first token", timing.slow_ttft, None),
    Rule("kv-budget", "KV cache too small", memory.in_trace, memory.in_model),
    Rule("near-tie", "Near ties", sampling.near_ties, None),
    Rule("speculation", "Speculation out of balance", speculation.in_trace, None),
)
"""In the order of the journey."""


@dataclass(frozen=True, slots=True)
class Examination:
    """What came of all rules."""

    kind: str
    """model or trace."""
    name: str
    notes: tuple[str, ...]
    verdicts: tuple[tuple[Rule, Verdict], ...]

    @property
    def findings(self) -> list[tuple[Rule, Finding]]:
        """The worst first; else in the order of the rules."""
        found = [(rule, one) for rule, verdict in self.verdicts for one in verdict.findings]
        return sorted(found, key=lambda pair: -SEVERITIES.index(pair[1].severity))

    @property
    def events(self) -> list[Event]:
        """The findings as a trace has them."""
        return [finding.event(rule.name) for rule, finding in self.findings]

    @property
    def worst(self) -> Severity | None:
        """None where nothing was found."""
        found = self.findings
        return found[0][1].severity if found else None

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong; what is only worth knowing does not count."""
        return self.worst in (None, "info")

    def document(self) -> dict[str, Any]:
        """Everything as JSON data."""
        return {
            "kind": self.kind,
            "name": self.name,
            "healthy": self.is_healthy,
            "notes": list(self.notes),
            "rules": [
                {"rule": rule.name, "title": rule.title, "status": verdict.status, "why": verdict.why}
                for rule, verdict in self.verdicts
            ],
            "findings": self.events,
        }


def examine(exam: TraceExam | ModelExam, rules: Sequence[Rule] = RULES) -> Examination:
    """Run the rules. A rule that cannot look says why; none stops the others."""
    is_trace = isinstance(exam, TraceExam)
    notes = tuple(exam.notes) if isinstance(exam, TraceExam) else ()
    return Examination("trace" if is_trace else "model", exam.name, notes, tuple(_verdicts(exam, rules)))


def _verdicts(exam: TraceExam | ModelExam, rules: Sequence[Rule]) -> Iterator[tuple[Rule, Verdict]]:
    for rule in rules:
        try:
            if isinstance(exam, TraceExam):
                found = None if rule.trace is None else rule.trace(exam)
                instead = "a trace does not show it: give the model"
            else:
                found = None if rule.model is None else rule.model(exam)
                instead = "needs a trace: pellucid explain … --json FILE"
            yield rule, found or Verdict(instead, is_applicable=False)
        except (NotApplicableError, PellucidError) as error:
            yield rule, Verdict(str(error), is_applicable=False)
