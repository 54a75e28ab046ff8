"""The what-if sliders against the draw over a whole vocabulary, of which the page knows the first ten tokens."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sample_trace import PROMPT, b64, sample_trace
from watched import Watched

from pellucid.glass.report import write_report

VOCAB, TOP = 500, 10
OWN: dict[str, dict[str, float]] = {
    "first": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0},
    "second": {"temperature": 1.3, "top_k": 0, "top_p": 1, "min_p": 0.02},
}
NUM = 5


def logits_of(req: str, place: int) -> Any:
    return np.random.default_rng([req == "second", place]).normal(0, 1.6 + 0.4 * place, VOCAB)


def u_of(req: str, place: int) -> float:
    return float(np.random.default_rng([7, req == "second", place]).random())


def stages_of(logits: Any, temperature: float, min_p: float, top_k: float, top_p: float) -> list[tuple[str, Any, Any]]:
    """[(name, parameter, probabilities of all)], each stage on what the one before left."""

    def shares(x: Any) -> Any:
        e = np.exp(x - x.max())
        return e / e.sum()

    raw = shares(logits)
    p = shares(logits / temperature) if temperature else (np.arange(len(logits)) == logits.argmax()).astype(float)
    stages = [("raw", None, raw), ("temperature", temperature, p)]
    if min_p:
        p = np.where(p >= min_p * p.max(), p, 0)
        stages.append(("min_p", min_p, p / p.sum()))
    if top_k:
        p = p / p.sum()
        p = np.where(np.argsort(np.argsort(-logits)) < top_k, p, 0)
        stages.append(("top_k", top_k, p / p.sum()))
    if top_p < 1:
        p = p / p.sum()
        order = np.argsort(-logits)
        p[order[np.cumsum(p[order]) - p[order] >= top_p]] = 0
        stages.append(("top_p", top_p, p / p.sum()))
    return stages


def drawn(logits: Any, p: Any, u: float) -> int:
    order = np.argsort(-logits)
    return int(order[np.searchsorted(np.cumsum(p[order]), u, side="right")])


def trace() -> list[dict[str, Any]]:
    events = copy.deepcopy(sample_trace())
    for event in events:
        if event["type"] == "request":
            event["params"] = {k: {"value": v, "source": "request"} for k, v in OWN[event["req"]].items()}
        if event["type"] != "sample":
            continue
        req, place = event["req"], event["i"] - len(PROMPT)
        logits, u = logits_of(req, place), u_of(req, place)
        found = stages_of(logits, **OWN[req])
        token = drawn(logits, found[-1][2], u)
        event |= {"id": token, "bytes_b64": b64(f"<{token}>".encode()), "rng": {**event["rng"], "u": u}}
        event["stages"] = [_stage(logits, token, *one) for one in found]
    return events


def _stage(logits: Any, token: int, name: str, param: Any, p: Any) -> dict[str, Any]:
    order = [int(one) for one in np.argsort(-logits) if p[one] > 0]
    top = [[one, float(logits[one]), float(p[one])] for one in order[:TOP]]
    chosen = {"logit": float(logits[token]), "p": float(p[token]), "rank": order.index(token) + 1}
    entropy = -float(sum(x * math.log(x) for x in p if x > 0))
    return {"name": name, "param": param, "alive": len(order), "entropy": entropy, "mass_removed": 0.0, "top": top, "chosen": chosen}  # fmt: skip # noqa: E501


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("what_if") / "report.html"
    write_report(trace(), path, token_bytes=lambda token: f"<{token}>".encode())
    watched = Watched(browser)
    watched.open(path.as_uri())
    yield watched.page
    assert watched.complaints == []
    watched.context.close()


def at(page: Any, req: str, place: int) -> None:
    page.evaluate(
        "([request, token]) => { const page = document.querySelector('pl-page'); page.move({request, token});"
        " const panel = document.querySelector('#p-sampling'); panel.whatIf = null; panel.refresh();"
        " panel.querySelector('details.whatif').open = true; }",
        [req, len(PROMPT) + place],
    )


def shown(page: Any) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(
        """() => { const box = document.querySelector('#p-sampling .whatif');
        const rows = [...box.querySelectorAll('tbody tr')].map((row) => row.dataset);
        const marked = box.querySelector('tbody tr.current');
        return {rows: rows.map((one) => [Number(one.id), Number(one.low), Number(one.high)]),
                pick: marked ? Number(marked.dataset.id) : null,
                notes: box.querySelector('.whatif-out').innerText}; }"""
    )
    return found


@pytest.mark.parametrize("req", OWN)
@pytest.mark.parametrize("place", range(NUM))
def test_untouched_they_mark_the_token_that_was_drawn(page: Any, req: str, place: int) -> None:
    at(page, req, place)
    logits = logits_of(req, place)
    p = stages_of(logits, **OWN[req])[-1][2]
    token, top = drawn(logits, p, u_of(req, place)), np.argsort(-logits)[:TOP].tolist()
    found = shown(page)
    assert found["pick"] == (token if token in top else None)
    assert (f"beyond the tokens listed here: <{token}>" in found["notes"]) == (token not in top)
    for one, low, high in found["rows"]:
        assert (low, high) == pytest.approx((p[one], p[one]), abs=1e-6)
    assert page.locator('#p-sampling .slider input[aria-label="top_k"]').input_value() == str(OWN[req]["top_k"])


@pytest.mark.parametrize("temperature", [0, 0.35, 0.8, 1, 1.7])
@pytest.mark.parametrize(
    ("min_p", "top_k", "top_p"),
    [(0, 0, 1), (0.1, 0, 1), (0, 3, 1), (0, 30, 1), (0, 0, 0.5), (0, 0, 0.97), (0.02, 5, 0.9), (0.01, 25, 0.9)],
)
def test_changed_they_hold_what_the_whole_vocabulary_gives(
    page: Any, temperature: float, min_p: float, top_k: int, top_p: float
) -> None:
    for place in range(0, NUM, 2):
        at(page, "first", place)
        for name, value in {"temperature": temperature, "min_p": min_p, "top_k": top_k, "top_p": top_p}.items():
            page.locator(f'#p-sampling .slider input[aria-label="{name}"]').fill(str(value))
        logits, found = logits_of("first", place), shown(page)
        p = stages_of(logits, temperature, min_p, top_k, top_p)[-1][2]
        for one, low, high in found["rows"]:
            assert low - 1e-9 <= p[one] <= high + 1e-9
        exact = temperature in (0, 0.8, 1) and not min_p and (top_k <= TOP) and top_p == 1
        if exact:
            assert all(high - low < 1e-9 for _, low, high in found["rows"])
        token = drawn(logits, p, u_of("first", place))
        if found["pick"] is not None:
            assert found["pick"] == token
        elif "u falls beyond" in found["notes"]:
            assert token not in [one for one, _, _ in found["rows"]]
        else:
            assert not exact
            assert f"<{token}>" in found["notes"] or "one that is not recorded" in found["notes"]


def test_another_request_brings_its_own_settings(page: Any) -> None:
    at(page, "first", 0)
    slider = page.locator('#p-sampling .slider input[aria-label="temperature"]')
    slider.fill("0.3")
    page.evaluate("() => document.querySelector('pl-page').move({request: 'second'})")
    page.evaluate("() => document.querySelector('#p-sampling').refresh()")
    assert slider.input_value() == "1.3"
    slider.fill("0.3")
    page.locator('[data-key="whatif-own"]').click()
    assert slider.input_value() == "1.3"
