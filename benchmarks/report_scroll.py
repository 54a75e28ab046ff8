"""How smoothly a report scrolls and steps, and how large it is: `python -m benchmarks.report_scroll`.

A request of 2,000 tokens (500 of the prompt) is traced at level 2 and opened in Chromium. The page is scrolled from its
top to its end and back by the mouse wheel while every frame is timed, then the cursor steps through 100 tokens. A
second report is of 512 tokens at level 3. Prints JSON as its last line. Needs playwright and a Chromium. Each is done
`--rounds` times and the best round counts: others on the machine only ever make frames longer.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pellucid import LLM, SamplingParams
from pellucid.glass.report import write_report

PROMPT_TOKENS = 500
TIMER = """() => {
  window.frames_ = [];
  let last = performance.now();
  const tick = (now) => {
    window.frames_.push(now - last);
    last = now;
    if (!window.done_) requestAnimationFrame(tick);
  };
  window.done_ = false;
  requestAnimationFrame(tick);
}"""


def trace(llm: LLM, num_tokens: int, level: int) -> list[dict[str, Any]]:
    """A request with so many tokens, prompt and answer together."""
    num_prompt = min(PROMPT_TOKENS, num_tokens // 4)
    ids = llm.tokenizer.encode("A long story about a lighthouse, a storm and a ship. " * 60)[:num_prompt]
    params = SamplingParams(max_tokens=num_tokens - num_prompt, ignore_eos=True, temperature=0.8, top_p=0.95, seed=1)
    reader = llm.trace_reader(from_start=False)
    llm.generate([ids], params, trace_level=level)
    return [*reader.read(), reader.end()]


def frames(page: Any, act: Any) -> list[float]:
    """Milliseconds of every frame while something is done."""
    page.evaluate(TIMER)
    act(page)
    page.wait_for_timeout(300)
    found: list[float] = page.evaluate("() => { window.done_ = true; return window.frames_.slice(1); }")
    return found


def scroll(page: Any) -> None:
    height = page.evaluate("() => document.documentElement.scrollHeight")
    page.mouse.move(700, 450)
    for delta in (240, -240):
        for _ in range(height // 240 + 2):
            page.mouse.wheel(0, delta)
            page.wait_for_timeout(16)


def step(page: Any) -> None:
    page.locator("#p-text h2").click()
    for _ in range(100):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(30)


def measured(browser: Any, path: Path, rounds: int) -> dict[str, Any]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")
    page.wait_for_function("() => document.querySelector('pl-page').panels.every((one) => !one.isDirty)")
    page.evaluate("() => document.documentElement.style.scrollBehavior = 'auto'")
    found: dict[str, Any] = {}
    for name, act in (("scroll", scroll), ("step", step)):
        taken = [frames(page, act) for _ in range(rounds)]
        best = min(taken, key=max)
        found[f"{name}_longest_ms"] = round(max(best), 1)
        found[f"{name}_longest_ms_of_rounds"] = [round(max(one), 1) for one in taken]
        found[f"{name}_median_ms"] = round(sorted(best)[len(best) // 2], 1)
    page.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    from playwright.sync_api import sync_playwright

    llm = LLM(seed=0)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        small, long = Path(folder) / "512.html", Path(folder) / "long.html"
        sizes = {"report_512_level_3_bytes": write_report(trace(llm, 512, 3), small)}
        sizes["report_long_level_2_bytes"] = write_report(trace(llm, arguments.tokens, 2), long)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        found = measured(browser, long, arguments.rounds)
        browser.close()
    print(json.dumps({"tokens": arguments.tokens, **sizes, **found}))


if __name__ == "__main__":
    main()
