"""The terminal view: what it shows is what the trace has, for any width, and no text of a model steers the terminal."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from sample_trace import sample_trace, two_kinds_of_layers

from pellucid.cli.main import main
from pellucid.errors import InvalidParameterError, TraceFileError
from pellucid.glass.compare import first_difference
from pellucid.glass.explain.sections import explain
from pellucid.glass.perfetto import chrome_trace
from pellucid.glass.pieces import piece_text, plain_text
from pellucid.glass.view import answers_of
from pellucid.trace.jsonl import read_trace, write_trace

ALLOWED = re.compile(r"[^\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]*")


def shown(events: list[dict[str, Any]], width: int = 100, **options: Any) -> str:
    console = Console(width=width, color_system=None, highlight=False, legacy_windows=False, force_terminal=False)
    with console.capture() as captured:
        for view in answers_of(events):
            for renderable in explain(view, width, **options):
                console.print(renderable)
    return captured.get()


@pytest.mark.parametrize("width", [40, 64, 80, 120, 200])
@pytest.mark.parametrize("options", [{}, {"token": 3}, {"token": 14, "layer": 2}, {"waterfalls": True}])
def test_any_width_and_hostile_tokens(width: int, options: dict[str, Any]) -> None:
    text = shown(sample_trace(), width, **options)
    assert ALLOWED.fullmatch(text)
    for line in text.splitlines():
        assert cell_len(line) <= width, line
    if width >= 120:
        for words in ("\\x00", "\\u202eevil", "</script>", "<img src=x onerror=alert(1)>"):
            assert words in text


def test_a_row_without_attention_says_which_rows_have_it() -> None:
    events = sample_trace()
    for event in events:
        if event["type"] == "request":
            last = event["tokens"][-1]
            event["tokens"] += [{**last, "i": i, "pos": i} for i in range(len(event["tokens"]), 50)]
        if event["type"] == "layer" and event["i"] == 5:
            event["attn"] = None
    text = shown(events, 200, token=5, layer=3)
    assert "No attention of this row: it is kept for the last 32 rows of a prompt (here from 18 on)" in text
    assert "strongest keys, with weights" not in text
    assert "strongest keys, with weights" in shown(events, 200, token=6, layer=3)


def test_every_section_with_its_numbers() -> None:
    text = shown(sample_trace(), 120)
    first = answers_of(sample_trace())[0]
    for title in (
        "Text → tokens",
        "Positions",
        "Layers",
        "Logit lens",
        "Attention",
        "Sampling",
        "Out",
        "Time",
        "KV cache",
    ):
        assert title in text
    for sample in first.samples:
        assert f"{100 * sample['stages'][0]['chosen']['p']:.1f} %" in text
    assert "Why it stopped: the end token 117 (<|im_end|>) was drawn" in text
    parts = first.finish["ttft_parts"] if first.finish else {}
    assert f"{parts['prefill_own'] / 1e6:.1f} ms" in text
    assert f"{(sum(parts.values()) - parts['tracing']) / 1e6:.1f} ms" in text


def test_layers_that_turn_otherwise_are_told_apart() -> None:
    text = shown(two_kinds_of_layers(sample_trace()), 120)
    assert "Layers 0–2, 4 (local: a window of 8 tokens): RoPE, theta 10000: 16 pairs" in text
    assert "Layer 3 (global: all tokens): RoPE, theta 1e+06: 16 pairs" in text
    assert "Layer 5 (global: all tokens): nothing is turned." in text
    last = answers_of(sample_trace())[0].num_tokens - 1
    for theta in (1e4, 1e6):  # the last pair of the table
        assert f"{math.degrees(theta ** (-15 / 16) * last):.2f}° + 0 turns" in text


def test_positions_and_layers_that_are_not_there() -> None:
    for options in ({"token": -1}, {"token": 99}, {"layer": 6}, {"layer": -1}):
        with pytest.raises(InvalidParameterError, match="but"):
            shown(sample_trace(), **options)  # type: ignore[arg-type]


def test_traces_of_lower_levels() -> None:
    for missing in ({"layer"}, {"layer", "sample"}, {"layer", "sample", "kv", "mem", "step", "emit"}, {"finish"}):
        text = shown([event for event in sample_trace() if event["type"] not in missing])
        assert "Text → tokens" in text
        assert ("needs level 3" in text) == ("layer" in missing)
        assert ("needs level 2" in text) == ("sample" in missing)
    with pytest.raises(TraceFileError):
        answers_of([event for event in sample_trace() if event["type"] != "request"])


def test_pieces() -> None:
    assert piece_text(b" a\n") == "·a↵"
    assert piece_text("你".encode()[:2]) == "\\xe4\\xbd"
    assert piece_text("\u202e\x1b[31m".encode()) == "\\u202e\\x1b[31m"
    assert plain_text("a b\n\x07") == "a b\n\\x07"


def test_the_first_difference() -> None:
    ours, theirs = answers_of(sample_trace())[0], answers_of(sample_trace())[0]
    assert first_difference(ours, theirs) is None
    theirs.finish["reason"] = "length"  # type: ignore[index]
    assert first_difference(ours, theirs).what == "why it stopped"  # type: ignore[union-attr]
    theirs.samples[2]["id"] = 118
    found = first_difference(ours, theirs)
    assert found is not None
    assert found.what == f"token {theirs.samples[2]['i']}"
    assert "118" in found.theirs
    theirs.layers[4][3]["attn_rms"] *= 1.001
    found = first_difference(ours, theirs)
    assert found is not None
    assert found.what == "attention RMS of layer 3 at position 4"
    assert first_difference(ours, theirs, tolerance=0.01) != found
    theirs.request["params"]["temperature"]["value"] = 0.9
    found = first_difference(ours, theirs)
    assert found is not None
    assert (found.what, found.ours, found.theirs) == ("the parameter temperature", 0.8, 0.9)
    theirs.request["tokens"][1]["id"] = 103
    found = first_difference(ours, theirs)
    assert found is not None
    assert found.what == "prompt token 1"


def test_what_changes_no_number_is_no_difference() -> None:
    """A model's name, and the seed of a request that draws nothing; settings that numbers depend on are named first."""
    ours, theirs = answers_of(sample_trace())[0], answers_of(sample_trace())[0]
    theirs.header["model"]["id"] = "/another/name.gguf"
    for view, seed in ((ours, 1), (theirs, 2)):
        view.request["params"]["temperature"]["value"] = 0
        view.request["params"]["seed"] = {"value": seed, "source": "engine"}
    assert first_difference(ours, theirs) is None
    theirs.layers[0][0]["resid_rms"] *= 2
    theirs.header["engine"]["kv_cache_dtype"] = "int4"
    found = first_difference(ours, theirs)
    assert found is not None
    assert (found.what, found.theirs) == ("the engine's kv_cache_dtype", "int4")
    theirs.header["engine"]["kv_cache_dtype"] = ours.header["engine"].get("kv_cache_dtype")
    for view in (ours, theirs):
        view.request["params"]["temperature"]["value"] = 1.0
    assert first_difference(ours, theirs).what == "the parameter seed"  # type: ignore[union-attr]


