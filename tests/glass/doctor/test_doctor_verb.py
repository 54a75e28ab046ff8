"""`pellucid doctor` as people call it, and files that are no trace."""

from __future__ import annotations

import copy
import io
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import trace_of
from rich.cells import cell_len
from rich.console import Console
from sample_trace import sample_trace
from trace_checks import valid

from pellucid.cli.main import main
from pellucid.engine.llm import LLM
from pellucid.errors import TraceFileError
from pellucid.glass.doctor.drawing import drawn
from pellucid.glass.doctor.rules import RULES, examine
from pellucid.glass.doctor.trace_exam import TraceExam
from pellucid.trace.checking import check_events
from pellucid.trace.jsonl import read_trace, write_trace

ALLOWED = re.compile(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]*")


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = main(["doctor", *arguments])
    written = capfd.readouterr()
    return code, written.out, written.err


@pytest.fixture(scope="module")
def healthy(tiny: LLM) -> list[dict[str, Any]]:
    return trace_of(tiny, "hello there", 3, temperature=0.8, top_k=40)


@pytest.fixture(scope="module")
def faulty(tiny: LLM) -> list[dict[str, Any]]:
    return trace_of(tiny, "hello", 2, temperature=1.9, ignore_eos=True)


def test_exit_codes_and_json(
    healthy: list[dict[str, Any]], faulty: list[dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    write_trace(good, healthy)
    write_trace(bad, faulty)
    code, out, err = run(capfd, str(good))
    assert (code, err) == (0, "")
    assert "Healthy" in out
    code, out, err = run(capfd, str(bad))
    assert (code, err) == (1, "")
    assert "Not healthy" in out
    assert "min_p to 0.05" in out
    code, out, _ = run(capfd, str(bad), "--json")
    assert code == 1
    document = json.loads(out)
    assert (document["kind"], document["name"], document["healthy"]) == ("trace", "bad.jsonl", False)
    assert [one["rule"] for one in document["rules"]] == [rule.name for rule in RULES]
    assert "sampling" in {finding["rule"] for finding in document["findings"]}
    check_events(document["findings"])


def test_a_model_by_name_and_by_flag(tiny_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, str(tiny_path), "--json")
    document = json.loads(out)
    assert code == 1  # weights at random make nothing of any text
    assert [finding["rule"] for finding in document["findings"]] == ["wrong-tokenizer"]
    assert json.loads(run(capfd, "-m", str(tiny_path), "--json")[1])["findings"] == document["findings"]
    code, out, err = run(capfd, str(tiny_path), "-m", str(tiny_path))
    assert (code, out) == (2, "")
    assert "two models are named" in err
    assert run(capfd, str(tiny_path), "--append")[0] == 2
    assert "longest context that fits" in run(capfd, str(tiny_path), "--kv-cache-memory-bytes", "64KiB")[1]


def test_a_trace_on_standard_input_and_its_model(
    healthy: list[dict[str, Any]],
    tiny_path: Path,
    smollm2_path: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = tmp_path / "t.jsonl"
    write_trace(saved, healthy)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(saved.read_bytes())))
    code, out, err = run(capfd, "-", "--json")
    assert (code, err, json.loads(out)["name"]) == (0, "", "standard input")
    assert run(capfd, str(saved), "-m", str(tiny_path))[0] == 0
    code, out, _ = run(capfd, str(saved), "-m", str(smollm2_path))
    assert code == 1
    assert "another tokenizer" in " ".join(out.split())
    code, _, err = run(capfd, str(saved), "--threads", "1")
    assert code == 2
    assert "threads is about a model" in err
    assert run(capfd, "-", "--append")[0] == 2


def test_findings_go_into_the_trace_and_are_shown_there(
    faulty: list[dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "t.jsonl"
    write_trace(saved, faulty)
    before = read_trace(saved)
    for _ in range(2):  # again: in place of the earlier ones
        assert run(capfd, str(saved), "--append")[0] == 1
        events = valid(saved.open(encoding="utf-8"))
        found = [event for event in events if event["type"] == "finding"]
        assert events[: len(before) - 1] == before[:-1]
        assert events[len(before) - 1 : -1] == found
        assert {event["rule"] for event in found} >= {"sampling"}
    capfd.readouterr()
    assert main(["explain", "--from", str(saved), "--html", str(tmp_path / "r.html")]) == 0
    out = capfd.readouterr().out
    assert "Sampling too narrow or wide" in out
    assert "text falls apart" in " ".join(out.split())
    assert list(tmp_path.glob("*.part")) == []


@pytest.mark.parametrize("width", [40, 71, 72, 80, 120])
def test_any_width_and_hostile_names(width: int, faulty: list[dict[str, Any]]) -> None:
    events = copy.deepcopy(faulty)
    name = "evil\u202e\x1b[31m</script>" + "x" * 90
    for event in events:
        if "req" in event:
            event["req"] = name
    examination = examine(TraceExam.of(events, name="\x1b]0;title\x07.jsonl"))
    console = Console(width=width, color_system=None, highlight=False, force_terminal=False)
    with console.capture() as captured:
        for renderable in drawn(examination, width):
            console.print(renderable)
    text = captured.get()
    assert ALLOWED.fullmatch(text)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "\\x1b[31m" in "".join(text.split())
    for rule in RULES:
        assert rule.title.split()[0] in text


def test_colours_are_words_too(
    faulty: list[dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "t.jsonl"
    write_trace(saved, faulty)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    out = run(capfd, str(saved))[1]
    assert "\x1b" not in out
    assert max(map(cell_len, out.splitlines())) <= 80
    assert {line.split()[0] for line in out.splitlines() if line[:1].strip()} >= {"ok", "warning", "–", "Doctor"}


def cut(data: bytes) -> bytes:
    return data[: len(data) - 60]


def without(*names: str) -> Any:
    def change(data: bytes) -> bytes:
        lines = [json.loads(line) for line in data.splitlines()]
        return b"".join(json.dumps(one).encode() + b"\n" for one in lines if one["type"] not in names)

    return change


def with_field(kind: str, field: str, value: str) -> Any:
    """The field of all events of a kind, as literal JSON."""

    def change(data: bytes) -> bytes:
        lines = []
        for line in data.splitlines():
            event = json.loads(line)
            if event["type"] == kind:
                event[field] = "@"
            lines.append(json.dumps(event).replace('"@"', value).encode())
        return b"\n".join(lines) + b"\n"

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: b"", "is empty"),
        (cut, "cut off"),
        (lambda data: b"[1, 2]\n" + data, "no type of event"),
        (lambda data: data.replace(b"pellucid-trace/1", b"pellucid-trace/9", 1), "a header whose schema is"),
        (lambda data: data + data, "a second header"),
        (without("request"), "has no request in it"),
        (with_field("sample", "logprob_raw", "NaN"), "sample.logprob_raw is nan, but must be"),
        (with_field("sample", "top2_gap", "1e999"), "sample.top2_gap is inf, but must be a number"),
        (with_field("sample", "i", "1" + "0" * 30), "must have at most 64 bits"),
        (with_field("sample", "i", "1" + "0" * 5000), "no JSON"),
        (with_field("sample", "stages", "[]"), "sample.stages has 0 entries"),
        (with_field("sample", "bytes_b64", '"*"'), "must be base64"),
        (with_field("finish", "reason", '"tired"'), "must be one of stop, length, abort, error"),
        (with_field("header", "tokenizer", "{}"), "header.tokenizer.sha256 is missing"),
        (with_field("request", "params", '{"top_p": {"value": "hot", "source": "request"}}'), "top_p of request"),
        (with_field("request", "params", '{"temperature": {"value": NaN, "source": "request"}}'), "must be a number"),
        (with_field("step", "seqs", "[{}]"), "step.seqs[0].req is missing"),
        (lambda data: b"GGUF" + data, "GGUF"),
        (lambda data: b"\xff\xfe" + data, "no JSON"),
    ],
)  # fmt: skip
def test_files_that_are_no_trace(
    change: Any, words: str, healthy: list[dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "t.jsonl"
    write_trace(saved, healthy)
    saved.write_bytes(change(saved.read_bytes()))
    code, out, err = run(capfd, str(saved))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert len(err) < 400
    assert words in err


def test_a_trace_that_was_cut_between_lines_says_so(
    healthy: list[dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "t.jsonl"
    write_trace(saved, healthy[: len(healthy) // 2])
    code, out, _ = run(capfd, str(saved))
    assert code == 0
    assert "The trace has no end" in out
    code, _, err = run(capfd, str(tmp_path / "missing.jsonl"))
    assert (code, err.count("\n")) == (2, 1)


VALUES: list[Any] = [None, True, -1, 0, 1, 2**63, 1e308, -0.5, "", "NaN", "x", [], [None], {}, {"a": 1}]


@given(seed=st.integers(0, 2**32), value=st.sampled_from(VALUES), times=st.integers(1, 3))
def test_a_changed_trace_is_examined_or_refused(seed: int, value: Any, times: int) -> None:
    """Whatever stands anywhere in it, there is a report or one sentence, never another exception."""
    choose = random.Random(seed)
    events = _fresh()
    for _ in range(times):
        place: Any = choose.choice(events)
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = choose.choice(keys)
            if isinstance(place[key], (dict, list)) and place[key] and choose.random() < 0.85:
                place = place[key]
                continue
            if key != "type":
                if choose.random() < 0.2:
                    del place[key]
                else:
                    place[key] = copy.deepcopy(value)
            break
    refusal = ""
    try:
        examination = examine(TraceExam.of(events))
    except TraceFileError as error:
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
        return
    json.dumps(examination.document())
    console = Console(width=80, file=io.StringIO())
    for renderable in drawn(examination, 80):
        console.print(renderable)


def _fresh() -> list[dict[str, Any]]:
    """The trace by hand, brought to the schema."""
    events = sample_trace()
    events[0]["tokenizer"]["template_sha256"] = None
    for event in events:
        if event["type"] == "step":
            event["ns"]["tracing"] = 0
            for one in event["waiting"]:
                one["reason"] = "step_full"
    return events


def test_the_sample_is_sound() -> None:
    check_events(_fresh())


def test_the_documents_name_every_rule() -> None:
    text = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text(encoding="utf-8")
    for rule in RULES:
        assert f"### {rule.name}: {rule.title}\n" in text
        where = ", ".join(name for name, check in (("trace", rule.trace), ("model", rule.model)) if check is not None)
        assert f"| `{rule.name}` | {where} |" in text
    assert text.count("\n### ") == len(RULES)
