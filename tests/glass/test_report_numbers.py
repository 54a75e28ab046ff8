"""What the report works out itself, against the trace and an independent computation."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_trace import sample_trace, token_bytes, two_kinds_of_layers
from watched import Watched, settle

from pellucid.glass.report import write_report

SEED = 2**63 - 25
EVENTS = sample_trace()
for _event in EVENTS:
    if _event["type"] == "sample":
        _event["rng"]["seed"] = SEED
        # a penalty before the filters: what-if goes on from the scores after it
        _raw = _event["stages"][0]
        _event["stages"].insert(1, {**_raw, "name": "repetition_penalty", "param": 1.1})


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("numbers") / "report.html"
    write_report(EVENTS, path, token_bytes=token_bytes)
    watched = Watched(browser)
    watched.open(path.as_uri())
    watched.page.evaluate("() => document.querySelector('pl-page').move({request: 'first', token: 13})")
    settle(watched.page)
    yield watched.page
    assert watched.complaints == []
    watched.context.close()


def test_a_seed_beyond_a_double_is_shown_digit_for_digit(page: Any) -> None:
    assert str(SEED) in page.locator("#p-sampling .facts").first.inner_text()


def test_in_short_tells_what_the_trace_has(page: Any) -> None:
    sample = next(e for e in EVENTS if e["type"] == "sample" and e["req"] == "first")
    finish = next(e for e in EVENTS if e["type"] == "finish" and e["req"] == "first")
    panels = ("text", "sampling", "timeline", "emission")
    line = {one: page.locator(f'pl-summary dd[data-about="{one}"]').inner_text() for one in panels}
    assert line["text"] == f"{finish['n_prompt']} prompt tokens became {finish['n_output']} generated ones."
    first, last = sample["stages"][0]["chosen"], sample["stages"][-1]
    assert f"gave it {100 * first['p']:.1f} %, rank {first['rank']}." in line["sampling"]
    assert f"had {100 * last['chosen']['p']:.1f} % among {last['alive']} left" in line["sampling"]
    assert f"{finish['ttft_ns'] / 1e6:g} ms to the first token" in line["timeline"]
    share = finish["ttft_parts"]["prefill_own"] / finish["ttft_ns"]
    assert f"own prompt, {100 * share:.1f} %" in line["timeline"]
    assert f"(#{finish['stop_id']})" in line["emission"]


def test_tracing_is_not_taken_for_the_model(browser: Any, tmp_path: Path) -> None:
    """Where the tracer took most of the time, the page says so and tells the rest."""
    events = copy.deepcopy(EVENTS)
    for event in events:
        if event["type"] == "finish":
            event["ttft_parts"]["tracing"] += 180_000_000
            event["ttft_ns"] += 180_000_000
        elif event["type"] == "step":
            event["ns"]["tracing"] = (event["t1_ns"] - event["t0_ns"]) * 3 // 4
    write_report(events, tmp_path / "traced.html")
    watched = Watched(browser)
    watched.open((tmp_path / "traced.html").as_uri())
    page = watched.page
    settle(page)
    parts = next(e for e in events if e["type"] == "finish" and e["req"] == "first")["ttft_parts"]
    net = sum(parts.values()) - parts["tracing"]
    said = page.locator('pl-summary dd[data-about="timeline"]').inner_text()
    share = f"{100 * parts['prefill_own'] / net:.1f} %"
    assert f"{net / 1e6:g} ms to the first token (most of it: own prompt, {share})" in said
    assert f"it took {parts['tracing'] / 1e6:.4g} ms of the first token's time and 75.0 % of later steps" in said
    warned = page.locator("#p-timeline .note.warn").all_inner_texts()
    assert f"{100 * parts['tracing'] / (net + parts['tracing']):.1f} % of it is the tracing itself" in warned[0]
    assert "0.75 ms" in warned[1]
    assert watched.complaints == []
    watched.context.close()


def test_every_kind_of_layer_has_its_angles(browser: Any, tmp_path: Path) -> None:
    write_report(two_kinds_of_layers(copy.deepcopy(EVENTS)), tmp_path / "kinds.html")
    watched = Watched(browser)
    watched.open((tmp_path / "kinds.html").as_uri())
    page = watched.page
    page.evaluate("() => document.querySelector('pl-page').move({request: 'first', token: 13, layer: 3})")
    settle(page)
    kinds = page.locator("#p-positions section.kindof")
    local, global_, still = kinds.all_inner_texts()
    assert "Local layers 0–2, 4" in local
    assert "10,000" in local
    assert "6 – 13" in local
    assert "Global layers 3" in global_
    assert "layer 3, at the cursor" in global_
    assert "at the cursor" not in local
    assert "0 – 13" in global_
    assert "Global layers 5" in still
    for place, theta in enumerate((1e4, 1e6)):
        titles = kinds.nth(place).locator("svg.dials title").all_text_contents()
        angles = [float(one.split(": ")[1].split()[0]) for one in titles]
        expected = [13 * theta ** (-k / 16) % (2 * np.pi) for k in range(16)]
        np.testing.assert_allclose(angles, expected, rtol=1e-3)
    assert kinds.nth(2).locator("svg").count() == 0
    assert watched.complaints == []
    watched.context.close()


def test_removed_tokens_are_struck_through(page: Any) -> None:
    last = page.locator("#p-sampling .stage").last
    assert last.locator("li.gone s").count() == 6  # four of them here, two by top-k before
    style = last.locator("li.gone s").first.evaluate("(one) => getComputedStyle(one).textDecorationLine")
    assert style == "line-through"


def test_the_timeline_zooms_to_the_cursor(page: Any) -> None:
    steps = sum(e["type"] == "step" for e in EVENTS)
    page.evaluate(
        """() => { const page = document.querySelector('pl-page'), last = page.trace.steps[page.trace.steps.length - 1];
        for (let k = 1; k <= 100; k += 1) page.trace.add({...last, step: last.step + k, t0_ns: last.t0_ns + k * 3e6, t1_ns: last.t1_ns + k * 3e6}); }"""  # noqa: E501
    )
    page.evaluate(f"() => document.querySelector('pl-page').move({{step: {steps + 59}}})")
    settle(page)
    zoom = page.locator('#p-timeline select[aria-label="Shown"]')
    zoom.select_option("40")
    assert "over 40 steps" in page.locator("#p-timeline svg.lanes").get_attribute("aria-label")
    assert f"step {steps + 39}" in page.locator("#p-timeline svg.lanes").inner_html().lower()
    zoom.select_option("0")
    assert f"over {steps + 100} steps" in page.locator("#p-timeline svg.lanes").get_attribute("aria-label")
