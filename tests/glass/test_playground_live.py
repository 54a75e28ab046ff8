"""What the panels of the playground show while an answer comes, and while only others are answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_server import RunningServer, mock_engine
from playground_server import PlaygroundServer, ask, in_thread, set_option, wait_for_answer
from sample_trace import sample_trace
from watched import Watched, settle

from pellucid.glass.report import write_report

CURSOR = """() => { const page = document.querySelector('pl-page'), sequence = page.sequence;
    return {...page.cursor, length: sequence ? sequence.length : 0, steps: page.trace.steps.length,
            samples: sequence ? sequence.samples.length : 0}; }"""


@pytest.fixture(scope="module")
def slow() -> Iterator[RunningServer]:
    """60 ms a step: an answer lasts a minute, so that a slow browser can look at it as well."""
    with PlaygroundServer(mock_engine(step_seconds=0.06)) as one:
        yield one


def without_end(route: Any) -> None:
    """Answers are as long as asked for."""
    route.continue_(post_data=json.dumps({**json.loads(route.request.post_data), "ignore_eos": True}))


@pytest.fixture
def page(browser: Any, slow: RunningServer) -> Iterator[Any]:
    watched = Watched(browser)
    watched.page.route("**/v1/chat/completions", without_end)
    watched.open(slow.url + "/")
    yield watched.page
    assert watched.complaints == []
    watched.context.close()


def start_second(page: Any) -> str:
    """One answer is there, another comes: the first one's id."""
    ask(page, "hello", max_tokens=12)
    first = page.evaluate(CURSOR)["request"]
    set_option(page, "max_tokens", 1000)
    page.locator("#message").fill("and a long one")
    page.locator("#send").click()
    page.wait_for_function(
        "first => document.querySelector('pl-page').cursor.request !== first"
        " && document.querySelector('pl-page').sequence.samples.length > 5",
        arg=first,
        timeout=40_000,
    )
    return str(first)


def leave_the_message(page: Any) -> None:
    """Keys are the page's again; a click would wait for a panel that is never at rest."""
    page.evaluate("() => document.activeElement.blur()")


def test_the_cursor_goes_with_the_answer_that_comes(page: Any) -> None:
    start_second(page)
    first = page.evaluate(CURSOR)
    page.wait_for_function(
        "n => document.querySelector('pl-page').cursor.token > n + 10", arg=first["token"], timeout=40_000
    )
    later = page.evaluate(CURSOR)
    assert later["request"] == first["request"]
    assert later["step"] > first["step"]
    page.locator("#p-kv").scroll_into_view_if_needed()
    page.wait_for_function(
        "n => Number(document.querySelector('#p-kv h3').innerText.replace(/\\D/g, '')) >= n",
        arg=later["step"],
        timeout=40_000,
    )
    page.locator("#stop").evaluate("(one) => one.click()")


def test_a_hand_on_the_cursor_stops_that_and_can_let_go(page: Any) -> None:
    start_second(page)
    leave_the_message(page)
    page.keyboard.press("ArrowLeft")
    held = page.evaluate(CURSOR)
    page.wait_for_function(
        "n => document.querySelector('pl-page').sequence.samples.length > n + 8", arg=held["samples"], timeout=40_000
    )
    stayed = page.evaluate(CURSOR)
    assert (stayed["token"], stayed["step"]) == (held["token"], held["step"])
    page.locator("#keep-up").evaluate("(one) => one.click()")
    page.wait_for_function(
        "n => document.querySelector('pl-page').cursor.token > n + 8", arg=held["token"], timeout=40_000
    )
    assert page.locator("#keep-up").count() == 0
    leave_the_message(page)
    page.keyboard.press("ArrowLeft")
    left = page.evaluate(CURSOR)
    page.locator("#stop").evaluate("(one) => one.click()")
    wait_for_answer(page, 1)
    assert page.evaluate(CURSOR)["token"] == left["token"]


def test_steps_of_others_are_drawn_without_a_request_of_ones_own(page: Any) -> None:
    kinds = ("header", "step", "kv", "mem")
    events = json.loads(json.dumps([e for e in sample_trace() if e["type"] in kinds]).replace('"first"', '"other-1"'))
    page.evaluate(
        "events => { const page = document.querySelector('pl-page');"
        " for (const one of events) page.trace.add(one); page.later(); }",
        events,
    )
    page.wait_for_selector("#p-timeline .lane.other", timeout=40_000)
    settle(page)
    assert page.locator("#p-timeline .lane.other").count() == 2
    assert page.locator("#p-kv .block").count() > 0
    assert page.locator("#p-memory .formula").count() > 0
    steps = [e["step"] for e in events if e["type"] == "step"]
    assert page.locator("#at-step").inner_text() == f"{steps[-1]} / {steps[-1]}"
    page.locator("#p-batch svg [data-step] rect").nth(3).click(force=True)
    assert page.evaluate(CURSOR)["step"] < steps[-1]


def test_with_playground_all_an_untraced_request_has_its_lane(browser: Any) -> None:
    with PlaygroundServer(mock_engine(step_seconds=0.02), playground_all=True) as server:
        watched = Watched(browser)
        page = watched.open(server.url + "/")
        page.wait_for_function("() => document.querySelector('.status').innerText.includes('Live')")
        body = {"max_tokens": 60, "ignore_eos": True}
        others = [
            in_thread(lambda extra=extra: server.post("/v1/completions", body | extra))
            for extra in ({"prompt": "untraced"}, {"prompt": "traced", "trace": 2})
        ]
        page.wait_for_selector("#p-timeline .lane.other", timeout=40_000)
        for other in others:
            other.join()
        settle(page)
        assert page.locator("#p-timeline .lane").count() == 2
        assert page.locator(".cursor select option").count() == 1
        watched.context.close()


def test_a_lost_draw_is_a_gap_and_the_count_is_told(browser: Any, tmp_path: Path) -> None:
    events = sample_trace()
    prompt = next(e for e in events if e["type"] == "request" and e["req"] == "first")["tokens"]
    lost = next(e for e in events if e["type"] == "sample" and e["req"] == "first" and e["i"] == len(prompt) + 1)
    kept = [e for e in events if e is not lost]
    kept[-1] = {**kept[-1], "dropped": 3}
    write_report(kept, tmp_path / "gap.html")
    watched = Watched(browser)
    watched.open((tmp_path / "gap.html").as_uri())
    ids = watched.page.locator("#p-text .strip .tok .id").all_inner_texts()
    drawn = [e for e in events if e["type"] == "sample" and e["req"] == "first"]
    told = dict(zip(range(len(prompt), len(ids)), ids[len(prompt) :], strict=True))
    assert {e["i"]: str(e["id"]) for e in drawn if e is not lost}.items() <= told.items()
    assert told[lost["i"]] not in {str(e["id"]) for e in drawn}
    assert "3 records were lost" in watched.page.locator("#lost").inner_text()
    assert watched.complaints == []
    watched.context.close()


def test_a_turn_with_lost_draws_is_asked_for_again(page: Any) -> None:
    page.evaluate(
        """() => { const kind = document.querySelector('pl-page').trace.constructor.prototype;
        const take = kind.add; let number = 0;
        kind.add = function (event) {
          if (event.type === "sample" && (number += 1) === 3) return;
          take.call(this, event); }; }"""
    )
    with page.expect_request("**/v1/traces/*cmpl*"):
        ask(page, "hello", max_tokens=8)
    whole = "() => document.querySelector('pl-page').sequence.samples.every((one) => !one.isLost)"
    assert page.evaluate(whole)
    assert page.evaluate(CURSOR)["samples"] == 8
