"""The report in a real browser: what it shows is what the trace says, and it asks nobody for anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sample_trace import ANSWER, HOSTILE, LAYERS, PROMPT, sample_trace, token_bytes
from watched import Watched, settle

from pellucid.glass.report import write_report

EVENTS = sample_trace()


def of(kind: str, **fields: Any) -> list[dict[str, Any]]:
    return [e for e in EVENTS if e["type"] == kind and all(e.get(k) == v for k, v in fields.items())]


@pytest.fixture(scope="module")
def watched(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(EVENTS, path, token_bytes=token_bytes)
    one = Watched(browser, color_scheme="light")
    one.open(path.as_uri())
    yield one
    one.context.close()


@pytest.fixture
def page(watched: Watched) -> Iterator[Any]:
    watched.page.evaluate("() => document.querySelector('pl-page').move({request: 'first', token: 13, layer: 0})")
    settle(watched.page)
    yield watched.page
    assert watched.complaints == []
    assert [url for url in watched.addresses if not url.startswith("file:")] == []


def fact(page: Any, panel: str, name: str) -> str:
    text = page.locator(f"#p-{panel} .fact", has=page.locator("dt", has_text=name)).first.locator("dd").inner_text()
    return str(text).split("\n")[0].removesuffix("measured").removesuffix("derived").strip()


def test_all_ten_panels_are_drawn_without_a_failure(page: Any) -> None:
    assert page.locator(".panel[data-name] h2").count() == 10
    assert page.locator("text=could not be drawn").count() == 0


def test_hostile_tokens_stay_text(page: Any) -> None:
    shown = page.locator("#p-text .strip .tok .txt").all_inner_texts()
    assert len(shown) == len(PROMPT) + len(ANSWER)
    assert shown[5:11] == [
        "</script>",
        "⟨U+0000⟩",
        "⟨U+202E⟩evil",
        "👩",
        "⟨E2 80 8D F0 9F⟩",
        "<img·src=x·onerror=alert(1)>",
    ]
    assert len(HOSTILE) == 6
    assert page.locator("img").count() == 0


def test_ids_and_bytes_are_those_of_the_trace(page: Any) -> None:
    ids = page.locator("#p-text .strip .tok .id").all_inner_texts()
    assert ids == [str(t["id"]) for t in of("request", req="first")[0]["tokens"]] + [
        str(s["id"]) for s in of("sample", req="first")
    ]
    assert fact(page, "text", "Bytes") == " ".join(f"{byte:02X}" for byte in ANSWER[0])


def test_sampling_shows_every_stage_and_the_draw(page: Any) -> None:
    sample = of("sample", req="first")[0]
    stages = page.locator("#p-sampling .stage")
    assert stages.count() == len(sample["stages"])
    for place, stage in enumerate(sample["stages"]):
        assert stages.nth(place).locator("li:not(.gone)").count() == len(stage["top"])
        shown = stages.nth(place).locator("li.chosen .n").inner_text()
        assert shown == f"{100 * stage['chosen']['p']:.1f} %"
    assert stages.nth(2).locator("li.gone s").count() == 2
    assert stages.nth(3).locator("li.gone s").count() == 6  # those two are not forgotten
    assert f"{sample['rng']['u']:.5g}" in page.locator("#p-sampling .udraw").inner_html()


def test_the_norms_of_a_layer_are_those_of_the_trace(page: Any) -> None:
    page.evaluate("() => document.querySelector('pl-page').move({layer: 2})")
    settle(page)
    event = of("layer", req="first", i=13, layer=2)[0]
    for name, field in (("Residual RMS", "resid_rms"), ("Attention RMS", "attn_rms"), ("MLP RMS", "mlp_rms")):
        assert float(fact(page, "layers", name)) == pytest.approx(event[field], rel=1e-3)
    assert page.locator("#p-layers canvas").get_attribute("aria-label").startswith(f"Residual RMS of {LAYERS} layers")


def test_the_parts_of_the_first_tokens_time_add_up(page: Any) -> None:
    finish = of("finish", req="first")[0]
    cells = page.locator("#p-timeline table.ttft tbody tr").all()
    shown = [float(row.locator("td").nth(2).inner_text().split()[0]) for row in cells]
    assert sum(shown[:-1]) == pytest.approx(finish["ttft_ns"] / 1e6, abs=0.01)
    assert shown[-1] == pytest.approx(finish["ttft_ns"] / 1e6, abs=0.01)
    assert "= Time to first token" in cells[-1].inner_text()


def test_arrow_keys_move_the_one_cursor(page: Any) -> None:
    page.locator("#p-text h2").click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    assert page.locator("#at-token").inner_text().startswith("14 ")
    assert page.locator("#at-layer").inner_text().startswith("1 ")
    assert page.locator("#p-text .tok.current .txt").inner_text() == "·sky"
    page.locator("#p-sampling .big", has_text="·sky").wait_for(timeout=10_000)


def test_shared_blocks_the_fork_and_drafts(page: Any) -> None:
    page.evaluate("() => document.querySelector('pl-page').move({step: 2})")
    settle(page)
    assert page.locator("#p-kv .block.shared").count() == 2
    assert "parts at token 8" in page.locator("#p-kv .tree").inner_text()
    page.evaluate("() => document.querySelector('pl-page').move({request: 'second'})")
    page.locator("#p-spec").scroll_into_view_if_needed()
    page.wait_for_selector("#p-spec .cand.no")
    assert page.locator("#p-spec .cand.ok").count() == 1
    assert page.locator("#p-spec .cand.no").count() == 1


def test_what_if_runs_the_sampler_again(page: Any) -> None:
    page.locator("#p-sampling .whatif summary").click()
    page.locator('#p-sampling input[aria-label="top_k"]').fill("1")
    table = page.locator("#p-sampling .whatif table")
    assert "100 %" in table.locator("tbody tr").first.inner_text()
    assert table.locator("s").count() == 9


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(watched: Watched, page: Any, theme: str) -> None:
    page.evaluate(f"() => document.querySelector('pl-page').applyTheme('{theme}')")
    page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert watched.violations() == []


def test_chinese_is_complete_and_remembered(page: Any) -> None:
    page.locator("#language").click()
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    assert page.locator("#p-sampling h2").inner_text().endswith("采样")
    found = page.locator(".finding").inner_text()
    assert "近乎并列" in found
    assert "前两个候选几乎并列" in found
    assert of("finding")[0]["explain"] in found
    page.reload()
    page.wait_for_selector("body[data-ready]")
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    page.locator("#language").click()
