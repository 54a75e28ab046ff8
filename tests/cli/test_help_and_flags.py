"""Help is quick and whole, and every field of the dataclasses is a flag that reaches its place."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import MISSING, fields
from typing import Any

import pytest
from command_line import run_here

from pellucid.cli.flags import NO_FLAG, flag
from pellucid.cli.generate import DEFAULT_MAX_TOKENS
from pellucid.cli.verbs import SUBVERBS, VERBS
from pellucid.config import EngineArgs
from pellucid.errors import InvalidParameterError
from pellucid.sampling_params import SamplingParams

PREFACE = "import sys; from pellucid.cli.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"


def test_help_lists_every_verb(capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["-h"], ["help"], []):
        result = run_here(capfd, *arguments)
        assert result.code == 0
        for name, verb in VERBS.items():
            assert name in result.out
            assert verb.help.split(";")[0] in " ".join(result.out.split())


def test_help_imports_nothing_heavy() -> None:
    import subprocess

    path = [p for p in sys.path if p]
    script = f"import sys; sys.path[:0] = {path!r}\n{PREFACE}"
    loaded = set(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stderr.split())
    assert not loaded & {
        "numpy",
        "rich",
        "tokenizers",
        "jinja2",
        "huggingface_hub",
        "dataclasses_json",
    }


def test_help_loads_nothing_heavy() -> None:
    """What makes help quick (its time is in benchmarks/startup.py)."""
    program = (
        "import sys; from pellucid.cli.main import main; sys.argv = ['pellucid', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'rich', 'tokenizers', 'jinja2', 'huggingface_hub', 'fastapi', 'pydantic'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("loaded: []\n")


@pytest.mark.parametrize("verb", [*(v for v in VERBS if v not in SUBVERBS), "bench latency", "bench serve"])
def test_every_verb_has_help(capfd: pytest.CaptureFixture[str], verb: str) -> None:
    result = run_here(capfd, *verb.split(), "--help")
    assert result.code == 0
    assert f"Usage: pellucid {verb}" in result.out
    assert "--help" in result.out


def test_help_shows_every_field_with_its_default(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = " ".join(run_here(capfd, "generate", "--help").out.split())
    for field in (*fields(SamplingParams), *fields(EngineArgs)):
        if field.name in NO_FLAG:
            continue
        assert f"{flag(field.name)} " in text
        if field.name != "seed":  # both have one; the flag is the request's
            assert field.metadata["help"] in text, field.name
        if isinstance(field.default, (int, float, str)) and not isinstance(field.default, bool):
            assert f"[default: {field.default}]" in text
    assert f"[default: {DEFAULT_MAX_TOKENS}]" in text
    assert "-m, --model" in text
    assert "-t, --threads" in text


def test_help_puts_flags_under_headings(capfd: pytest.CaptureFixture[str]) -> None:
    text = run_here(capfd, "generate", "--help").out
    places = [text.index(part) for part in ("Options:", "--preset", "Sampling:", "--top-k", "Engine:", "--backend")]
    assert places == sorted(places)
    assert "--backend native|reference" in text


def test_chat_takes_no_message(capfd: pytest.CaptureFixture[str]) -> None:
    result = run_here(capfd, "chat", "hello")
    assert (result.code, result.out) == (2, "")
    assert "start `pellucid chat` and type it" in result.err


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_here(capfd, "--version").out.startswith("pellucid ")


GIVEN = {
    "n": ("2", 2),
    "temperature": ("0.5", 0.5),
    "top_k": ("5", 5),
    "top_p": ("0.9", 0.9),
    "min_p": ("0.1", 0.1),
    "repetition_penalty": ("1.1", 1.1),
    "frequency_penalty": ("0.2", 0.2),
    "presence_penalty": ("0.3", 0.3),
    "seed": ("7", 7),
    "max_tokens": ("3", 3),
    "min_tokens": ("1", 1),
    "stop": ("###", ["###"]),
    "stop_token_ids": ("4,5", [4, 5]),
    "include_stop_str_in_output": (None, True),
    "ignore_eos": (None, True),
    "logit_bias": ("10=-1.5,11=2", {"10": -1.5, "11": 2.0}),
    "allowed_token_ids": ("8,9,10,11", [8, 9, 10, 11]),
    "banned_token_ids": ("8", [8]),
    "logprobs": ("1", 1),
    "prompt_logprobs": ("0", 0),
    "skip_special_tokens": (False, False),
    "overflow": ("truncate_left", "truncate_left"),
}


def test_every_sampling_field_arrives(verbs: Any) -> None:
    assert GIVEN.keys() == {f.name for f in fields(SamplingParams)} - {*NO_FLAG}, (
        "a new field needs a flag and a value here"
    )
    arguments: list[str] = []
    for name, (text, _) in GIVEN.items():
        arguments += (
            [flag(name), text] if isinstance(text, str) else [flag(name) if text is None else f"--no{flag(name)[1:]}"]
        )
    result = verbs("generate", "Once upon a time", "--json", *arguments)
    assert result.code == 0, result
    params = json.loads(result.out)["sampling_params"]
    assert params == {name: value for name, (_, value) in GIVEN.items()} | dict.fromkeys(NO_FLAG)


def test_every_engine_field_arrives(verbs: Any) -> None:
    given = {f.name: 16 for f in fields(EngineArgs) if "int" in str(f.type)} | {
        "backend": "reference",
        "kv_cache_dtype": "float32",
        "speculative_method": "draft_model",
        "speculative_model": "gemma3:270m",
        "precision": "exact",
        "quantization": "q8_0",
        "rope_scaling": '{"factor": 2.0, "rope_type": "linear"}',
        "rope_theta": 5000.5,
    }
    del given["seed"]  # --seed is the request's
    arguments = [part for name, value in given.items() for part in (flag(name), str(value))]
    arguments.append("--no-enable-prefix-caching")  # without which there is nothing for --kv-cache-save
    assert verbs("generate", "Once", "--max-tokens", "1", "-m", "smollm2:135m", *arguments).code == 0
    assert verbs.engine == {"model": "smollm2:135m", **given, "enable_prefix_caching": False}
    assert {f.name for f in fields(EngineArgs)} - verbs.engine.keys() == {"seed", "kv_cache_save"}
    assert EngineArgs(**verbs.engine)


def test_what_is_not_given_keeps_its_default(verbs: Any) -> None:
    params = json.loads(verbs("generate", "Once", "--json", "--max-tokens", "1").out)["sampling_params"]
    assert verbs.engine == {}
    for field in fields(SamplingParams):
        if field.name != "max_tokens" and field.default is not MISSING:
            assert params[field.name] == (list(field.default) if isinstance(field.default, tuple) else field.default)


def test_presets_and_flags_beside_them(verbs: Any) -> None:
    params = json.loads(
        verbs("generate", "Once", "--json", "--max-tokens", "1", "--preset", "factual", "--top-k=3").out
    )
    chosen = params["sampling_params"]
    assert (chosen["temperature"], chosen["top_p"], chosen["top_k"]) == (0.3, 0.9, 3)


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("760000000", 760000000),
        ("2GiB", 2 * 1024**3),
        ("1.5 gib", 1536 * 1024**2),
        ("512MB", 512 * 1000**2),
        ("8kB", 8000),
    ],
)
def test_sizes_may_have_a_unit(verbs: Any, text: str, bytes_: int) -> None:
    verbs("generate", "Once", "--max-tokens", "1", "--kv-cache-memory-bytes", text)
    assert verbs.engine == {"kv_cache_memory_bytes": bytes_}


@pytest.mark.parametrize("text", ["2 gigs", "GiB", "-1GiB", "1e3MB", "٣GB"])
def test_sizes_that_are_none_are_refused(verbs: Any, text: str) -> None:
    verbs("generate", "Once", "--max-tokens", "1", f"--kv-cache-memory-bytes={text}")
    with pytest.raises(InvalidParameterError, match=r"kv_cache_memory_bytes is .* but must be a whole number"):
        EngineArgs(**verbs.engine)


def test_underscores_and_short_flags(verbs: Any) -> None:
    result = verbs("generate", "Once", "--json", "--max_tokens=1", "--top_k", "2", "-n", "2", "-t", "1")
    chosen = json.loads(result.out)["sampling_params"]
    assert (chosen["max_tokens"], chosen["top_k"], chosen["n"]) == (1, 2, 2)
    assert verbs.engine == {"threads": 1}
