"""Two traces compared in the page: it tells the same first difference as the terminal."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sample_trace import sample_trace, token_bytes
from watched import Watched

from pellucid.glass.compare import first_difference
from pellucid.glass.report import write_report
from pellucid.glass.view import answers_of
from pellucid.trace.jsonl import write_trace

Event = dict[str, Any]


def only(events: list[Event], kind: str, **fields: Any) -> Event:
    return next(e for e in events if e["type"] == kind and all(e.get(k) == v for k, v in fields.items()))


def of_first(kind: str, **fields: Any) -> Callable[[list[Event]], Event]:
    return lambda events: only(events, kind, req="first", **fields)


def change_token(events: list[Event]) -> None:
    only(events, "request", req="first")["tokens"][4]["id"] = 99


def change_layer(events: list[Event]) -> None:
    event = only(events, "layer", req="first", i=9, layer=2)
    event["attn_rms"] *= 1 + 2e-7  # a float32 tells


def change_alive(events: list[Event]) -> None:
    of_first("sample", i=14)(events)["stages"][2]["alive"] = 7


def change_entropy(events: list[Event]) -> None:
    of_first("sample", i=14)(events)["stages"][1]["entropy"] += 1e-9


def change_candidate(events: list[Event]) -> None:
    top = of_first("sample", i=15)(events)["stages"][0]["top"]
    top[3][2] *= 1.5


def change_stage(events: list[Event]) -> None:
    of_first("sample", i=15)(events)["stages"][1]["name"] = "min_p"


def change_draw(events: list[Event]) -> None:
    of_first("sample", i=16)(events)["rng"]["u"] = 0.125


def change_drawn(events: list[Event]) -> None:
    of_first("sample", i=16)(events)["id"] = 119


def change_reason(events: list[Event]) -> None:
    only(events, "finish", req="first")["reason"] = "length"


def change_model(events: list[Event]) -> None:
    events[0]["model"]["quant"] = "Q4_1"


def change_engine(events: list[Event]) -> None:
    events[0]["engine"]["kv_cache_dtype"] = "int4"


def change_parameter(events: list[Event]) -> None:
    params = only(events, "request", req="first")["params"]
    name = next(iter(params))
    params[name]["value"] = 0.123


def change_tokenizer(events: list[Event]) -> None:
    events[0]["tokenizer"]["sha256"] = "1" * 64


def drop_last(events: list[Event]) -> None:
    events.remove(of_first("sample", i=17)(events))


CHANGES = [
    change_model, change_tokenizer, change_engine, change_token, change_parameter, change_layer, change_alive,
    change_entropy, change_candidate, change_stage, change_draw, change_drawn, drop_last, change_reason,
]  # fmt: skip


@pytest.fixture(scope="module")
def watched(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(sample_trace(), path, token_bytes=token_bytes)
    one = Watched(browser)
    one.open(path.as_uri())
    yield one
    assert one.complaints == []
    assert one.violations() == []
    assert [url for url in one.addresses if not url.startswith("file:")] == []
    one.context.close()


def difference(page: Any) -> str:
    page.wait_for_selector("#difference")
    return str(page.locator("#difference b").inner_text())


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_the_page_tells_what_the_terminal_tells(watched: Watched, tmp_path: Path, change: Any) -> None:
    ours, theirs = sample_trace(), copy.deepcopy(sample_trace())
    change(theirs)
    found = first_difference(answers_of(ours)[0], answers_of(theirs)[0])
    assert found is not None
    path = tmp_path / "other.jsonl"
    write_trace(path, theirs)
    page = watched.page
    page.locator("#other-file").set_input_files(path)
    page.wait_for_function("name => document.querySelector('#compare').innerText.includes(name)", arg="other.jsonl")
    assert difference(page) == found.what
    shown = page.locator("#compare .values td bdi").all_inner_texts()
    for text, value in zip(shown, (found.ours, found.theirs), strict=True):
        if isinstance(value, (int, float)):
            assert float(text) == pytest.approx(value, rel=1e-8)
        else:
            assert text.split()[0].rstrip("…") == str(value).split()[0]
    if found.position is not None:
        page.locator("#jump").click()
        assert page.locator("#at-token").inner_text().startswith(f"{found.position} ")
    page.locator("#unpin").click()


def test_equal_traces_and_reports_have_no_difference(watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    for path in (tmp_path / "same.jsonl", tmp_path / "same.html"):
        if path.suffix == ".html":
            write_report(sample_trace(), path, token_bytes=token_bytes)
        else:
            write_trace(path, sample_trace())
        page.locator("#other-file").set_input_files(path)
        page.wait_for_function("name => document.querySelector('#compare').innerText.includes(name)", arg=path.name)
        assert "No difference" in page.locator("#difference").inner_text()
        page.locator("#unpin").click()


def test_a_file_is_dropped_on_the_page(watched: Watched) -> None:
    page = watched.page
    text = "".join(json.dumps(event) + "\n" for event in sample_trace())
    page.evaluate(
        """text => {
          const data = new DataTransfer();
          data.items.add(new File([text], "dropped.jsonl"));
          document.dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));
        }""",
        text,
    )
    page.wait_for_function("() => document.querySelector('#compare').innerText.includes('dropped.jsonl')")
    page.locator("#pinned-request").select_option("second")
    assert page.locator("#difference").count() == 1
    page.locator("#unpin").click()


def test_what_is_no_trace_is_refused_in_one_sentence(watched: Watched, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    no_trace = "it is no trace of the form pellucid-trace"
    other = '{"type": "header", "schema": "other/1"}'
    for text, sentence in (("not json", "line 1 is no JSON"), (other, no_trace), ("", no_trace)):
        path.write_text(text, encoding="utf-8")
        watched.page.locator("#other-file").set_input_files([])
        watched.page.locator("#other-file").set_input_files(path)
        watched.page.locator(".status", has_text=sentence).wait_for(timeout=5000)
