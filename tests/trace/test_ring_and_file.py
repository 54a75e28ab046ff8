"""The ring between engine and readers, and the file form."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_checks import valid

from pellucid.errors import TraceFileError
from pellucid.trace.events import EVENT_TYPES, SCHEMA, load_schema
from pellucid.trace.jsonl import line_of, number, parse_lines, read_trace, write_trace
from pellucid.trace.reader import TraceReader
from pellucid.trace.ring import TraceRing

HEADER = {"type": "header", "schema": SCHEMA}


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
    assert values(reader.read()) == [6, 7, 8, 9]
    assert reader.end()["dropped"] == 6


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


def test_a_file_and_back(tmp_path: Path) -> None:
    events = [HEADER, {"type": "emit", "text": "你好\u202e\x00"}, {"type": "end", "dropped": 0, "events": 2}]
    assert write_trace(tmp_path / "t.jsonl", events) == 3
    assert read_trace(tmp_path / "t.jsonl") == events


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\xff\xfe", "line 1: no JSON"),
        (b"[" * 100_000, "line 1: no JSON"),
        (b'{"type": "mem"}\n', "begins with a header"),
        (b'{"type": "header", "schema": "pellucid-trace/2"}\n', "begins with a header"),
        (b'{"type": "header", "schema": "pellucid-trace/1"}\n{"type": "nothing"}\n', "line 2: 'nothing' is no type"),
        (b'{"type": "header", "schema": "pellucid-trace/1"}\n7\n', "line 2"),
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
