"""Findings at the top of a report: what the trace says, in both languages, and a way to the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sample_trace import sample_trace, token_bytes
from watched import Watched

from pellucid.glass.doctor.rules import RULES
from pellucid.glass.report import write_report


def _finding(rule: str, severity: str, req: str | None, evidence: Any) -> dict[str, Any]:
    said = "<img src=x onerror=alert(1)> is only text."
    return {"type": "finding", "rule": rule, "severity": severity, "req": req, "evidence": evidence, "explain": said, "fix": "Nothing."}  # fmt: skip  # noqa: E501


def test_findings_of_every_rule(browser: Any, tmp_path: Path) -> None:
    events = [event for event in sample_trace() if event["type"] != "finding"]
    found = [_finding(rule.name, "warning", None, {"n": 3, "parts": {"a": [1, 2]}}) for rule in RULES]
    found += [
        _finding("overflow", "error", "second", {"layer": 2, "position": 5}),
        _finding("</b>of-tomorrow", "info", None, None),
    ]
    write_report([*events[:-1], *found, events[-1]], tmp_path / "r.html", token_bytes=token_bytes)
    watched = Watched(browser, color_scheme="light")
    watched.open((tmp_path / "r.html").as_uri())
    page = watched.page
    shown = page.locator(".finding")
    assert shown.count() == len(found)
    titles = page.locator(".finding p:first-child b:nth-of-type(2)").all_inner_texts()
    assert titles == [*(rule.title for rule in RULES), "Numbers that overflow", "</b>of-tomorrow"]
    severities = [text.lower() for text in page.locator(".finding .severity").all_inner_texts()]
    assert severities == ["warning"] * len(RULES) + ["error", "note"]
    assert page.locator("img").count() == 0
    assert shown.first.locator("dl.facts dt").all_text_contents() == ["n", "parts.a"]
    assert shown.first.locator("dl.facts dd").all_text_contents() == ["3", "1, 2"]
    page.get_by_role("button", name="Show the place").click()
    cursor = page.evaluate("() => document.querySelector('pl-page').cursor")
    assert (cursor["request"], cursor["token"], cursor["layer"]) == ("second", 5, 2)
    assert watched.violations() == []
    page.locator("#language").click()
    chinese = page.locator(".finding p:first-child b:nth-of-type(2)").all_inner_texts()
    assert len({*chinese} & {*titles}) == 1, "only the unknown rule keeps its name"
    assert page.locator("#h-findings").inner_text() == "诊断结果"
    assert watched.complaints == []
    watched.context.close()


def test_no_findings_no_heading(browser: Any, tmp_path: Path) -> None:
    events = [event for event in sample_trace() if event["type"] != "finding"]
    write_report(events, tmp_path / "r.html", token_bytes=token_bytes)
    watched = Watched(browser, color_scheme="dark")
    watched.open((tmp_path / "r.html").as_uri())
    assert watched.page.locator("#h-findings").count() == 0
    assert watched.complaints == []
    watched.context.close()
