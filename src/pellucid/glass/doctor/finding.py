"""What a rule says: a finding, in the trace's own form, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pellucid.trace.events import Event

Severity = Literal["info", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")
"""The least first. info: nothing is wrong, but it is worth knowing."""
Status = Literal["ok", "not_applicable", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    severity: Severity
    explain: str
    """What it is and what follows from it, with its numbers."""
    fix: str
    """What to do."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """The numbers; JSON data."""
    request: str | None = None
    """Whom it concerns; None: the model, or everybody."""

    def event(self, rule: str) -> Event:
        """The `finding` event of a trace."""
        return {
            "type": "finding",
            "rule": rule,
            "severity": self.severity,
            "req": self.request,
            "evidence": self.evidence,
            "explain": self.explain,
            "fix": self.fix,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one rule."""

    why: str
    """What was looked at and what it showed, or why the rule could not look."""
    findings: tuple[Finding, ...] = ()
    is_applicable: bool = True

    @property
    def status(self) -> Status:
        """The worst of its findings; ok or not_applicable without any."""
        if not self.is_applicable:
            return "not_applicable"
        return max((one.severity for one in self.findings), key=SEVERITIES.index, default="ok")


class NotApplicableError(Exception):
    """A rule cannot look; the message says why. Never leaves the doctor."""


def verdict(why: str, findings: Sequence[Finding] = ()) -> Verdict:
    """A rule has looked."""
    return Verdict(why, tuple(findings))
