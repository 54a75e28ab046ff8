"""The playground in a real browser, on a server in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_server import RunningServer, mock_engine
from playground_server import (
    PlaygroundServer,
    answers,
    ask,
    ids_of,
    in_thread,
    of_models,
    on_port,
    set_option,
    wait_for_answer,
)
from watched import Watched


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with PlaygroundServer(mock_engine()) as one:
        yield one


@pytest.fixture(scope="module")
def slow() -> Iterator[RunningServer]:
    """30 ms a step, so that answers last while something is done to them."""
    with PlaygroundServer(mock_engine(step_seconds=0.03)) as one:
        yield one


def opened(browser: Any, server: RunningServer) -> Iterator[Watched]:
    one = Watched(browser, color_scheme="light")
    one.open(server.url + "/")
    yield one
    assert one.strangers(server.url) == []
    one.context.close()


@pytest.fixture
def watched(browser: Any, running: RunningServer) -> Iterator[Watched]:
    yield from opened(browser, running)


@pytest.fixture
def unhurried(browser: Any, slow: RunningServer) -> Iterator[Watched]:
    yield from opened(browser, slow)


def body_of(request: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.post_data)
    return found


def test_an_answer_is_the_tokens_of_its_trace(watched: Watched, running: RunningServer) -> None:
    page = watched.page
    text = "</script>‮ hello"
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, text)
    assert body_of(sent.value)["trace"] == 2
    prompt = running.post("/tokenize", {"messages": [{"role": "user", "content": text}]}).json()["tokens"]
    shown = ids_of(page)
    assert shown[: len(prompt)] == prompt
    request = page.locator("#p-timeline .legend span[title]").first.get_attribute("title")
    events = [json.loads(line) for line in running.get(f"/v1/traces/{request}").text.splitlines()]
    assert shown[len(prompt) :] == [event["id"] for event in events if event["type"] == "sample"]
    assert page.locator("#p-text h3", has_text="continue").count() == 1
    assert page.locator("#p-emission .big").inner_text().startswith("It stopped because")
    for panel in ("timeline", "batch", "kv", "memory"):
        assert page.locator(f"#p-{panel} svg, #p-{panel} .blocks, #p-{panel} .stacked").count() > 0
    assert watched.complaints == []
    assert watched.violations() == []


def test_a_fork_goes_on_with_the_very_ids(watched: Watched) -> None:
    page = watched.page
    ask(page, "hello", temperature=0)
    before = ids_of(page)
    samples = page.locator("#p-text .strip .generated").count()
    prompt = before[: len(before) - samples]
    word = page.locator(".turn.assistant .word").nth(3)
    place = int(word.get_attribute("data-place"))
    word.click()
    choice = page.locator(".pop button.cand").nth(1)
    shown = choice.locator("bdi").inner_text()
    done = answers(page)
    with page.expect_request("**/v1/completions") as sent:
        choice.click()
    wait_for_answer(page, done)
    asked = body_of(sent.value)["prompt"]
    assert asked[:-1] == before[: len(prompt) + place]
    assert asked[-1] != before[len(prompt) + place]
    assert ids_of(page)[: len(asked)] == asked
    assert page.locator(".turn.assistant").count() == 1
    assert "forked" in page.locator(".turn.assistant").inner_text()
    assert page.locator("#p-text .strip .tok").nth(len(asked) - 1).locator(".txt").inner_text() == shown
    assert watched.complaints == []


def test_an_alternative_beside_the_strip_forks_too(watched: Watched) -> None:
    page = watched.page
    ask(page, "again", temperature=0)
    page.keyboard.press("Escape")
    page.locator("#p-text .strip .generated").nth(2).click()
    done = answers(page)
    with page.expect_request("**/v1/completions"):
        page.locator("#p-text .alternatives button").first.click()
    wait_for_answer(page, done)
    assert page.locator(".turn.user").count() == 1
    assert "forked" in page.locator(".turn.assistant").inner_text()


def test_keys_alone_ask_choose_and_fork(watched: Watched) -> None:
    page = watched.page
    page.locator("#message").focus()
    page.keyboard.type("hi")
    done = answers(page)
    page.keyboard.press("Enter")
    wait_for_answer(page, done)
    for _ in range(3):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("() => document.activeElement.classList.contains('word')"):
            break
    first = page.evaluate("() => document.activeElement.dataset.place")
    page.keyboard.press("ArrowRight")
    second = page.evaluate("() => document.activeElement.dataset.place")
    assert int(second) > int(first)
    page.keyboard.press("Enter")
    assert page.locator(".pop").count() == 1
    page.keyboard.press("Escape")
    assert page.locator(".pop").count() == 0
    assert page.evaluate("() => document.activeElement.dataset.place") == second
    page.keyboard.press("Enter")
    done = answers(page)
    page.keyboard.press("Enter")
    wait_for_answer(page, done)
    assert "forked" in page.locator(".turn.assistant").inner_text()


def test_without_a_trace_the_page_goes_by_logprobs_and_says_so(browser: Any) -> None:
    with PlaygroundServer(mock_engine(), trace_level=0) as server:
        watched = Watched(browser)
        page = watched.open(server.url + "/")
        ask(page, "hello", seed=14)
        assert "gives out no traces" in page.locator(".status").inner_text()
        assert page.locator("#p-sampling .stage").count() == 1
        page.locator(".turn.assistant .word").nth(1).click()
        done = answers(page)
        page.locator(".pop button.cand").first.click()
        wait_for_answer(page, done)
        assert "forked by text" in page.locator(".turn.assistant .who").inner_text()
        assert watched.complaints == []
        assert watched.violations() == []
        watched.context.close()


def test_other_clients_are_lanes_without_texts(unhurried: Watched, slow: RunningServer) -> None:
    page = unhurried.page
    secret = "xyzzy-of-somebody-else"
    body = {"prompt": secret, "max_tokens": 300, "ignore_eos": True, "trace": 2}
    other = in_thread(lambda: slow.post("/v1/completions", body))
    ask(page, "hello", max_tokens=20)
    other.join()
    page.wait_for_function("() => document.querySelector('#p-timeline').innerText.includes('other-1')", timeout=10_000)
    assert page.locator("#p-timeline .lane.other").count() == 1
    assert "other clients' requests" in page.locator("#p-timeline").inner_text()
    assert page.locator(".cursor select option").count() == 1
    assert secret not in page.content()
    assert unhurried.complaints == []


def test_with_playground_all_they_are_shown(browser: Any) -> None:
    with PlaygroundServer(mock_engine(), playground_all=True) as server:
        watched = Watched(browser)
        page = watched.open(server.url + "/")
        page.wait_for_function("() => document.querySelector('.status').innerText.includes('Live')")
        answer = server.post("/v1/completions", {"prompt": "xyzzy", "max_tokens": 4, "trace": 2}).json()
        page.wait_for_selector("#p-text .strip .generated", timeout=10_000)
        assert page.locator(".cursor select option").get_attribute("value") == answer["id"]
        assert "".join(page.locator("#p-text .strip .tok:not(.generated) .txt").all_inner_texts()).endswith("xyzzy")
        watched.context.close()


def test_an_answer_can_be_stopped(unhurried: Watched) -> None:
    page = unhurried.page
    set_option(page, "max_tokens", 1000)
    set_option(page, "seed", 14)  # 336 tokens
    page.locator("#message").fill("a long one")
    page.locator("#send").click()
    page.wait_for_selector(".turn.assistant .word")
    assert page.locator("#clear").is_disabled()
    before = answers(page)
    page.locator("#stop").click()
    wait_for_answer(page, before)
    assert "You stopped it." in page.locator(".turn.assistant .meta").inner_text()
    page.locator("#p-emission .big", has_text="client left").wait_for(timeout=10_000)
    assert unhurried.complaints == []


def test_a_refusal_is_one_sentence(watched: Watched) -> None:
    page = watched.page
    ask(page, "x" * 5000)
    said = page.locator(".turn.assistant .meta").inner_text()
    assert said.startswith("It failed: ")
    assert "4096" in said
    ask(page, "hello")
    assert page.locator(".turn.assistant .word").count() == 0  # the conversation is still too long
    page.locator("#clear").click()
    ask(page, "hello")
    assert page.locator(".turn.assistant .word").count() > 0


def test_the_page_outlives_its_server(browser: Any) -> None:
    watched = Watched(browser)
    with PlaygroundServer(mock_engine()) as server:
        page = watched.open(server.url + "/")
        ask(page, "hello")
        port = server.port
    page.wait_for_function("() => document.querySelector('.status').innerText.includes('trying again')", timeout=10_000)
    ask(page, "anybody?")
    assert page.locator(".turn.assistant .meta").last.inner_text() == "It failed: the server does not answer"
    with on_port(port):
        page.wait_for_function("() => document.querySelector('.status').innerText.startsWith('Live')", timeout=15_000)
        page.locator("#clear").click()
        ask(page, "hello")
        assert page.locator(".turn.assistant .word").count() > 0
        assert page.locator(".cursor select option").count() == 1
        watched.context.close()


def test_several_models(browser: Any) -> None:
    with of_models("one", "two") as server:
        watched = Watched(browser)
        page = watched.open(server.url + "/")
        ask(page, "hello", max_tokens=10)
        page.locator("#model").select_option("two")
        page.locator("#clear").click()
        ask(page, "hello", max_tokens=10)
        assert page.locator(".turn.assistant .word").count() > 0
        page.wait_for_function("() => document.querySelector('.model').innerText.startsWith('two')", timeout=10_000)
        assert page.locator(".cursor select option").count() == 1
        assert page.locator("#p-emission .big").inner_text().startswith("It stopped because")
        watched.context.close()


def test_two_requests_compared(watched: Watched) -> None:
    page = watched.page
    ask(page, "hello", temperature=0, max_tokens=12, seed=5)
    page.locator("#pin").click()
    assert page.locator("#difference").count() == 0
    page.locator("#clear").click()
    ask(page, "hello", max_tokens=9)
    assert "the parameter max_tokens" in page.locator("#difference").inner_text()
    values = page.locator("#compare .values td bdi").all_inner_texts()
    assert values == ["9", "12"]
    assert page.locator("#token-difference").inner_text() == "No token differs."
    page.locator("#clear").click()
    ask(page, "hello", temperature=1.5, seed=6)
    assert "the parameter temperature" in page.locator("#difference").inner_text()
    page.locator("#jump-token").click()
    place = int(page.locator("#at-token").inner_text().split()[0])
    assert f"up to position {place}." in page.locator("#token-difference").inner_text()


def test_what_is_typed_is_computed_ahead(watched: Watched) -> None:
    page = watched.page
    text = "A message of some length, so that whole blocks of its prompt are known before it is sent."
    page.locator("#message").press_sequentially(text)
    page.wait_for_function("() => document.querySelector('#hint').innerText.startsWith('While you typed')")
    before = answers(page)
    page.locator("#message").press("Enter")
    wait_for_answer(page, before)
    assert "already computed" in page.locator(".turn.assistant .meta").inner_text()
    assert page.locator("#p-text .strip .cached").count() >= 32


def test_a_trace_is_saved_as_a_file(watched: Watched, tmp_path: Path) -> None:
    page = watched.page
    ask(page, "hello")
    with page.expect_download() as download:
        page.locator("#save").click()
    path = tmp_path / "t.jsonl"
    download.value.save_as(path)
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert events[0]["type"] == "header"
    assert [event["type"] for event in events].count("finish") == 1
    page.locator("#other-file").set_input_files(path)
    page.wait_for_selector("#difference")
    assert "No difference" in page.locator("#difference").inner_text()


def test_a_key_is_asked_for_and_kept_in_memory_only(browser: Any) -> None:
    with PlaygroundServer(mock_engine(), api_key=("secret",)) as running:
        watched = Watched(browser)
        page = watched.open(running.url + "/")
        assert page.locator("#send").is_disabled()
        page.locator("#key").fill("wrong")
        page.locator("#key").press("Enter")
        page.wait_for_function("() => document.querySelector('.status').innerText === 'This key is wrong.'")
        page.locator("#key").fill("secret")
        page.locator("#key").press("Enter")
        page.wait_for_function("() => !document.querySelector('#send').disabled", timeout=30_000)
        ask(page, "hello")
        assert page.locator("#p-text .strip .generated").count() > 0
        page.locator("#message").press_sequentially("a text that is long enough to fill a block of the cache")
        page.wait_for_function("() => document.querySelector('#hint').innerText.startsWith('While you typed')")
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
        for path in ("/v1/models", "/v1/traces/live", "/v1/traces/chatcmpl-1"):
            assert running.get(path).status_code == 401


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
