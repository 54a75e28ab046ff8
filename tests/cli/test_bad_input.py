"""Everything that can be wrong with a command gets one sentence that names it, exit code 2, and no traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import refused, run, run_here

from pellucid.cli import console
from pellucid.formats.block_types import BLOCK_TYPES
from pellucid.formats.gguf_writer import write_gguf

PROMPT = "The capital of France is"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--top-p", "1.5"], "top_p is 1.5, but must be a number above 0 and at most 1"),
        (["--temperature", "-1"], "temperature is -1, but must be a finite number"),
        (["--top-k", "0.5"], "top_k is 0.5, but must be a whole number of at least 1, or 0 or -1 to keep all tokens"),
        (["--top-k", "many"], "top_k is 'many', but must be a whole number"),
        (["--max-tokens", "0"], "max_tokens is 0, but must be a whole number of at least 1"),
        (["--threads", "none", "--max-num-seqs", "0"], "max_num_seqs is 0, but must be"),
        (["--backend", "cuda"], "backend is 'cuda', but must be one of native, reference"),
        (["--preset", "wild"], "preset is 'wild', but must be one of factual, creative, greedy"),
        (["--logit-bias", "5"], "logit_bias is '5', but must be ID=NUMBER"),
        (["--stop-token-ids", "1,x"], "stop_token_ids is 'x', but must be token ids"),
        (["--stop-token-ids", "１"], "stop_token_ids is '１', but must be token ids"),
        (["--max-tokens", "1_0"], "max_tokens is '1_0', but must be a whole number"),
        (["--temperature", "١"], "temperature is '١', but must be a finite number"),
        (["--seed", " 1"], "seed is ' 1', but must be a whole number"),
        (["--seed", "9" * 5000], "..., but must be a whole number"),
        (["--logit-bias", "5=1,5=2"], "logit_bias has the token id 5 twice"),
        (["--logit-bias", "5=1", "--logit-bias", "5=1"], "logit_bias has the token id 5 twice"),
        (["--logit-bias", "x" * 100_000], "logit_bias is 'xxx"),
        (["--allowed-token-ids", "none", "--allowed-token-ids", "5"], "allowed_token_ids is none and given besides"),
        (["--logprobs", "2"], "shown in JSON only: add --json"),
        (
            ["--temprature", "1"],
            "unknown flag --temprature, did you mean --temperature?; see `pellucid generate --help`",
        ),
        (["--top-p"], "option '--top-p' requires an argument; see `pellucid generate --help`"),
        (["another prompt"], "unexpected extra argument"),
        (["- a list item"], "a text that begins with - must come after --"),
    ],
)
def test_bad_flags(capfd: pytest.CaptureFixture[str], flags: list[str], sentence: str) -> None:
    assert sentence in refused(run_here(capfd, "generate", PROMPT, *flags))


@pytest.mark.parametrize("lengths", [["--input-len", "1000000000000"], ["--input-len", "200", "--output-len", "57"]])
def test_bench_of_more_than_the_context(verbs: Any, lengths: list[str]) -> None:
    assert "are together more than max_model_len 256" in refused(verbs("bench", "latency", *lengths))


def test_none_unsets_a_list_too(verbs: Any) -> None:
    assert verbs("generate", PROMPT, "--allowed-token-ids", "none", "--max-tokens", "1").code == 0


@pytest.mark.parametrize("flags", [["--top-p", "1.5"], ["--temperature", "-1"], ["--top-k", "0.5"], ["--unknown"]])
def test_bad_flags_in_a_process_of_their_own(flags: list[str]) -> None:
    assert flags[0].lstrip("-").replace("-", "_") in refused(run("generate", PROMPT, *flags))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["genrate"], "unknown command 'genrate', did you mean generate?"),
        (["serve", "--port", "x"], "--port must be a whole number; see"),
        (["serve", "--shutdown-timeout", "x"], "--shutdown-timeout must be a number; see"),
        (["--verson"], "unknown flag --verson, did you mean --version?"),
        (["bench", "latncy"], "unknown command 'latncy', did you mean latency?; see `pellucid bench --help`"),
        (["bench", "latency", "--num-iters", "0"], "num_iters is 0, but must be at least 1"),
        (["bench", "latency", "--batch-size", "1000000000"], "batch_size is 1000000000, but must be at most 4096"),
        (["pull", "smollm2:135"], "did you mean smollm2:135m?"),
        (["inspect", "a.gguf", "-m", "b.gguf"], "two models are named"),
    ],
)
def test_bad_commands(capfd: pytest.CaptureFixture[str], arguments: list[str], sentence: str) -> None:
    assert sentence in refused(run_here(capfd, *arguments))


def test_missing_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gone.gguf"
    assert str(path) in refused(run("generate", "-m", str(path), PROMPT))
    for verb in ("inspect", "tokenize"):
        assert str(path) in refused(run_here(capfd, verb, "-m", str(path), *(["x"] if verb == "tokenize" else [])))


def test_file_that_is_no_gguf(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("just some notes, and more of them")
    for result in (run("generate", "-m", str(path), PROMPT), run_here(capfd, "inspect", "-m", str(path))):
        sentence = refused(result)
        assert "notes.gguf" in sentence
        assert "GGUF" in sentence


def test_cut_file(tmp_path: Path, smollm2_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    with open(smollm2_path, "rb") as whole:
        path.write_bytes(whole.read(20_000_000))
    assert "cut.gguf" in refused(run("generate", "-m", str(path), PROMPT))


def test_unknown_architecture(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    f32 = BLOCK_TYPES[0]
    write_gguf(
        path, {"general.architecture": "perceptron"}, {"w.weight": ((2, 2), f32, np.zeros(4, np.float32).tobytes())}
    )
    sentence = refused(run("inspect", "-m", str(path)))
    assert "perceptron" in sentence
    assert re.search(r"\bllama\b.*\bgemma3\b|\bgemma3\b.*\bllama\b", sentence), sentence


def test_prompt_longer_than_the_context(smollm2_path: Path) -> None:
    sentence = refused(run("generate", "word " * 40, "--max-model-len", "16"))
    assert re.search(r"prompt has \d+ tokens, but max_model_len is 16", sentence), sentence


def test_empty_prompt_without_bos(smollm2_path: Path) -> None:
    sentence = refused(run("generate", ""))
    assert "prompt is empty" in sentence
    assert "BOS" in sentence


def test_input_that_is_not_text(smollm2_path: Path) -> None:
    assert "not valid UTF-8 at byte 2" in refused(run("generate", stdin=b"ab\xff"))
    assert "not valid UTF-8" in refused(run("chat", stdin=b"ab\xff\n"))


def test_chat_with_a_model_that_cannot(gemma3_path: Path) -> None:
    assert "gemma3:270m has no chat template" in refused(run("chat", "-m", "gemma3:270m"))


def test_unwritable_cache_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = {"PELLUCID_CACHE": str(tmp_path / "file" / "cache")}
    for arguments in (["pull"], ["generate", PROMPT]):
        sentence = refused(run(*arguments, env=env))
        assert f"the model cache {env['PELLUCID_CACHE']} cannot be written" in sentence
        assert "set PELLUCID_CACHE" in sentence


def test_full_disk_during_output() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    command = f"{sys.executable} -m pellucid list > /dev/full"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=_path_env())
    assert done.returncode == 2
    assert done.stderr == "error: no space left on device while reading or writing\n"


@pytest.mark.parametrize(
    ("redirection", "arguments", "code", "error"),
    [
        (">&-", "list", 2, "error: standard output is closed, so there is nowhere to put an answer\n"),
        (">&-", "--help", 2, "error: standard output is closed, so there is nowhere to put an answer\n"),
        (">&- 2>&- <&-", "list", 2, ""),
        ("2>&-", "list", 0, ""),
        ("2>&-", "list --unknown", 2, ""),
        ("2>/dev/full", "list --unknown", 2, ""),
        ("<&-", "list", 0, ""),
        ("<&-", "tokenize --ids --bos", 0, ""),
    ],
)
def test_closed_streams(redirection: str, arguments: str, code: int, error: str, smollm2_path: Path) -> None:
    command = f"{sys.executable} -m pellucid {arguments} {redirection}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=_path_env())
    assert (done.returncode, done.stderr) == (code, error)


def test_json_stays_whole_where_the_output_is_not_unicode(smollm2_path: Path) -> None:
    result = run("tokenize", "--json", "好", env={"PYTHONIOENCODING": "ascii"})
    assert json.loads(result.out)["text"] == "好"


def test_what_is_shown_cannot_steer_a_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9bname\n"
    sentence = refused(run_here(capfd, "inspect", f"/{hostile}.gguf"))
    assert sentence.isprintable()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    console.write(f"好\t{hostile}")
    shown = capfd.readouterr().out
    assert shown.replace("\n", "").replace("\t", "").isprintable()
    assert "好\t" in shown


def test_debug_shows_the_traceback() -> None:
    result = run("generate", PROMPT, "--top-p", "2", env={"PELLUCID_DEBUG": "1"})
    assert result.code == 2
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("error: top_p is 2")


def _path_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
