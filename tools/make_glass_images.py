"""The pictures of docs/glass.md, from a real run: `python tools/make_glass_images.py`.

Needs playwright, Pillow and a Chromium, and smollm2:135m in the model cache. Five requests with one beginning share
an engine whose KV cache is too small for them: prefix hits, waiting, preemption, drafts, a stop string. Written to
docs/images/glass-*.png.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from pellucid import LLM, SamplingParams
from pellucid.glass.report import write_report

IMAGES = Path(__file__).parent.parent / "docs" / "images"
PORT = 8739
MOST_BYTES = 150_000
"""A larger picture is kept in 256 colours."""
SYSTEM = "You are a helpful assistant who answers in one short sentence. Be kind, be exact, and say so when unsure."
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("What is the capital of France?", {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 1}),
    ("Repeat: the quick brown fox jumps over the lazy dog.", {"temperature": 0, "max_tokens": 90, "ignore_eos": True}),
    ("Say hello 👩‍🚀 in French.", {"temperature": 0.9, "min_p": 0.05, "repetition_penalty": 1.1, "seed": 3}),
    ("Count from one to ten in words.", {"temperature": 0, "stop": ["ten"]}),
    ("Write a long story about a lighthouse.", {"temperature": 1, "seed": 4, "max_tokens": 90, "ignore_eos": True}),
]
BLOCK_BYTES = 16 * 23_760
PANELS = {
    "text": ("request-3", 70), "positions": ("request-3", 70), "layers": ("request-3", 60),
    "sampling": ("request-3", 70), "emission": ("request-4", 0),
    "timeline": ("request-5", 70), "batch": ("request-5", 70), "kv": ("request-5", 70),
    "spec": ("request-2", 70), "memory": ("request-5", 70),
}  # fmt: skip
"""Each panel with the request and the token that the cursor is at."""


def run(level: int) -> list[dict[str, Any]]:
    """The events of the five requests."""
    llm = LLM(
        max_num_batched_tokens=96,
        max_num_seqs=4,
        kv_cache_memory_bytes=14 * BLOCK_BYTES,
        max_model_len=192,
        speculative_method="ngram",
        seed=0,
    )
    messages = [[{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}] for text, _ in REQUESTS]
    params = [SamplingParams(**{"max_tokens": 40, **options}) for _, options in REQUESTS]
    llm.chat(messages[0], SamplingParams(max_tokens=2), cache_salt="warm-up", trace_level=level)
    reader = llm.trace_reader(from_start=False)
    llm.chat(messages, params, trace_level=level)
    return [*reader.read(), reader.end()]


def report_images(browser: Any, path: Path) -> None:
    """A picture of each panel, of the summary and of a comparison."""
    page = browser.new_page(viewport={"width": 1180, "height": 2400}, locale="en-US", color_scheme="light")
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")
    # what sticks to the window would lie over the pictures
    page.evaluate("() => { document.querySelector('.cursor').style.position = 'static'; }")
    names = page.evaluate("() => document.querySelector('pl-page').trace.keys")
    first = int(names[0].rpartition("-")[2])
    for panel, (request, token) in PANELS.items():
        name = f"request-{first + int(request.rpartition('-')[2]) - 1}"
        at(page, name, token)
        save(page.locator(f"#p-{panel}"), panel)
        if panel == "sampling":
            save(page.locator("pl-summary"), "summary")
    at(page, names[0], 60)
    page.locator("#pin").click()
    at(page, names[2], 60)
    save(page.locator("pl-compare"), "compare")
    page.close()


def at(page: Any, request: str, token: int) -> None:
    """Move the cursor, and wait until every panel has followed."""
    place = {"request": request, "token": token, "layer": 20}
    page.evaluate("(to) => document.querySelector('pl-page').move(to)", place)
    page.wait_for_function("() => document.querySelector('pl-page').panels.every((one) => !one.isDirty)")


def playground_images(browser: Any) -> None:
    """The page at `/` with an answer of which a token was clicked; the same in Chinese, dark."""
    url = f"http://127.0.0.1:{PORT}/"
    command = [sys.executable, "-m", "pellucid", "serve", "smollm2:135m", "--port", str(PORT), "--no-access-log"]
    with subprocess.Popen(command) as server:
        try:
            wait_for(f"{url}ready")
            for name, locale, scheme in (("playground", "en-US", "light"), ("playground-dark", "zh-CN", "dark")):
                page = browser.new_page(viewport={"width": 1180, "height": 860}, locale=locale, color_scheme=scheme)
                page.goto(url)
                page.wait_for_selector("body[data-ready]")
                page.locator(".chat summary").click()
                page.locator("#seed").fill("7")
                page.locator(".chat summary").click()
                page.locator("#message").press_sequentially("Name one thing that a lighthouse keeper does at night.")
                page.wait_for_timeout(1500)
                page.locator("#message").press("Enter")
                page.wait_for_function("() => Number(document.body.dataset.answers || 0) > 0", timeout=60_000)
                page.locator(".turn.assistant .word.unsure").first.click()
                page.wait_for_timeout(500)
                save(page, name)
                page.close()
        finally:
            server.terminate()


def wait_for(url: str) -> None:
    """Until the server takes requests."""
    for _ in range(300):
        try:
            urllib.request.urlopen(url)
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise TimeoutError(f"{url} did not answer")


def save(what: Any, name: str) -> None:
    path = IMAGES / f"glass-{name}.png"
    what.screenshot(path=path)
    if path.stat().st_size > MOST_BYTES:
        from PIL import Image  # only a picture that is too large needs it

        with Image.open(path) as image:
            few = image.convert("RGB").quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        path = Path(folder) / "report.html"
        write_report(run(3), path)
        report_images(browser, path)
        playground_images(browser)
        browser.close()


if __name__ == "__main__":
    main()
