"""The page of a sweep in a real browser: its values are the JSON's, it fetches nothing, texts stay text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hostile_sweep import hostile_sweep
from watched import Watched

from pellucid.glass.sweep.page import write_page

SWEEP = hostile_sweep(interrupted=True)


@pytest.fixture(scope="module")
def watched(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    path = tmp_path_factory.mktemp("sweep") / "sweep.html"
    write_page(SWEEP, path)
    one = Watched(browser, color_scheme="light")
    one.open(path.as_uri())
    yield one
    one.context.close()


@pytest.fixture
def page(watched: Watched) -> Iterator[Any]:
    watched.page.evaluate(
        "() => document.querySelector('pl-sweep').set({prompt: 0, pinned: 0, sort: null, isDown: false, mark: 'diff'})"
    )
    yield watched.page
    assert watched.complaints == []
    assert [url for url in watched.addresses if not url.startswith("file:")] == []


def columns(page: Any) -> list[list[str]]:
    rows = page.locator("#numbers tbody tr").all()
    return [row.locator("th, td").all_inner_texts() for row in rows]


def test_the_table_has_the_measures(page: Any) -> None:
    rows = columns(page)
    assert [row[0] for row in rows] == ["1", "2", "3"]
    for row, cell in zip(rows, SWEEP.of_prompt(0), strict=True):
        assert row[3:] == [
            str(cell.num_tokens),
            f"{cell.rep_4:.3f}",
            str(cell.longest_repeat),
            f"{cell.distinct_1:.3f}",
            f"{cell.distinct_2:.3f}",
            f"{cell.mean_logprob:.3f}",
            f"{cell.entropy:.3f}",
            f"{cell.seconds:.2f} s",
            {"stop": "itself", "length": "length"}[str(cell.finish_reason)],
        ]
    assert [row[1:3] for row in rows] == [["0", "–"], ["1", "1"], ["1", "2"]]
    assert "interrupted" in page.locator(".note.warn").inner_text()


def test_texts_are_text(page: Any) -> None:
    said = page.locator("#texts .said").all_inner_texts()
    assert said[0] == " one two three four five six"
    assert said[1] == " one two</script><img src=x onerror=alert(1)> three four five"
    assert said[2] == "⟨U+202E⟩evil⟨U+001B⟩[2J👩 one two"
    assert page.locator("img, b b, #prompt b").count() == 0
    assert "⟨U+0000⟩" in page.locator("#prompt pre").inner_text()


def test_what_differs_from_the_pinned_one_is_marked(page: Any) -> None:
    marked = page.locator("#texts .card").nth(1).locator("mark").all_inner_texts()
    assert marked == ["</script><img src=x onerror=alert(1)>"]
    assert page.locator("#texts .card").nth(0).locator("mark").count() == 0
    page.locator('#numbers [data-key="pin-1"]').focus()
    page.keyboard.press("Enter")
    assert page.locator('#numbers [data-key="pin-1"]').get_attribute("aria-pressed") == "true"
    assert page.evaluate("() => document.activeElement.dataset.key") == "pin-1"
    assert page.locator('[role="status"]').inner_text() == "pinned: 2"
    assert page.locator("#texts .card").nth(1).locator("mark").count() == 0
    assert page.locator("#texts .card").nth(0).locator("mark").all_inner_texts() == [" six"]


def test_a_title_sorts(page: Any) -> None:
    button = page.locator('#numbers [data-key="sort-mean_logprob"]')
    button.focus()
    page.keyboard.press("Enter")
    order = sorted(SWEEP.of_prompt(0), key=lambda cell: -(cell.mean_logprob or 0.0))
    assert [row[0] for row in columns(page)] == [str(cell.setting + 1) for cell in order]
    assert page.locator('#numbers th[aria-sort="descending"]').inner_text().startswith("mean logprob")
    page.keyboard.press("Enter")
    assert [row[0] for row in columns(page)] == [str(cell.setting + 1) for cell in reversed(order)]
    assert page.locator("#texts .card .num").first.inner_text() == columns(page)[0][0]


def test_the_map_places_cells_by_their_numbers(page: Any) -> None:
    x = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('#map .dot')].map((dot) =>
            [dot.querySelector('text').textContent, dot.transform.baseVal[0].matrix.e]))"""
    )
    by_logprob = sorted(SWEEP.of_prompt(0), key=lambda cell: cell.mean_logprob or 0.0)
    places = [x[str(cell.setting + 1)] for cell in by_logprob]
    assert places == sorted(places)
    low, middle, high = (cell.mean_logprob or 0.0 for cell in by_logprob)
    assert (places[1] - places[0]) / (places[2] - places[0]) == pytest.approx((middle - low) / (high - low), abs=0.01)
    page.locator("#map .dot").last.click()
    page.locator("#map .dot", has_text="3").click()
    assert page.locator('#numbers [data-key="pin-2"]').get_attribute("aria-pressed") == "true"


def test_the_other_prompt_and_what_failed_in_it(page: Any) -> None:
    page.locator('#prompt select[data-key="prompt"]').select_option("1")
    assert page.locator("#texts .said").all_inner_texts() == ["你好你好你好", "the request failed", " loop" * 12]
    assert page.locator("#texts .card").nth(1).locator(".sub").first.inner_text().count("error") == 1


def test_shades_by_logprob_and_entropy(page: Any) -> None:
    page.locator('#texts select[data-key="mark"]').select_option("logprob")
    spans = page.locator("#texts .card").nth(0).locator(".shaded")
    shades = [float(span.get_attribute("style").split(":")[1].rstrip(";")) for span in spans.all()]
    assert shades == pytest.approx([0.25 * (k + 1) / 6 for k in range(6)], abs=1e-6)
    page.locator('#texts select[data-key="mark"]').select_option("entropy")
    assert page.locator("#texts .card").nth(0).locator(".shaded").count() == 6


def test_means_of_settings(page: Any) -> None:
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#groups tbody tr").all()]
    groups = list(SWEEP.groups())
    assert [row[1] for row in rows] == [str(group.num_cells) for group in groups]
    assert [row[7] for row in rows] == [f"{group.means['mean_logprob']:.3f}" for group in groups]
    assert rows[1][10] == f"{groups[1].distinct_2_together:.3f}"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("mark", ["diff", "logprob"])
def test_axe_finds_nothing(watched: Watched, page: Any, theme: str, mark: str) -> None:
    page.evaluate(f"() => document.querySelector('pl-sweep').applyTheme('{theme}')")
    page.evaluate(f"() => document.querySelector('pl-sweep').set({{mark: '{mark}', sort: 'entropy'}})")
    page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert watched.violations() == []


def test_chinese_is_complete(page: Any) -> None:
    keys = page.evaluate(
        "() => document.querySelector('pl-sweep').innerText.match(/(sweep|m|d|end|setting)\\.[a-z_0-9]+/g)"
    )
    assert keys is None
    page.locator("#language").click()
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    assert page.locator("#texts h2").inner_text() == "文本"
    page.locator("#language").click()
