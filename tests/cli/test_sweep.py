"""`pellucid sweep`: flags to grid, prompts from everywhere, what is told and saved."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import refused, run

from pellucid.cli import sweep as sweep_module
from pellucid.engine.llm import LLM
from pellucid.sampling_params import SamplingParams

PROMPT = "The capital of France is"


@pytest.fixture
def sweeps(verbs: Any, shared_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sweep_module, "load_llm", lambda engine: shared_llm)
    return lambda *arguments: verbs("sweep", *arguments)


def saved(sweeps: Any, *arguments: str) -> dict[str, Any]:
    result = sweeps(*arguments, "--json", "-", "--quiet")
    assert (result.code, result.err) == (0, "")
    value: dict[str, Any] = json.loads(result.out)
    return value


def test_lists_of_values_and_flags_given_again(sweeps: Any) -> None:
    value = saved(
        sweeps,
        PROMPT,
        "--temperature",
        "0,0.7",
        "--temperature",
        "1",
        "--top_p=0.9,1",
        "--seed",
        "3",
        "--max-tokens",
        "4",
    )
    assert [one["label"] for one in value["settings"]] == [
        "temperature 0",
        "temperature 0.7 · top_p 0.9",
        "temperature 0.7 · top_p 1",
        "temperature 1 · top_p 0.9",
        "temperature 1 · top_p 1",
    ]
    assert {one["sampling_params"]["seed"] for one in value["settings"]} == {3}
    assert all(1 <= len(cell["token_ids"]) <= 4 for cell in value["cells"])


def test_each_answer_is_that_of_generate(sweeps: Any, shared_llm: LLM) -> None:
    value = saved(sweeps, PROMPT, "--preset", "greedy,creative", "--max-tokens", "6")
    for name, cell in zip(("greedy", "creative"), value["cells"], strict=True):
        [output] = shared_llm.generate(PROMPT, SamplingParams.from_preset(name, max_tokens=6, seed=0))
        assert (cell["text"], cell["token_ids"]) == (output.outputs[0].text, output.outputs[0].token_ids)


def test_prompts_from_arguments_a_file_and_standard_input(
    sweeps: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = tmp_path / "prompts.txt"
    lines.write_text("One.\n\n二。\n", encoding="utf-8")
    objects = tmp_path / "prompts.jsonl"
    objects.write_text('"a\\nb"\n{"prompt": "c"}\n', encoding="utf-8")
    short = ["--max-tokens", "1"]
    found = saved(sweeps, "Zero.", "--prompts-file", str(lines), *short)
    assert [one["text"] for one in found["prompts"]] == ["Zero.", "One.", "二。"]
    assert [one["text"] for one in saved(sweeps, "--prompts-file", str(objects), *short)["prompts"]] == ["a\nb", "c"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped\n"), encoding="utf-8"))
    assert [one["text"] for one in saved(sweeps, *short)["prompts"]] == ["piped"]


def test_messages_go_through_the_template(sweeps: Any) -> None:
    [prompt] = saved(sweeps, "Hi", "--system", "Be brief.", "--max-tokens", "1")["prompts"]
    assert prompt["text"] == "Hi"
    assert re.search(r"system\nBe brief\.<.*user\nHi<", prompt["rendered"], re.DOTALL)


def test_the_size_is_told_before_and_the_table_after(sweeps: Any, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = sweeps(PROMPT, "--temperature", "0,1", "--seed", "1,2", "--max-tokens", "5", "--html", str(page))
    assert result.code == 0
    size = "1 prompt × 3 settings = 3 answers of at most 5 tokens, 15 in all"
    assert result.err == f"{size}; 1 combination left out, whose answer another has\n"
    assert sweeps("x", "--max-tokens", "1").err == "1 prompt × 1 setting = 1 answer of at most 1 token, 1 in all\n"
    for words in ("smollm2:135m", "temp", "seed", "rep-4", "entropy", "By setting", "Paris"):
        assert words in result.out
    assert "\x1b" not in result.out
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x", "--temperature", "hot"], "temperature is 'hot', but must be a finite number at least 0"),
        (["x", "--temperature", "0.1,,1"], "temperature is ''"),
        (["x", "--top-p", "0.5,1.5"], "top_p is 1.5"),
        (["x", "--preset", "poetic"], "preset is 'poetic', but must be one of factual, creative, greedy"),
        (["x", "--seed", ",".join(map(str, range(300)))], "1 prompt × 300 settings = 300 answers, more than 256"),
        (["x", "y", "--seed", "1,2", "--max-cells", "3"], "= 4 answers, more than 3"),
        (["x", "--max-cells", "0"], "max_cells is 0"),
        (["--prompts-file", "missing.txt"], "no such file or directory: missing.txt"),
        (["x", "-n", "2"], "unknown flag -n"),
    ],
)
def test_what_is_refused_before_a_model_is_loaded(
    sweeps: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    def load(engine: dict[str, Any]) -> Any:
        raise AssertionError("loaded")

    monkeypatch.setattr(sweep_module, "load_llm", load)
    assert words in refused(sweeps(*arguments))


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("p.txt", b"\n \n", "has no prompt in it"),
        ("p.txt", b"\xff", "is not valid UTF-8 at byte 0"),
        ("p.jsonl", b'{"text": "x"}\n', "each must be a string or an object"),
        ("p.jsonl", b"[" * 100_000, "each must be a string or an object"),
    ],
)
def test_files_that_are_refused(sweeps: Any, tmp_path: Path, name: str, data: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert words in refused(sweeps("--prompts-file", str(path)))


def test_a_prompt_that_does_not_fit_is_refused(sweeps: Any) -> None:
    assert "256" in refused(sweeps("x " * 400, "--quiet"))


def test_as_users_do(smollm2_path: Path, tmp_path: Path) -> None:
    result = run("sweep", "--temperature", "0,1", "--max-tokens", "3", stdin=PROMPT, cwd=tmp_path)
    assert result.code == 0, result
    assert "╭" in result.out
