"""A server under the playground's tests, and what a hand does in its page."""

from __future__ import annotations

import threading
from threading import Thread
from types import TracebackType
from typing import Any

import http_server
from http_server import RunningServer, mock_engine
from watched import settle

from pellucid.engine.async_llm import AsyncLLM
from pellucid.server.models import Model, ModelPool


class PlaygroundServer(RunningServer):
    """Playwright keeps an event loop in this thread, so the server is closed in another one."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        closing = Thread(target=super().__exit__, args=(kind, error, trace))
        closing.start()
        closing.join()


def on_port(port: int, **settings: Any) -> PlaygroundServer:
    """A server where another one was."""
    bind = http_server.bind
    http_server.bind = lambda host, _: bind(host, port)
    try:
        return PlaygroundServer(mock_engine(), **settings)
    finally:
        http_server.bind = bind


def of_models(*names: str) -> PlaygroundServer:
    """The first is loaded; all have the mock model."""
    engines = {name: mock_engine(model=name) for name in names}
    size = mock_engine().storage.nbytes
    pool = ModelPool([Model(name, lambda name=name: AsyncLLM(engines[name]), lambda: size) for name in names], None)
    return PlaygroundServer(engines[names[0]], models=pool)


def ask(page: Any, text: str, **options: Any) -> None:
    """Write, send, and wait for the whole answer."""
    before = answers(page)
    for name, value in options.items():
        set_option(page, name, value)
    page.locator("#message").fill(text)
    page.locator("#send").click()
    wait_for_answer(page, before)


def answers(page: Any) -> int:
    return int(page.evaluate("() => document.body.dataset.answers || 0"))


def wait_for_answer(page: Any, before: int) -> None:
    page.wait_for_function("n => Number(document.body.dataset.answers || 0) > n", arg=before, timeout=30_000)
    settle(page)


def set_option(page: Any, name: str, value: float) -> None:
    box = page.locator(".chat details")
    if box.get_attribute("open") is None:
        box.locator("summary").click()
    label = "Seed" if name == "seed" else name
    page.locator(f'.chat input[aria-label="{label}"]').fill(str(value))


def texts_of(strip: Any) -> list[str]:
    return [str(text) for text in strip.locator(".tok .txt").all_inner_texts()]


def ids_of(page: Any) -> list[int]:
    """The ids in the strip: prompt and answer of the request at the cursor."""
    return [int(text) for text in page.locator("#p-text .strip .tok .id").all_inner_texts()]


def in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
