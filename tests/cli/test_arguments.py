"""Flags in all their spellings, and what stands between them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest

from pellucid.cli.arguments import Argument, Option, UsageError, flag_names, parameters_of, read_arguments
from pellucid.cli.help import verb_help


def verb(
    text: Annotated[str, Argument(help="A text.")],
    more: Annotated[list[str] | None, Argument(help="Further ones.")] = None,
    quiet: Annotated[bool, Option("--quiet", "-q")] = False,
    bos: Annotated[bool | None, Option("--bos/--no-bos")] = None,
    threads: Annotated[int, Option("--threads", "-t", min=1)] = 2,
    share: Annotated[float, Option("--share")] = 0.5,
    stop_at: Annotated[list[str] | None, Option("--stop-at", "-s")] = None,
    out: Annotated[Path | None, Option("--out")] = None,
    size: Annotated[str | None, Option("--size", parser=lambda text: [text])] = None,
) -> int:
    """What it does."""
    return 0


DEFAULTS: dict[str, Any] = {
    "text": "a",
    "more": None,
    "quiet": False,
    "bos": None,
    "threads": 2,
    "share": 0.5,
    "stop_at": None,
    "out": None,
    "size": None,
}


def read(*arguments: str) -> dict[str, Any] | None:
    return read_arguments(parameters_of(verb), arguments)


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        (["a"], {}),
        (["-"], {"text": "-"}),
        (["a", "b", "c"], {"more": ["b", "c"]}),
        (["-q", "a"], {"quiet": True}),
        (["a", "--quiet", "b"], {"quiet": True, "more": ["b"]}),
        (["a", "--bos"], {"bos": True}),
        (["a", "--no-bos"], {"bos": False}),
        (["a", "--bos", "--no-bos"], {"bos": False}),
        (["a", "--threads", "3"], {"threads": 3}),
        (["a", "--threads=3"], {"threads": 3}),
        (["a", "-t", "3"], {"threads": 3}),
        (["a", "-t3"], {"threads": 3}),
        (["a", "-qt3"], {"threads": 3, "quiet": True}),
        (["a", "-qt", "3"], {"threads": 3, "quiet": True}),
        (["a", "-t", "3", "-t", "4"], {"threads": 4}),
        (["a", "--share", "1"], {"share": 1.0}),
        (["a", "--share=1e-3"], {"share": 0.001}),
        (["a", "--stop-at", "x", "-sy"], {"stop_at": ["x", "y"]}),
        (["a", "--stop_at=x_y=z"], {"stop_at": ["x_y=z"]}),
        (["a", "--stop-at", "--quiet"], {"stop_at": ["--quiet"]}),
        (["a", "--stop-at", "--"], {"stop_at": ["--"]}),
        (["a", "--stop-at="], {"stop_at": [""]}),
        (["--", "-q", "--"], {"text": "-q", "more": ["--"]}),
        (["a", "--", "--help"], {"more": ["--help"]}),
        (["a", "--out", "x/y"], {"out": Path("x/y")}),
        (["a", "--size", "7"], {"size": ["7"]}),
    ],
)
def test_what_is_read(arguments: list[str], changed: dict[str, Any]) -> None:
    assert read(*arguments) == {**DEFAULTS, **changed}


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["-qh"], ["a", "-t", "3", "--help"]])
def test_help_is_asked_for(arguments: list[str]) -> None:
    assert read(*arguments) is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "missing TEXT"),
        (["a", "--thread", "3"], "unknown flag --thread, did you mean --threads?"),
        (["a", "-x"], "unknown flag -x"),
        (["a", "-5 degrees"], "a text that begins with - must come after --"),
        (["a", "--quiet=yes"], "option '--quiet' does not take a value"),
        (["a", "--help=yes"], "option '--help' does not take a value"),
        (["a", "-t"], "option '-t' requires an argument"),
        (["a", "-t", "0"], "-t is 0, but must be at least 1"),
        (["a", "-t", "1.0"], "-t must be a whole number"),
        (["a", "-t", "1_0"], "-t must be a whole number"),
        (["a", "-t", "٣"], "-t must be a whole number"),
        (["a", "-t", "9" * 5000], "-t must be a whole number"),
        (["a", "--share", "half"], "--share must be a number"),
    ],
)
def test_what_is_refused(arguments: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read(*arguments)
    assert sentence in str(refusal.value)


def test_one_text_too_many() -> None:
    def one(text: Annotated[str, Argument(help="A text.")]) -> int:
        return 0

    with pytest.raises(UsageError, match=r"got unexpected extra arguments \(b c\)"):
        read_arguments(parameters_of(one), ["a", "b", "c"])


def test_help_tells_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = verb_help("pellucid verb", "Do it.", verb)
    assert text.startswith("Usage: pellucid verb [OPTIONS] TEXT [MORE]…\n\n  Do it.\n\n  What it does.\n\nArguments:\n")
    assert "  -t, --threads N     [default: 2; at least 1]\n" in text
    assert "  --bos / --no-bos" in text
    assert max(map(len, text.splitlines())) <= 80
    assert set(flag_names(verb)) >= {"--no-bos", "-h", "-s", "--stop-at", "--size"}
