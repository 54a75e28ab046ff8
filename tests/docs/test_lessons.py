"""The lessons are what their sources make, their traces are traces, and a fresh run does what they say."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT, tool

from pellucid.trace.jsonl import line_of, parse_lines

make_lessons = tool("make_lessons")
LESSONS = tuple(make_lessons.RECORDERS)
TOLERANCE = 0.02
"""Of a probability: the last digits depend on the instruction set."""


def recorded(name: str) -> list[dict[str, Any]]:
    lines = gzip.decompress((ROOT / "docs" / "lessons" / "traces" / f"{name}.jsonl.gz").read_bytes()).splitlines()
    return [json.loads(line) for line in lines]


def test_pages_are_up_to_date() -> None:
    """After a change to the pages' scripts or styles: python tools/make_lessons.py."""
    assert make_lessons.stale() == []


def test_a_changed_source_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(make_lessons, "read", lambda name: f"/* another {name} */")
    assert make_lessons.main(["--check"]) == 1
    assert "docs/lessons/tokens.html is out of date" in capsys.readouterr().out


@pytest.mark.parametrize("name", LESSONS)
def test_what_is_recorded_is_a_trace(name: str) -> None:
    """All but the lesson's own line, which counts draws that were not traced."""
    events = [event for event in recorded(name) if event["type"] != "lesson"]
    assert list(parse_lines(line_of(event).encode() for event in events)) == events


def test_every_lesson_is_in_the_list() -> None:
    text = (ROOT / "docs" / "lessons" / "README.md").read_text(encoding="utf-8")
    pages = sorted(path.stem for path in (ROOT / "docs" / "lessons").glob("*.html"))
    assert pages == sorted(LESSONS)
    for name in pages:
        assert f"({name}.html)" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", LESSONS)
def test_a_fresh_run_says_the_same(name: str, smollm2_path: Path) -> None:
    """Tokens and reasons exactly, probabilities closely; times are another machine's."""
    assert told(make_lessons.RECORDERS[name]()) == told(recorded(name))


def told(events: list[dict[str, Any]]) -> list[Any]:
    """What does not depend on the clock."""
    found: list[Any] = []
    for event in events:
        req = event.get("req")
        if event["type"] == "request":
            found.append((req, [(t["id"], t["kind"], t["cached"]) for t in event["tokens"]], event["rendered"]))
        elif event["type"] == "sample":
            stages = [(s["name"], s["alive"], pytest.approx(s["chosen"]["p"], abs=TOLERANCE)) for s in event["stages"]]
            found.append((req, event["i"], event["id"], stages))
        elif event["type"] == "emit":
            found.append((req, event["token_range"], event["bytes_b64"], event["held_bytes"], event["held_reason"]))
        elif event["type"] == "step":
            found.append([(s["req"], s["tok0"], s["n_tok"]) for s in event["seqs"]])
        elif event["type"] == "finish":
            found.append((req, event["reason"], event["stop_id"], event["stop_str"], event["n_output"]))
        elif event["type"] == "lesson":
            found.append(event["draws"])
    return found
