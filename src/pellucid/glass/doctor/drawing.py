"""The doctor in a terminal: every rule in a line, and beneath it what it found, with numbers and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pellucid.glass.doctor.finding import Finding, Status, Verdict
from pellucid.glass.doctor.rules import RULES, Examination
from pellucid.glass.explain.drawing import ACCENT, SOFT, heading, plural
from pellucid.glass.pieces import plain_text
from pellucid.trace.events import Event

LABELS = {
    "ok": ("ok", "bold green"),
    "info": ("note", "bold cyan"),
    "warning": ("warning", "bold yellow"),
    "error": ("error", "bold red"),
    "not_applicable": ("–", SOFT),
}
"""A word for each status: colour alone says nothing."""
SHOWN_FINDINGS = 4
"""Findings of one rule that are told at length: those of many requests are much alike."""
SHOWN_ITEMS = 6
_LABEL_WIDTH = 9
_NARROW = 72


def drawn(examination: Examination, width: int) -> Iterator[RenderableType]:
    """All of it, for lines of `width` cells."""
    yield Text.assemble(
        ("Doctor  ", SOFT), (plain_text(examination.name), ACCENT), (f"  {examination.kind}", SOFT), overflow="fold"
    )
    for note in examination.notes:
        yield Text(plain_text(note), "yellow")
    yield Text()
    title_width = max(len(rule.title) for rule, _ in examination.verdicts)
    reasons = Counter(verdict.why for _, verdict in examination.verdicts if not verdict.is_applicable)
    for rule, verdict in examination.verdicts:
        if reasons[verdict.why] > 1:
            continue
        yield _line(rule.title, verdict, title_width, width)
        yield from _told(verdict.findings)
    for reason in (reason for reason, times in reasons.items() if times > 1):
        titles = [rule.title for rule, verdict in examination.verdicts if verdict.why == reason]
        yield _line(
            f"{len(titles)} more rules", Verdict(f"{reason}. {', '.join(titles)}.", (), False), title_width, width
        )
    yield Text()
    yield _summary(examination)


def _line(name: str, verdict: Verdict, title_width: int, width: int) -> RenderableType:
    label, style = LABELS[verdict.status]
    is_soft = not verdict.is_applicable
    title, why = Text(name, SOFT if is_soft else "bold"), Text(plain_text(verdict.why), SOFT, overflow="fold")
    table = _grid()
    if width < _NARROW:  # the reason goes beneath
        table.add_column(overflow="fold")
        table.add_row(Text(label, style), Text.assemble(title, "\n", why))
        return table
    table.add_column(width=title_width)
    table.add_column(overflow="fold")
    table.add_row(Text(label, style), title, why)
    return table


def _grid() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), expand=False)
    table.add_column(width=_LABEL_WIDTH - 2, no_wrap=True)
    return table


def _told(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    for finding in findings[:SHOWN_FINDINGS]:
        yield Padding(_block(finding.event("")), (0, 0, 0, _LABEL_WIDTH))
    if len(findings) > SHOWN_FINDINGS:
        more = f"… and {len(findings) - SHOWN_FINDINGS} more like these (--json has all)"
        yield Padding(Text(more, SOFT), (0, 0, 0, _LABEL_WIDTH))


def _block(event: Event) -> Table:
    """What it is, its numbers, what to do."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style=SOFT, no_wrap=True, width=8)
    table.add_column(overflow="fold")
    if event["req"] is not None:
        table.add_row("request", Text(plain_text(str(event["req"])), overflow="fold"))
    table.add_row("what", Text(plain_text(str(event["explain"])), overflow="fold"))
    numbers = evidence_text(event["evidence"])
    if numbers:
        table.add_row("numbers", Text(numbers, SOFT, overflow="fold"))
    table.add_row("do", Text(plain_text(str(event["fix"])), overflow="fold"))
    return table


def evidence_text(evidence: Any) -> str:
    """`nats_with 2.27 · nats_without 4.48`; any JSON data."""
    return " · ".join(plain_text(f"{name} {value}".strip()) for name, value in _flat("", evidence))


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), item)
    elif isinstance(value, list):
        shown = ", ".join(_short(one) for one in value[:SHOWN_ITEMS])
        yield name, shown + (f", … ({len(value)})" if len(value) > SHOWN_ITEMS else "") if value else "none"
    elif value is not None:
        yield name, _short(value)


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:200]


def _summary(examination: Examination) -> Text:
    counts = Counter(verdict.status for _, verdict in examination.verdicts)
    parts = [plural(len(examination.verdicts), "rule") + ": "]
    words: dict[Status, str] = {
        "error": "with an error",
        "warning": "with a warning",
        "info": "with a note",
        "ok": "ok",
    }
    said = [f"{counts[status]} {word}" for status, word in words.items() if counts[status]]
    said += [f"{counts['not_applicable']} not applicable"] if counts["not_applicable"] else []
    healthy = examination.is_healthy
    verdict = ("Healthy", LABELS["ok"][1]) if healthy else ("Not healthy", LABELS[examination.worst or "error"][1])
    return Text.assemble(verdict, ("   " + parts[0] + ", ".join(said), SOFT))


def findings_section(events: Sequence[Event]) -> Iterator[RenderableType]:
    """The findings that a trace carries, for the view of that trace; nothing where it has none."""
    found = [event for event in events if event["type"] == "finding"]
    if not found:
        return
    titles = {rule.name: rule.title for rule in RULES}
    yield heading("✚", "Doctor", plural(len(found), "finding"))
    for event in found:
        label, style = LABELS.get(event["severity"], LABELS["warning"])
        name = str(event["rule"])
        yield Text.assemble((f"{label:<{_LABEL_WIDTH}}", style), (plain_text(titles.get(name, name)), "bold"))
        yield Padding(_block(event), (0, 0, 0, _LABEL_WIDTH))
