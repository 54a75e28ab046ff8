"""The lessons in a real browser: by keyboard, in both languages, and nothing is told before it was asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from watched import Watched

LESSONS = Path(__file__).parent.parent.parent / "docs" / "lessons"
FACTS = {
    "tokens": ["10 tokens instead of 3", "#19556 and #38699", "became 7 ordinary tokens"],
    "sampling": ["of them once", "u = 0.6254", "It falls on"],
    "mask": ["Only position 9 changed", "of its weight is on ·cat"],
    "cache": ["is the largest multiple of 16 in", "are the same bits"],
    "stopping": ["(#2) had 77.3 % after the full stop", "The 5 bytes of Paris are held back"],
}
"""What each lesson says at its end, with numbers of its run."""


@pytest.fixture(scope="module", params=tuple(FACTS))
def watched(request: pytest.FixtureRequest, browser: Any) -> Iterator[Watched]:
    one = Watched(browser, color_scheme="light")
    one.open((LESSONS / f"{request.param}.html").as_uri())
    one.name = request.param  # type: ignore[attr-defined]
    yield one
    one.context.close()


@pytest.fixture
def page(watched: Watched) -> Iterator[Any]:
    """A lesson at its beginning, in English."""
    if watched.page.locator("#again").count():
        watched.page.click("#again")
    if watched.page.locator("html").get_attribute("lang") != "en":
        watched.page.click("#language")
    yield watched.page
    assert watched.complaints == []
    assert [url for url in watched.addresses if not url.startswith("file:")] == []


def screens(page: Any) -> int:
    return int(re.findall(r"\d+", page.inner_text("#progress"))[1])


def test_by_keyboard_alone(page: Any, watched: Watched) -> None:
    """A digit, Enter, and the next question is there; never earlier."""
    total = screens(page)
    for number in range(1, total + 1):
        assert page.locator("section.screen form").count() == number
        assert page.locator(".verdict").count() == number - 1
        page.keyboard.press("1")
        page.keyboard.press("Enter")
        assert page.evaluate("() => document.activeElement.className").startswith("verdict")
    assert page.inner_text("#progress") == f"{total} of {total} answered"
    right = page.locator(".verdict.yes").count()
    assert page.inner_text("#score") == f"{right} of {total} predictions came true."
    assert right + page.locator(".verdict.no").count() == total
    assert page.locator(".choice.true").count() == total
    text = page.inner_text("main").replace("\xa0", " ")
    for fact in FACTS[watched.name]:  # type: ignore[attr-defined]
        assert fact.lower() in " ".join(text.split()).lower()


def test_a_right_prediction_is_told(page: Any) -> None:
    page.click("#show-all")
    truths = [int(one.inner_text()) for one in page.locator(".choice.true kbd").all()]
    page.click("#again")
    for truth in truths:
        page.keyboard.press(str(truth))
        page.keyboard.press("Enter")
    assert page.locator(".verdict.yes").count() == len(truths)
    assert page.inner_text("#score") == f"{len(truths)} of {len(truths)} predictions came true."


def test_the_answer_is_not_always_in_one_place(page: Any) -> None:
    page.click("#show-all")
    truths = {one.inner_text() for one in page.locator(".choice.true kbd").all()}
    assert len(truths) > 1


def test_no_answer_is_no_prediction(page: Any) -> None:
    page.click("section.screen button.primary")  # the browser asks for a choice
    assert page.locator(".verdict").count() == 0
    page.keyboard.press("9")  # there is no ninth
    assert page.locator("input:checked").count() == 0


def test_in_chinese_what_was_answered_stays(page: Any) -> None:
    page.keyboard.press("1")
    page.keyboard.press("Enter")
    page.click("#language")
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    assert page.locator(".verdict").count() == 1
    page.click("#show-all")
    text = page.inner_text("main")
    assert "{" not in text
    for english in ("Reveal", "Why", "measured", "Predict", "The run shows"):
        assert english not in text


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(watched: Watched, page: Any, theme: str) -> None:
    if page.evaluate("() => document.documentElement.dataset.theme") != theme:
        page.click("#theme")
    page.keyboard.press("1")
    page.keyboard.press("Enter")
    page.click("#show-all")
    assert watched.violations() == []


def test_it_fits_a_telephone(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.click("#show-all")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 900})
