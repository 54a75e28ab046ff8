"""Files that are no good traces: each reader shows them or says in one sentence what is wrong; no script runs."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import warnings
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from sample_trace import sample_trace
from watched import Watched

from pellucid.cli.main import main
from pellucid.errors import PellucidWarning, TraceFileError
from pellucid.glass.compare import first_difference
from pellucid.glass.doctor.rules import examine
from pellucid.glass.doctor.trace_exam import TraceExam
from pellucid.glass.explain.sections import explain
from pellucid.glass.perfetto import chrome_trace
from pellucid.glass.report.writer import report_html, write_report
from pellucid.glass.view import answers_of
from pellucid.trace.jsonl import line_of, parse_lines

Event = dict[str, Any]
INJECTIONS = (
    "</script><script>document.title='pwned'</script>",
    "<img src=x onerror=\"document.title='pwned'\">",
    "\u2028document.title='pwned'\u2029",
    "');document.title='pwned';//",
    "__proto__",
    "\x1b]0;pwned\x07\x1b[2J",
    "<svg/onload=document.title='pwned'>",
    "javascript:document.title='pwned'",
    "[/bold][link=file:///]",
)


def lines_of(events: list[Event]) -> list[bytes]:
    return [line_of(event).encode("utf-8", "surrogatepass") for event in events]


def shuffled(seed: int, kind: str) -> list[bytes]:
    """Lines of two traces, the second with other words in it, damaged in one way or a few."""
    choices = random.Random(seed)
    lines = lines_of(sample_trace())
    for _ in range(choices.randrange(1, 4)):
        at, other = choices.randrange(len(lines)), choices.randrange(len(lines))
        if kind == "left out":
            del lines[at : at + choices.randrange(1, 30)]
        elif kind == "twice":
            lines[other:other] = lines[at : at + choices.randrange(1, 30)]
        elif kind == "reordered":
            part = lines[1:]
            choices.shuffle(part)
            lines[1:] = part
        elif kind == "cut":
            whole = b"".join(lines)
            lines = whole[: choices.randrange(len(whole))].splitlines(keepends=True)
        elif kind == "moved":
            lines.insert(other, lines.pop(at))
        elif kind == "others":
            event = json.loads(lines[at])
            for name in ("req", "step", "i", "layer", "block", "index", "token_range"):
                if name in event and choices.random() < 0.5:
                    event[name] = choices.choice([0, 7, 2**40, "third", "first", [5, 2], None])
            lines[at] = line_of(event).encode()
        if not lines:
            break
    return lines


def everything(events: list[Event]) -> None:
    """All that reads a trace."""
    views = answers_of(events)
    console = Console(width=80, file=io.StringIO())
    for view in views:
        for token in {None, 0, view.num_tokens - 1}:
            console.print(*explain(view, 80, token=token))
    json.dumps(chrome_trace(events))
    report_html(events).encode()
    for ours, theirs in ((views, answers_of(sample_trace())), (answers_of(sample_trace()), views)):
        first_difference(ours[0], theirs[0])
    examine(TraceExam.of(events))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(["left out", "twice", "reordered", "cut", "moved", "others"]))
def test_lines_in_any_disorder_are_shown_or_refused_in_a_sentence(seed: int, kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PellucidWarning)
        refusal = refused(shuffled(seed, kind))
    assert refusal is None or 0 < len(refusal) < 400
    assert "\n" not in (refusal or "")


def refused(lines: list[bytes]) -> str | None:
    """Why a trace is not read, or None where everything could show it."""
    try:
        everything(list(parse_lines(lines)))
    except TraceFileError as error:
        return str(error)
    return None


def test_a_trace_that_was_cut_between_two_lines_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cut.jsonl").write_bytes(b"".join(lines_of(sample_trace())[:-1]))
    assert main(["explain", "--from", str(tmp_path / "cut.jsonl")]) == 0
    assert "The trace has no end" in capsys.readouterr().out


@pytest.mark.parametrize("words", INJECTIONS)
def test_words_that_would_be_code_steer_no_terminal(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever a text may stand in a trace; the terminal gets no escape of it, a message one line."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(lines_of(injected(words))))
    main(["explain", "--from", str(path), "--compare", str(path)])
    main(["doctor", str(path)])
    said = capsys.readouterr()
    assert not {"\x1b", "\x07", "\u2028", "\u2029"} & set(said.out + said.err)


def injected(words: str) -> list[Event]:
    """A trace with these words in every text that the schema leaves open."""
    events = sample_trace()
    for event in events:
        if event["type"] == "header":
            event["model"] |= {"id": words, "arch": words, "quant": words}
            event["model"]["rope"] |= {"type": words, "factor": 2.0}
            event["engine"] |= {"kv_cache_dtype": words, words: words}
        elif event["type"] == "request":
            event["template"] = event["rendered"] = words
            event["params"] |= {words: {"value": words, "source": "request"}}
        elif event["type"] == "sample":
            for stage in event["stages"][1:]:
                stage["name"], stage["param"] = words, words
        elif event["type"] == "finish":
            event["stop_str"] = event["error"] = words
            event["ttft_parts"][words] = 1
            event["ttft_ns"] += 1
        elif event["type"] == "step":
            event["ns"][words] = 1_000_000
        elif event["type"] == "finding":
            event |= {"rule": words, "explain": words, "fix": words, "evidence": {words: words}}
        elif event["type"] == "kv" and event["hash"] is not None:
            event["hash"] = event["hash"] + words
        if "req" in event and event["req"] is not None:
            event["req"] += words
        for one in event.get("seqs", []) + event.get("waiting", []):
            one["req"] += words
    return events


OPEN_EACH = """async (files) => {
  const page = document.querySelector('pl-page');
  const said = [];
  for (const [name, data] of files) {
    page.status.textContent = '';
    page.pinned = null;
    await page.openOther(new File([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))], name));
    said.push([page.status.textContent, page.pinned !== null, page.comparison.textContent]);
  }
  return said;
}"""


def opened_in_page(browser: Any, report: Path, files: list[tuple[str, bytes]]) -> list[tuple[str, bool, str]]:
    """Of each file opened beside a report: what the page says, whether it took it, and the comparison."""
    watched = Watched(browser)
    page = watched.open(report.as_uri())
    title = page.title()
    said = page.evaluate(OPEN_EACH, [[name, b64encode(data).decode()] for name, data in files])
    assert page.title() == title
    assert page.locator("img, iframe, object, embed, [onload], [onerror]").count() == 0
    assert page.locator("script").count() == 2
    assert watched.addresses == [report.as_uri()]
    assert [one for one in watched.complaints if "Error" not in one] == []
    watched.context.close()
    return [tuple(one) for one in said]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    write_report(sample_trace(), path)
    return path


def test_files_that_the_page_refuses(browser: Any, report: Path) -> None:
    good = b"".join(lines := lines_of(sample_trace()))
    header = json.loads(lines[0])
    packed = gzip.compress(good)
    offline = report.read_bytes()
    cases = [
        (b"", "it is no trace"),
        (b"\xff\xfe\x00", "it is no trace|no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"7\n", "it is no trace"),
        (b"null\n" + good, "it is no trace"),
        (b"<!doctype html><p>hello", "it is no trace"),
        (line_of({**header, "schema": "pellucid-trace/2"}).encode(), "it is pellucid-trace/2, but this page reads"),
        (line_of({**header, "schema": ["pellucid-trace/1"]}).encode(), "it is no trace"),
        (lines[0], "it is no trace"),
        (lines[0] + good, "line 2 is a second header"),
        (good[: len(good) // 2], r"it was cut off within line \d+"),
        (lines[0] + b"{}\n" + b"".join(lines[1:]), "line 2 is no event"),
        (lines[0] + b'{"type": "__proto__"}\n', "it is no trace"),
        (lines[0] + b'{"type": "request", "req": "x", "tokens": 7}\n', "line 2: request.tokens is missing or of"),
        (lines[0] + b'{"type": "step", "seqs": [null]}\n', "line 2: step.step is missing"),
        (b"".join(lines[:3]) + b"nonsense\n" + b"".join(lines[3:]), "line 4 is no JSON"),
        (packed[: len(packed) // 2], "cut off or damaged"),
        (packed[:40] + b"\x00" * 40 + packed[80:], "cut off or damaged"),
        (offline.replace(b'id="trace">\n', b'id="trace">\nAAAA'), "cut off or damaged"),
    ]
    said = opened_in_page(browser, report, [(f"{k}.jsonl", data) for k, (data, _) in enumerate(cases)])
    for (data, words), (status, was_taken, _) in zip(cases, said, strict=True):
        assert not was_taken, data[:80]
        assert re.search(words, status), (data[:80], status)
        assert status.startswith("The trace in this file cannot be read: ")
    whole = opened_in_page(browser, report, [("t.jsonl", good), ("t.gz", packed), ("t.html", offline)])
    for status, was_taken, comparison in whole:
        assert (status, was_taken) == ("", True)
        assert "No difference" in comparison
    [(status, was_taken, _)] = opened_in_page(browser, report, [("t.jsonl", b"".join(lines[:-1]))])
    assert was_taken
    assert status.startswith("This trace has no end")


def test_a_line_without_an_end_is_not_kept(browser: Any, report: Path) -> None:
    watched = Watched(browser)
    page = watched.open(report.as_uri())
    said = page.evaluate(
        """async (header) => {
          const page = document.querySelector('pl-page');
          const long = Array(66).fill('x'.repeat(2 ** 20));
          await page.openOther(new File([header, '{"type": "end", "x": "', ...long], 't'));
          return page.status.textContent;
        }""",
        line_of(sample_trace()[0]),
    )
    assert said == "The trace in this file cannot be read: it has a line of more than 67.1 MB"
    watched.context.close()


def test_disorder_and_injected_words_in_the_page(browser: Any, report: Path) -> None:
    """Each is shown or refused in a sentence; texts stay texts."""
    kinds = ["left out", "twice", "reordered", "cut", "moved", "others"]
    files = [(f"{seed}.jsonl", b"".join(shuffled(seed, kinds[seed % len(kinds)]))) for seed in range(36)]
    files += [(words, b"".join(lines_of(injected(words)))) for words in INJECTIONS]
    for (name, _), (status, was_taken, _) in zip(files, opened_in_page(browser, report, files), strict=True):
        assert was_taken != status.startswith("The trace in this file cannot be read: "), (name, status)
        assert "\n" not in status
        assert not re.search("undefined|not iterable|TypeError|Cannot read", status), (name, status)


@pytest.mark.parametrize("words", INJECTIONS)
def test_a_report_of_injected_words_runs_nothing(words: str, browser: Any, tmp_path: Path) -> None:
    write_report(injected(words), tmp_path / "report.html")
    watched = Watched(browser)
    page = watched.open((tmp_path / "report.html").as_uri())
    page.evaluate("() => document.querySelector('pl-page').refresh(true)")
    assert "pwned" not in page.title()
    assert page.locator("img, iframe, object, embed, [onload], [onerror]").count() == 0
    assert watched.addresses == [(tmp_path / "report.html").as_uri()]
    assert watched.complaints == []
    watched.context.close()
