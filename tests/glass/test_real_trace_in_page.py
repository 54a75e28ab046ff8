"""What the page shows of a trace that an engine wrote, against that trace's own JSON and the model's file."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tiny_model import write_tiny_model
from watched import Watched, settle

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine
from pellucid.glass.report import write_report
from pellucid.sampling_params import SamplingParams

BEGIN = "To be, or not to be, that is the question: whether 'tis nobler"
BLOCKS = 12


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[LLMEngine, list[dict[str, Any]]]:
    """Two requests with one beginning, then one that needs their blocks."""
    path = write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")
    small = LLMEngine.from_args(EngineArgs(model=str(path), seed=0, threads=2, max_model_len=160))
    per_block = small.config.kv_bytes_per_token(small.args.kv_cache_dtype) * small.args.block_size
    engine = LLMEngine.from_args(
        EngineArgs(model=str(path), seed=0, threads=2, max_model_len=160, kv_cache_memory_bytes=BLOCKS * per_block)
    )
    reader = engine.tracer.reader()
    prompts = {"a": BEGIN + " in the mind", "b": BEGIN + " to suffer", "c": "Wherefore art thou " * 7}
    for name, prompt in prompts.items():
        params = SamplingParams(max_tokens=6, seed=1, temperature=0.9, ignore_eos=True)
        engine.add_request(name, prompt, params, trace_level=3)
        while engine.has_unfinished_requests():
            engine.step()
    return engine, [json.loads(line) for line in reader.lines()]


@pytest.fixture(scope="module")
def page(browser: Any, recorded: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    engine, events = recorded
    path = tmp_path_factory.mktemp("real") / "report.html"
    write_report(events, path, token_bytes=engine.tokenizer.token_bytes)
    watched = Watched(browser)
    watched.open(path.as_uri())
    yield watched.page
    assert watched.complaints == []
    watched.context.close()


def of(events: list[dict[str, Any]], kind: str, **fields: Any) -> list[dict[str, Any]]:
    return [e for e in events if e["type"] == kind and all(e.get(k) == v for k, v in fields.items())]


def move(page: Any, **cursor: Any) -> None:
    page.evaluate("(to) => document.querySelector('pl-page').move(to)", cursor)
    settle(page)


def rows(page: Any, selector: str) -> list[list[str]]:
    found: list[list[str]] = page.locator(selector).evaluate_all(
        "(rows) => rows.map((row) => [...row.querySelectorAll('td, th')].map((one) => one.innerText.trim()))"
    )
    return found


def test_attention_of_a_head_is_that_of_the_trace(page: Any, recorded: Any) -> None:
    prompt = of(recorded[1], "request", req="a")[-1]["tokens"]
    position = len(prompt) + 2
    move(page, request="a", token=position, layer=1)
    event = of(recorded[1], "layer", req="a", i=position, layer=1)[0]
    head = event["attn"][1]
    page.locator('#p-layers select[aria-label="Head"]').select_option(str(head["head"]))
    shown = rows(page, "#p-layers table.bars tbody tr")
    ours = {int(row[1]): float(row[2]) for row in shown if row[1]}
    assert ours == pytest.approx(dict(zip(head["idx"], head["w"], strict=True)), abs=0.004)
    assert float(shown[-1][2]) == pytest.approx(head["other"], abs=0.004)


def test_the_lens_names_the_tokens_of_the_trace(page: Any, recorded: Any) -> None:
    engine, events = recorded
    position = len(of(events, "request", req="a")[-1]["tokens"]) + 1
    move(page, request="a", token=position, layer=0)
    shown = page.locator("#p-layers tr:has(.lens)")
    told = sorted(of(events, "layer", req="a", i=position), key=lambda e: -e["layer"])
    assert shown.count() == len(told) == engine.config.num_layers
    for place, event in enumerate(told):
        percents = re.findall(r"([\d.]+) %", shown.nth(place).locator(".lens").inner_text())
        wanted = [f"{100 * p:.1f}" for p in event["lens"]["p"]]
        assert percents == wanted


def test_angles_and_the_batch(page: Any, recorded: Any) -> None:
    engine, events = recorded
    position = 7
    move(page, request="b", token=position)
    titles = page.locator("#p-positions svg.dials title").all_text_contents()
    rope = engine.config.rope
    turned = position * rope.theta ** (-np.arange(0, rope.dim, 2) / rope.dim) % (2 * np.pi)
    np.testing.assert_allclose([float(one.split(": ")[1].split()[0]) for one in titles], turned, rtol=2e-3)
    for step in of(events, "step")[:3]:
        move(page, step=step["step"])
        total = sum(one["n_tok"] for one in step["seqs"])
        facts = " ".join(page.locator("#p-batch .facts").inner_text().split())
        assert f"{total} / {step['token_budget']:,}" in facts


def test_the_pieces_that_went_out_are_the_answer(page: Any, recorded: Any) -> None:
    move(page, request="c")
    emits = of(recorded[1], "emit", req="c")
    answer = b"".join(b64decode(e["bytes_b64"]) for e in emits).decode("utf-8", "replace")
    assert page.locator("#p-emission .answer bdi").text_content() == answer
    page.locator("#p-emission details").last.evaluate("(one) => { one.open = true; }")
    page.wait_for_selector("#p-emission details tbody tr")
    assert len(rows(page, "#p-emission details tbody tr")) == len(emits)


def test_the_memory_formula_multiplies_to_what_the_storage_takes(page: Any, recorded: Any) -> None:
    engine, _ = recorded
    text = page.locator("#p-memory .formula").first.inner_text().replace(",", "")
    factors = re.match(
        r"(\d+) layers × (\d+) KV heads × \(K (\d+) \+ V (\d+)\) numbers × ([\d.]+) bytes.*= (\d+) B", text
    )
    assert factors, text
    layers, heads, key, value, each, total = (float(one) for one in factors.groups())
    assert layers * heads * (key + value) * each == pytest.approx(total, rel=1e-4)
    assert total * BLOCKS * engine.args.block_size == engine.storage.nbytes


@pytest.mark.parametrize(
    ("shape", "key", "value"),
    [({"head_dim": 192, "n_kv_heads": 1}, 192, 128), ({"head_dim": 64, "n_kv_heads": 2}, 64, 64)],
)
@pytest.mark.parametrize("dtype", ["int16", "float16", "int8", "int4"])
def test_a_latent_value_is_smaller_than_its_key(
    page: Any, shape: dict[str, int], key: int, value: int, dtype: Any
) -> None:
    from pellucid.config import kv_head_bytes

    per_token = 3 * shape["n_kv_heads"] * (kv_head_bytes(dtype, key) + kv_head_bytes(dtype, value))
    model = {**shape, "n_layers": 3, "kv_bytes_per_token": per_token}
    text = page.evaluate(
        """([model, dtype]) => { const page = document.querySelector('pl-page'), { trace } = page, { header } = trace;
        trace.header = {...header, model: {...header.model, ...model},
            engine: {...header.engine, kv_cache_dtype: dtype}};
        const panel = document.querySelector('#p-memory');
        panel.refresh();
        const text = panel.querySelector('.formula').innerText;
        trace.header = header;
        panel.refresh();
        return text; }""",
        [model, dtype],
    )
    assert f"(K {key} + V {value})" in text
    assert f"= {per_token:,} B" in text


def test_blocks_after_every_step_are_those_of_a_replay(page: Any, recorded: Any) -> None:
    events = recorded[1]
    assert of(events, "kv", op="evict")
    steps = of(events, "step")
    for step in (steps[0], steps[len(steps) // 2], steps[-1]):
        move(page, step=step["step"])
        owners: dict[int, set[str]] = {}
        for event in of(events, "kv"):
            if event["t_ns"] > step["t1_ns"]:
                continue
            held = owners.setdefault(event["block"], set())
            if event["op"] in ("free", "evict", "preempt"):
                held.discard(event["req"])
                if not event["ref"]:
                    held.clear()
            elif event["req"]:
                held.add(event["req"])
        box = page.locator("#p-kv details").first
        box.evaluate("(one) => { one.open = true; }")
        page.wait_for_selector("#p-kv details tbody tr")
        shown = {int(row[0]): row[1] for row in rows(page, "#p-kv details tbody tr")}
        assert shown == {block: ", ".join(sorted(held)) or "free" for block, held in owners.items()}


def test_evicted_blocks_are_crossed_out_when_they_are(page: Any, recorded: Any) -> None:
    events = recorded[1]
    first = of(events, "kv", op="evict")[0]
    before = [e["step"] for e in of(events, "step") if e["t1_ns"] < first["t_ns"]]
    move(page, request="a", step=before[-1])
    assert "✕" not in page.locator("#p-kv .tree").inner_text()
    assert "C" not in page.locator("#p-kv .tree b").all_inner_texts()
    move(page, request="c", step=of(events, "step")[-1]["step"])
    assert "✕" in page.locator("#p-kv .tree").inner_text()
    evicted = rows(page, "#p-kv table.narrow tbody tr")
    assert evicted
    assert all(row[2] != "–" for row in evicted)