def test_the_waterfall_of_every_new_token() -> None:
    views = answers_of(sample_trace())
    drawn = [sample for view in views for sample in view.samples]
    text = shown(sample_trace(), 120, waterfalls=True)
    assert text.count("How token ") == len(drawn) > 2
    assert shown(sample_trace(), 120).count("How token ") == len([view for view in views if view.samples])


def test_the_timeline_for_perfetto() -> None:
    events = chrome_trace(sample_trace())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    steps = [event for event in slices if event["name"].startswith("step ")]
    assert len(steps) == len([e for e in sample_trace() if e["type"] == "step"])
    for event in slices:
        assert event["dur"] >= 0
        assert event["ts"] >= 0
    for part in (event for event in slices if event["tid"] == 1 and event not in steps):
        assert any(
            s["ts"] <= part["ts"] + 1e-6 and part["ts"] + part["dur"] <= s["ts"] + s["dur"] + 1e-6 for s in steps
        )
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"engine steps", "first", "second"}
    assert {"prefill 0-7", "decode 14", "waiting", "finish: stop"} <= {event["name"] for event in events}
    json.dumps(events, allow_nan=False)


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = main(["explain", *arguments])
    written = capfd.readouterr()
    return code, written.out, written.err


def test_a_saved_trace_needs_no_model(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    saved, other = tmp_path / "t.jsonl", tmp_path / "o.jsonl"
    write_trace(saved, sample_trace())
    code, out, err = run(capfd, "--from", str(saved), "--perfetto", str(tmp_path / "p.json"))
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    assert max(map(cell_len, out.splitlines())) <= 90
    assert json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    code, out, _ = run(capfd, "--from", str(saved), "-q", "--compare", str(saved), "--html", str(tmp_path / "r.html"))
    assert code == 0
    assert "No difference" in out
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    changed = sample_trace()
    next(event for event in changed if event["type"] == "sample")["rng"]["u"] = 0.5
    write_trace(other, changed)
    code, out, _ = run(capfd, "--from", str(saved), "-q", "--compare", str(other))
    assert code == 1
    assert "the random number of token" in out
    code, out, err = run(capfd, "--from", str(saved), "hello")
    assert (code, out) == (2, "")
    assert "takes no prompt" in err
    code, _, err = run(capfd, "--from", str(tmp_path / "p.json"))
    assert code == 2
    assert "begins with a header" in err or "no JSON" in err or "no type of event" in err


def test_a_real_request(
    smollm2_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pellucid.engine.llm import LLM
    from pellucid.sampling_params import SamplingParams

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    flags = ["--temperature", "0.7", "--top-p", "0.9", "--seed", "4", "--max-tokens", "5", "--max-model-len", "256"]
    saved = tmp_path / "t.jsonl"
    code, out, err = run(capfd, "你好，世界\x1b[31m", *flags, "--json", str(saved))
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    view = answers_of(read_trace(saved))[0]
    with LLM(max_model_len=256) as llm:
        params = SamplingParams(temperature=0.7, top_p=0.9, seed=4, max_tokens=5)
        [output] = llm.generate("你好，世界\x1b[31m", params)
        assert [sample["id"] for sample in view.samples] == output.outputs[0].token_ids
        assert view.answer == output.outputs[0].text
    assert "你好，世界\\x1b[31m" in out
    for sample in view.samples:
        assert str(sample["i"]) in out
    assert view.finish is not None
    assert abs(view.finish["ttft_parts"]["unaccounted"]) <= 0.01 * view.finish["ttft_ns"]
    code, again, _ = run(capfd, "--from", str(saved))
    assert again == out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--html", "-"], "html is -, but must be a file: only --json can go to standard output"),
        (["--perfetto", "-"], "perfetto is -, but must be a file: only --json can go to standard output"),
        (["--json", "x", "--html", "x"], "json and html are both x, but each needs a file of its own"),
        (["--compare", "none.jsonl"], "no such file or directory: none.jsonl"),
    ],
)
def test_files_are_checked_before_anything_is_computed(
    flags: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pellucid.cli.explain.load_llm", lambda _: pytest.fail("a model was loaded"))
    assert main(["explain", "hello", *flags]) == 2
    assert capsys.readouterr().err == f"error: {sentence}\n"
    assert list(tmp_path.iterdir()) == []
