"""The playground in a real browser, on a server in this process."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from types import TracebackType
from typing import Any

import httpx
import pytest
from http_server import RunningServer, mock_engine
from watched import Watched


class PlaygroundServer(RunningServer):
    """Playwright keeps an event loop in this thread, so the server is closed in another one."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        closing = Thread(target=super().__exit__, args=(kind, error, trace))
        closing.start()
        closing.join()


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with PlaygroundServer(mock_engine()) as one:
        yield one


@pytest.fixture
def watched(browser: Any, running: RunningServer) -> Iterator[Watched]:
    one = Watched(browser, color_scheme="light")
    one.open(running.url + "/")
    yield one
    strangers = [
        url for url in one.addresses if not url.startswith((running.url, running.url.replace("http", "ws"), "data:"))
    ]
    assert strangers == []
    one.context.close()


def ask(page: Any, text: str) -> None:
    before = int(page.evaluate("() => document.body.dataset.answers || 0"))
    page.locator("#message").fill(text)
    page.locator("#send").click()
    page.wait_for_function("n => Number(document.body.dataset.answers || 0) > n", arg=before, timeout=30_000)


def test_an_answer_and_its_alternatives(watched: Watched, running: RunningServer) -> None:
    page = watched.page
    ask(page, "</script>‮ hello")
    words = page.locator(".turn.assistant .word")
    assert words.count() > 3
    said = "".join(words.all_inner_texts())
    strip = page.locator("#p-text .strip .tok")
    prompt = [{"role": "user", "content": "</script>‮ hello"}]
    ids = running.post("/tokenize", {"messages": prompt}).json()["tokens"]
    assert strip.count() == len(ids) + words.count()
    words.nth(2).click()
    choices = page.locator(".pop button")
    assert choices.count() > 1
    choices.nth(1).click()
    page.wait_for_function("() => Number(document.body.dataset.answers) > 1", timeout=30_000)
    turn = page.locator(".turn.assistant")
    assert turn.count() == 1
    assert "forked" in turn.inner_text()
    assert said[:2] == page.locator(".turn.assistant .words").inner_text()[:2]
    assert watched.complaints == []
    assert watched.violations() == []


def test_the_page_says_what_sampling_did(watched: Watched) -> None:
    page = watched.page
    ask(page, "again")
    assert page.locator("#p-sampling .stage").count() >= 1
    assert page.locator("#p-emission .big").inner_text().startswith("It stopped because")


def test_a_key_is_asked_for_and_kept_in_memory_only(browser: Any) -> None:
    with PlaygroundServer(mock_engine(), api_key=("secret",)) as running:
        watched = Watched(browser)
        page = watched.open(running.url + "/")
        assert page.locator("#send").is_disabled()
        page.locator("#key").fill("secret")
        page.locator("#key").press("Enter")
        page.wait_for_function("() => !document.querySelector('#send').disabled", timeout=30_000)
        ask(page, "hello")
        assert page.locator(".turn.assistant .word").count() > 0
        stored = page.evaluate("() => JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        assert "secret" not in stored
        watched.context.close()


def test_the_shell_is_open_its_data_are_not() -> None:
    with PlaygroundServer(mock_engine(), api_key=("secret",)) as running:
        for path in ("/", "/glass/playground.js", "/glass/style.css"):
            answer = running.get(path)
            assert answer.status_code == 200
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "unsafe" not in answer.headers["content-security-policy"]
        assert running.get("/v1/models").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://example.org"}, {"Origin": "null"}, {"Host": "example.org", "Origin": "http://example.org"}],
)
def test_pages_of_other_origins_change_nothing(running: RunningServer, headers: dict[str, str]) -> None:
    body = {"prompt": "a", "max_tokens": 1}
    answer: httpx.Response = running.post("/v1/completions", body, headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "foreign_origin"
    own = {"Origin": running.url}
    assert running.post("/v1/completions", body, headers=own).status_code == 200
