"""What the verbs print, on a real model."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import run

from pellucid.cli import console
from pellucid.cli.chat import Conversation, _after
from pellucid.cli.console import visible
from pellucid.cli.list import list_
from pellucid.cli.streaming import Streamed
from pellucid.config import PRECISION_KL
from pellucid.engine.llm import LLM
from pellucid.sampling_params import SamplingParams

PROMPT = "The capital of France is"


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put text on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))


def test_generate_prints_the_continuation_alone(verbs: Any, shared_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = shared_llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=12))[0].outputs[0].text
    result = verbs("generate", PROMPT, "--temperature", "0", "--max-tokens", "12")
    assert (result.code, result.out, result.err) == (0, expected + "\n", "")
    type_in(monkeypatch, PROMPT + "\n")
    assert verbs("generate", "--temperature", "0", "--max-tokens", "12").out == expected + "\n"
    type_in(monkeypatch, PROMPT)
    assert verbs("generate", "-", "--preset", "greedy", "--max-tokens", "12", "--echo").out == PROMPT + expected + "\n"


def test_generate_several_answers(verbs: Any, shared_llm: LLM) -> None:
    outputs = shared_llm.generate(PROMPT, SamplingParams(n=2, seed=5, max_tokens=6))[0].outputs
    expected = "".join(f"── {o.index + 1} of 2 ──\n{o.text}\n" for o in outputs)
    assert verbs("generate", PROMPT, "-n", "2", "--seed", "5", "--max-tokens", "6").out == expected


def test_generate_json_is_one_object_with_everything(verbs: Any) -> None:
    flags = ["--json", "--max-tokens", "4", "--seed", "9", "--logprobs", "2", "--prompt-logprobs", "1"]
    result = verbs("generate", PROMPT, *flags)
    assert result.out.count("\n") == 1
    value = json.loads(result.out)
    assert value["prompt"] == PROMPT
    assert value["model"] == "smollm2:135m"
    assert value["prompt_logprobs"][0] is None
    assert len(value["prompt_logprobs"]) == len(value["prompt_token_ids"])
    [answer] = value["outputs"]
    assert (len(answer["token_ids"]), answer["finish_reason"], answer["seed"]) == (4, "length", 9)
    assert set(answer["logprobs"][0]) >= {str(answer["token_ids"][0])}
    assert value["metrics"]["ttft_seconds"] > 0
    assert value["metrics"]["tpot_seconds"] > 0
    again = json.loads(verbs("generate", PROMPT, *flags).out)["outputs"][0]
    assert again == answer, "the seed reproduces the answer"


def test_what_came_from_the_prefix_cache_is_told(verbs: Any) -> None:
    prompt = "The sun rises in the east and sets in the west, every day, whatever the weather may be."
    flags = ["--json", "--max-tokens", "1"]
    first, again = (json.loads(verbs("generate", prompt, *flags).out) for _ in range(2))
    assert first["num_cached_tokens"] == 0
    assert again["num_cached_tokens"] == (len(again["prompt_token_ids"]) - 1) // 16 * 16 > 0


def test_chat_shows_what_came_from_the_prefix_cache(shared_llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(shared_llm, SamplingParams(temperature=0, max_tokens=4), "You know much about rivers.")
    for question in ("Name a river.", "Another."):
        _after(conversation, conversation.ask(question), quiet=False)
    lines = [line for line in capsys.readouterr().err.splitlines() if "TTFT" in line]
    assert lines[0].endswith("tok/s")
    assert re.search(r"tok/s · \d+ cached$", lines[1])


def test_the_default_length_gives_way_to_the_context(verbs: Any, shared_llm: LLM) -> None:
    ids = shared_llm.tokenizer.encode("word " * 200)
    room = shared_llm.max_model_len - len(ids)
    assert 0 < room < 128
    result = verbs("generate", "word " * 200, "--ignore-eos", "--json", "--temperature", "0")
    [answer] = json.loads(result.out)["outputs"]
    assert (len(answer["token_ids"]), answer["finish_reason"]) == (room, "length")
    assert verbs("generate", "word " * 200, "--ignore-eos", "--temperature", "0").out == answer["text"] + "\n"
    asked = verbs("generate", "word " * 200, "--max-tokens", "128")
    assert asked.code == 2
    assert "max_tokens is 128" in asked.err


def test_chat_from_a_script(verbs: Any, shared_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=24)
    system, first, second = "Answer in one sentence.", "What is the capital of France?", "And of Japan?"
    messages = [{"role": "system", "content": system}, {"role": "user", "content": first}]
    one = shared_llm.chat(messages, params)[0].outputs[0].text
    messages += [{"role": "assistant", "content": one}, {"role": "user", "content": second}]
    two = shared_llm.chat(messages, params)[0].outputs[0].text
    flags = ["chat", "--system", system, "--temperature", "0", "--max-tokens", "24"]

    type_in(monkeypatch, f"{first}\n\n{second}\n")
    assert verbs(*flags).out == f"{one}\n{two}\n"
    type_in(monkeypatch, f"{second}\n/clear\n{first}\n/exit\nnot reached\n")
    assert verbs(*flags).out.endswith(f"\n{one}\n")
    type_in(monkeypatch, f"{second}\n/system {system}\n{first}\n")
    assert verbs("chat", *flags[3:]).out.endswith(f"\n{one}\n")


def test_chat_script_stops_at_a_mistake(verbs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "/help\n/nothing\nnot reached\n")
    result = verbs("chat")
    assert (result.code, result.out) == (2, "")
    assert "unknown command /nothing" in result.err
    type_in(monkeypatch, "word " * 300 + "\n")
    result = verbs("chat")
    assert result.code == 2
    assert "but the context holds 256; /clear starts a new one" in result.err


def test_tokenize(verbs: Any, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Hello 世界<|im_end|>"
    value = json.loads(verbs("tokenize", text, "--json").out)
    assert b"".join(bytes(token["bytes"]) for token in value["tokens"]).decode() == text
    assert not any(token["special"] for token in value["tokens"])
    ids = [token["id"] for token in value["tokens"]]
    assert verbs("tokenize", text, "--ids").out == " ".join(map(str, ids)) + "\n"
    special = json.loads(verbs("tokenize", text, "--json", "--special").out)["tokens"]
    assert (special[-1]["text"], special[-1]["special"]) == ("<|im_end|>", True)
    table = verbs("tokenize", text).out
    assert "Hello" in table
    assert "\x1b" not in table, "no colours where there is no terminal"
    assert f"{len(ids)} tokens, 18 characters, 22 bytes" in table
    rows = verbs("tokenize", "a 世界\n" * 600).out.splitlines()
    assert len(rows) > 2000, "in batches"
    assert {row.index(" 0a") + 1 for row in rows if row.endswith(" 0a")} == {rows[0].index("bytes")}, "in line"
    type_in(monkeypatch, text + "\n")
    assert verbs("tokenize", "--ids").out.split() == [str(i) for i in ids]


def test_visible_bytes() -> None:
    assert visible(b" a\n\t\x00\xe4") == "·a\\n\\t\\u0000\\xe4"


def test_inspect(verbs: Any, smollm2_path: Path) -> None:
    value = json.loads(verbs("inspect", "--json").out)
    config = value["config"]
    assert (config["architecture"], config["num_layers"], config["num_kv_heads"]) == ("llama", 30, 3)
    assert value["memory"]["kv_cache"]["float16"]["bytes_per_token"] == 2 * 30 * 3 * 64 * 2
    assert sum(entry["bytes"] for entry in value["types"].values()) == sum(t["bytes"] for t in value["tensors"])
    assert value["tokenizer"]["eos_ids"] == [0, 2]
    assert value["machine"]["precision_mean_kl"] == PRECISION_KL
    text = verbs("inspect", "--tensors").out
    assert f"exact {PRECISION_KL['exact']}, fast {PRECISION_KL['fast']}" in text
    assert "2 · 30 layers · 3 KV heads · 132 bytes = 23760 bytes a token" in text
    assert "blk.29.ffn_up.weight" in text
    assert "im_start" in verbs("inspect", "smollm2:135m", "--template").out
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_inspect_sliding_windows(verbs: Any, gemma3_path: Path) -> None:
    text = verbs("inspect", "-m", "gemma3:270m").out
    assert "512 tokens in 15 layers" in text
    assert "none: use generate, not chat" in text


def test_list_and_pull(verbs: Any, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = {row["name"]: row for row in json.loads(verbs("list", "--json").out)["models"]}
    assert rows["smollm2:135m"]["state"] == "ready"
    assert rows["smollm2:135m"]["path"] == str(smollm2_path)
    assert "smollm2:135m *" in verbs("list").out
    assert verbs("pull", "smollm2:135m").out == f"{smollm2_path}\n"
    monkeypatch.setenv("PELLUCID_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    rows = {row["name"]: row for row in json.loads(verbs("list", "--json").out)["models"]}
    assert {row["state"] for row in rows.values()} == {"not pulled"}
    assert not (tmp_path / "empty").exists(), "looking makes no folders"


def test_list_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, smollm2_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    list_()
    out = capsys.readouterr().out
    assert "smollm2:135m *  ready  98.4 MB\n  SmolLM2 135M Instruct" in out
    assert "\n  Apache-2.0\n" in out


def test_bench_latency_ends_with_json(verbs: Any) -> None:
    flags = ["--input-len", "8", "--output-len", "5", "--batch-size", "2", "--num-iters", "2", "--num-warmup", "0"]
    result = verbs("bench", "latency", *flags)
    value = json.loads(result.out.splitlines()[-1])
    assert (value["input_len"], value["output_len"], value["batch_size"]) == (8, 5, 2)
    for name in ("ttft", "tpot", "itl"):
        assert 0 < value[f"{name}_p50_seconds"] <= value[f"{name}_p90_seconds"] <= value[f"{name}_p99_seconds"]
    assert value["output_tokens_per_second"] > 0
    assert value["threads"] >= 1
    assert "TTFT" in result.out


def test_json_has_no_infinities(capsys: pytest.CaptureFixture[str]) -> None:
    console.write_json({"a": float("-inf"), "b": [float("nan")], "c": "世", 1: (2,)})
    assert json.loads(capsys.readouterr().out) == {"a": -9999.0, "b": [None], "c": "世", "1": [2]}


def test_colours_need_a_terminal_and_no_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert console.styled("x", console.DIM, Terminal()) != "x"
    assert console.styled("x", console.DIM, io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert console.styled("x", console.DIM, Terminal()) == "x"


@contextmanager
def start(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process that takes Ctrl-C even where the tests themselves ignore it (`nohup pytest &`), ended in any case."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    # A child inherits SIG_IGN, but the default in place of a handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen([sys.executable, "-m", "pellucid", *arguments], env=env, **options)
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def test_the_first_use_in_a_process_of_its_own(smollm2_path: Path) -> None:
    result = run("generate", PROMPT, "--temperature", "0", "--max-tokens", "4")
    assert result.code == 0
    assert result.out.startswith(" Paris")


def test_streams_while_it_generates_and_ctrl_c_ends_it(smollm2_path: Path) -> None:
    flags = ["--max-tokens", "none", "--ignore-eos", "--seed", "1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start("generate", "Once upon a time", *flags, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.read(8), "the first words come before the end"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out.endswith(b"\n")
    assert err == b""


def test_reader_that_goes_away(smollm2_path: Path) -> None:
    flags = ["--max-tokens", "none", "--ignore-eos"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with start("generate", "Once upon a time", *flags, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(timeout=30) == 141
        assert process.stderr.read() == b""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_chat_at_a_terminal(smollm2_path: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    screen = ""

    def wait_for(text: str) -> None:
        nonlocal screen
        while text not in screen:
            screen += os.read(ours, 4096).decode("utf-8", "replace")
        screen = screen.split(text, 1)[1]

    def type_line(text: str) -> None:
        os.write(ours, text.encode() + b"\r")
        wait_for(text)

    terminal = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True, "close_fds": True}
    with start("chat", "--temperature", "0", "--max-model-len", "512", **terminal) as process:
        os.close(theirs)
        wait_for(">>> ")
        type_line("Count from 1 to 1000, one number per line.")
        wait_for("2")
        process.send_signal(signal.SIGINT)
        wait_for("tok/s · stopped")
        wait_for(">>> ")
        type_line("/clear")
        wait_for(">>> ")
        type_line("What is the capital of France?")
        wait_for("The capital of France is Paris.")
        wait_for("TTFT")
        wait_for(">>> ")
        os.write(ours, b"\x04")
        assert process.wait(timeout=30) == 0
    os.close(ours)


def test_ctrl_c_while_printing_aborts_the_request(shared_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(text: str) -> None:
        if text != "\n":
            raise KeyboardInterrupt

    monkeypatch.setattr(console, "write", interrupt)
    stream = shared_llm.stream(PROMPT, SamplingParams(temperature=0, max_tokens=50))
    streamed = Streamed(stream)
    streamed.show()
    assert streamed.interrupted
    assert not shared_llm.engine.has_unfinished_requests()
    assert list(stream) == []


def test_tokenize_compare(verbs: Any) -> None:
    result = verbs("tokenize", "Hello wörld <|im_end|>", "--compare", "gemma3:270m", "--json")
    value = json.loads(result.out)
    assert (result.code, value["equal"]) == (1, False)
    for side in ("left", "right"):
        text = "".join(token["text"] for row in value["rows"] for token in row[side])
        assert text.replace("<bos>", "").strip() == "Hello wörld <|im_end|>"
    same = verbs("tokenize", "Hello", "--compare", "smollm2:135m")
    assert (same.code, "the ids are equal" in same.out) == (0, True)
    assert "≠" in verbs("tokenize", "Hello", "--compare", "gemma3:270m").out


def test_tokenize_save_and_check(verbs: Any, tmp_path: Path) -> None:
    kept = tmp_path / "ids.json"
    assert verbs("tokenize", "Hello\nwörld <|im_end|>", "--save", str(kept)).code == 0
    data = json.loads(kept.read_text())
    assert [entry["text"] for entry in data["texts"]] == ["Hello", "wörld <|im_end|>"]
    assert data["texts"][1]["ids"] != data["texts"][1]["parsed"]
    assert verbs("tokenize", "--check", str(kept)).code == 0
    other = verbs("tokenize", "--check", str(kept), "-m", "gemma3:270m")
    assert (other.code, "text 1, 'Hello', has other ids" in other.err) == (1, True)
    data["fingerprint"] = "0" * 64
    kept.write_text(json.dumps(data))
    changed = verbs("tokenize", "--check", str(kept))
    assert (changed.code, "but the fingerprint is" in changed.err) == (1, True)
    kept.write_text("{}")
    assert verbs("tokenize", "--check", str(kept)).code == 2
    assert verbs("tokenize", "x", "--check", str(kept)).code == 2


def test_a_saved_cache_outlives_the_command(tmp_path: Path) -> None:
    """Written at the end, found by the next one; one that cannot be used, and one that cannot be written, are said."""
    prompt = "Once upon a time there was a king who had three daughters, a horse, and no money."
    flags = ("--max-tokens", "2", "--temperature", "0", "--max-model-len", "256", "--json")

    def generate(file: Path, *more: str) -> tuple[Any, int, str]:
        result = run("generate", prompt, *flags, "--kv-cache-save", str(file), *more)
        return json.loads(result.out)["num_cached_tokens"], result.code, result.err

    file = tmp_path / "cache"
    assert generate(file) == (0, 0, "")
    assert generate(file) == (16, 0, "")
    found, code, said = generate(file, "--kv-cache-dtype", "int8")
    assert (found, code) == (0, 0)
    assert re.fullmatch(r"warning: [^\n]*saved with another --kv-cache-dtype[^\n]*\n", said)
    found, code, said = generate(tmp_path / "no such folder" / "cache")
    assert (found, code) == (0, 2)
    assert re.fullmatch(r"error: [^\n]*the KV cache cannot be saved[^\n]*\n", said)
