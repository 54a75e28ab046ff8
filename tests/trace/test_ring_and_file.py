"""The ring between engine and readers, and the file form."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from sample_trace import sample_trace
from trace_checks import valid

from pellucid.errors import PellucidWarning, TraceFileError
from pellucid.glass.compare import first_difference
from pellucid.glass.explain.sections import explain
from pellucid.glass.perfetto import chrome_trace
from pellucid.glass.report.writer import report_html
from pellucid.glass.view import answers_of
from pellucid.trace import jsonl
from pellucid.trace.events import EVENT_TYPES, SCHEMA, load_schema
from pellucid.trace.jsonl import line_of, number, parse_lines, read_trace, write_trace
from pellucid.trace.reader import TraceReader
from pellucid.trace.ring import TraceRing

HEADER = {"type": "header", "schema": SCHEMA}
HEADER_LINE = line_of(sample_trace()[0]).encode()


class Note:
    """A record of one event."""

    def __init__(self, value: int, owner: str | None = None) -> None:
        self.value = value
        self.request_ids = None if owner is None else (owner,)

    def events(self) -> Any:
        yield {"type": "mem", "value": self.value}


def values(events: list[dict[str, Any]]) -> list[int]:
    return [event["value"] for event in events if event["type"] == "mem"]


def test_readers_get_everything_once_in_order() -> None:
    ring = TraceRing(8)
    reader = TraceReader(ring, lambda: dict(HEADER))
    for i in range(5):
        ring.append(Note(i))
    late = TraceReader(ring, lambda: dict(HEADER), from_start=False)
    first = reader.read(limit=2)
    assert first[0] == HEADER
    assert values(first) == [0, 1]
    assert values(reader.read()) == [2, 3, 4]
    assert reader.read() == []
    ring.append(Note(5))
    assert values(late.read()) == [5]
    assert reader.read() == [{"type": "mem", "value": 5}]
    assert reader.end() == {"type": "end", "dropped": 0, "events": 7}


def test_the_oldest_are_dropped_and_counted() -> None:
    ring = TraceRing(4)
    reader = TraceReader(ring, lambda: dict(HEADER))
    for i in range(10):
        ring.append(Note(i))
    events = reader.read()
    assert events[1] == {"type": "dropped", "records": 6}
    assert values(events) == [6, 7, 8, 9]
    assert reader.read() == []
    assert reader.end() == {"type": "end", "dropped": 6, "events": 6}


def test_what_was_lost_before_a_reader_came_is_counted_from_where_it_begins() -> None:
    ring = TraceRing(4)
    for i in range(10):
        ring.append(Note(i))
    reader = TraceReader(ring, lambda: dict(HEADER), begin=3)
    assert reader.read()[1] == {"type": "dropped", "records": 3}
    assert TraceReader(ring, lambda: dict(HEADER), begin=8).read() == [HEADER, *Note(8).events(), *Note(9).events()]


def test_the_ring_is_bounded_by_bytes_too() -> None:
    ring = TraceRing(100, max_bytes=1000)
    reader = TraceReader(ring, lambda: dict(HEADER))
    for i in range(10):
        ring.append(Note(i), 300)
    assert ring.head - ring.tail == 3
    assert values(reader.read()) == [7, 8, 9]
    ring.append(Note(10), 5000)  # larger than the whole ring: it alone is kept
    assert values(reader.read()) == [10]
    ring.append(Note(11), 10)
    assert values(reader.read()) == [11]


def test_a_reader_sees_its_own_requests_and_what_is_everybodys() -> None:
    ring = TraceRing(16)
    for i, owner in enumerate(("a", None, "b", "a")):
        ring.append(Note(i, owner))
    assert values(TraceReader(ring, lambda: dict(HEADER), {"a"}).read()) == [0, 1, 3]
    assert values(TraceReader(ring, lambda: dict(HEADER), []).read()) == [1]


@given(
    st.integers(1, 6),
    st.lists(st.one_of(st.integers(0, 12), st.just(-1), st.integers(-4, -2)), max_size=60),
)
def test_nothing_is_lost_unnoticed(capacity: int, actions: list[int]) -> None:
    """Appends (0 …: so many bytes) and reads (−1: all, −k: k − 1) in any order: seen and dropped are all there is."""
    ring = TraceRing(capacity, max_bytes=30)
    reader = TraceReader(ring, lambda: dict(HEADER))
    count = 0
    seen: list[int] = []
    for action in actions:
        if action >= 0:
            ring.append(Note(count), action)
            count += 1
        else:
            seen += values(reader.read(limit=None if action == -1 else -action - 1))
    seen += values(reader.read())
    assert seen == sorted(set(seen))
    assert len(seen) + reader.num_dropped == count


def test_a_reader_in_another_thread_sees_whole_records() -> None:
    ring = TraceRing(64)
    reader = TraceReader(ring, lambda: dict(HEADER))
    seen: list[int] = []
    done = threading.Event()

    def follow() -> None:
        while not done.is_set():
            seen.extend(values(reader.read()))
        seen.extend(values(reader.read()))

    thread = threading.Thread(target=follow)
    thread.start()
    for i in range(20_000):
        ring.append(Note(i), i % 7)
    done.set()
    thread.join()
    assert seen == sorted(set(seen))
    assert len(seen) + reader.num_dropped == 20_000


def test_numbers_that_json_does_not_have_are_strings() -> None:
    line = line_of({"type": "layer", "absmax": float("inf"), "w": [float("nan"), -float("inf"), 1.5]})
    event = json.loads(line)
    assert event["absmax"] == "Infinity"
    assert event["w"] == ["NaN", "-Infinity", 1.5]
    assert number(event["absmax"]) == float("inf")


def test_types_of_a_later_version_are_passed_over_and_counted(tmp_path: Path) -> None:
    header, end = sample_trace()[0], {"type": "end", "dropped": 0, "events": 3}
    later = [{"type": "telepathy", "x": [1]}, {"type": "aura"}, {"type": "aura"}]
    write_trace(tmp_path / "t.jsonl", [header, *later, end])
    with pytest.warns(PellucidWarning, match=r"t.jsonl: 3 events of a later version .*'telepathy', 'aura'"):
        assert read_trace(tmp_path / "t.jsonl") == [header, end]


def test_a_file_and_back(tmp_path: Path) -> None:
    events = [*sample_trace(), {"type": "end", "dropped": 0, "events": 2, "new": "你好\u202e\x00"}]
    assert write_trace(tmp_path / "t.jsonl", events) == len(events)
    assert read_trace(tmp_path / "t.jsonl") == events


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\xff\xfe", "line 1: no JSON"),
        (b"[" * 100_000, "line 1: no JSON"),
        (b'{"type": "mem"}\n', "begins with a header"),
        (b'{"type": "header", "schema": "pellucid-trace/2"}\n', "begins with a header"),
        (b'{"type": "header", "schema": "pellucid-trace/1"}\n', "line 1: header.model is missing"),
        (HEADER_LINE + b"7\n", "line 2: None is no type"),
        (HEADER_LINE + b'{"type": ["end"]}\n', "line 2: .* is no type"),
        (HEADER_LINE + HEADER_LINE, "line 2: a second header"),
        (HEADER_LINE + b'{"type": "end", "dropped": NaN, "events": 0}\n', "end.dropped is nan, but must be a whole"),
        (HEADER_LINE + b'{"type": "end", "dropped": 0, "events": 0, "x": "\\ud800"}\n', "line 2: no JSON"),
        (HEADER_LINE + b'{"type": "end", "dropped": true, "events": 0}\n', "end.dropped is True, but must be a whole"),
        (HEADER_LINE + b'{"type": "end", "dropped": 0, "events": 1e999}\n', "end.events is inf, but must be a whole"),
        (
            HEADER_LINE + b'{"type": "end", "dropped": 0, "events": 1%s}\n' % (b"0" * 99),
            "must have at most 64 bits",
        ),
        (
            HEADER_LINE + b'{"type": "pieces", "bytes_b64": {"1": "x"}}\n',
            "bytes_b64.1 is .x., but must be base64",
        ),
        (HEADER_LINE + b'{"type": "pieces", "bytes_b64": {"x": "eA=="}}\n', "has the odd name .x."),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "t.jsonl").write_bytes(content)
    with pytest.raises(TraceFileError, match=words):
        read_trace(tmp_path / "t.jsonl")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with contextlib.suppress(TraceFileError):
        list(parse_lines(content.splitlines(keepends=True)))


def test_the_schema_knows_every_event() -> None:
    assert set(load_schema()["$defs"]) == set(EVENT_TYPES)
    with pytest.raises(AssertionError):
        valid([line_of({"type": "end", "dropped": -1, "events": 0})])


def test_a_line_without_an_end_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 1000)
    (tmp_path / "t.jsonl").write_bytes(b'{"type": "header", "x": "'.ljust(3000))
    with (tmp_path / "t.jsonl").open("rb") as file, pytest.raises(TraceFileError, match="longer than 1000 bytes"):
        list(parse_lines(jsonl.bounded_lines(file)))
    with pytest.raises(TraceFileError, match=r"t.jsonl, line 1: longer than 1000 bytes"):
        read_trace(tmp_path / "t.jsonl")


ODD: list[Any] = [None, True, -1, 0, 10**400, 0.5, 1e300, "", "NaN", "\ud800", "[b]", [], {}, [None], [[]], ["x"] * 20]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_field_may_be_odd(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever one field of a trace holds: it is refused by name, or everything that shows traces can show it."""
    events = sample_trace()
    event = data.draw(st.sampled_from(events))
    place: Any = event
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        deeper = isinstance(place[key], (dict, list)) and place[key]
        if not deeper or data.draw(st.booleans()):
            break
        place = place[key]
    if data.draw(st.booleans()):
        del place[key]
    else:
        place[key] = data.draw(st.sampled_from(ODD))
    try:
        read = list(parse_lines([json.dumps(event).encode() for event in events]))
        views = answers_of(read)
    except TraceFileError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert "\n" not in refusal
        assert len(refusal) < 600
        return
    console = Console(width=80, file=io.StringIO())
    for view in views:
        console.print(*explain(view, 80, token=3, layer=1))
    json.dumps(chrome_trace(read))
    report_html(read).encode()
    first_difference(views[0], answers_of(sample_trace())[0])
    first_difference(answers_of(sample_trace())[0], views[0])
