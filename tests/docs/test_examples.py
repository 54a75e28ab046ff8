"""The examples of the documents, run: what stands below them is what they print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from documents import ROOT, Example, fences, named, python_examples, tool

_GUIDES = ("python-api", "long-prompts", "prefix-cache", "speculation", "structured-output", "tracing")
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in _GUIDES))
"""README.zh-CN.md has those of README.md (test_docs.py); serving.md's need a server (test_serving_examples.py)."""
CONSOLES = (ROOT / "README.md", ROOT / "README.zh-CN.md", ROOT / "docs" / "cli.md")
_SAME_EVERY_TIME = re.compile(r"--temperature 0|tokenize|inspect|--top-p 1\.5")


class Session(NamedTuple):
    """A command of a console block and what it prints."""

    document: Path
    command: str
    output: list[str]


def sessions() -> Iterator[Session]:
    seen: set[str] = set()  # with its output: the same command may have been left behind in one document
    for document in CONSOLES:
        for _, _, language, body in fences(document):
            if language != "console" or ">>>" in body:  # a conversation at a terminal
                continue
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, *output = part.splitlines()
                if any(output) and _SAME_EVERY_TIME.search(command) and part not in seen:
                    seen.add(part)
                    yield Session(document, command, [line for line in output if line])


EXAMPLES = [example for page in PAGES for example in python_examples(page)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{named(e.document)}:{e.line}")
def test_python_example(
    example: Example,
    smollm2_path: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # for those that write a file
    exec(compile(example.source, str(example.document), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert tool("journey_values").agree(printed, example.output or ""), printed


@pytest.mark.parametrize("session", list(sessions()), ids=lambda s: f"{named(s.document)}: {s.command}")
def test_console_example(session: Session, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Every line shown is printed, in this order; a block may leave lines out."""
    request.getfixturevalue("gemma3_path" if "gemma3" in session.command else "smollm2_path")
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    program = tmp_path / "pellucid"
    program.write_text(f'#!{bash}\nexec "{sys.executable}" -m pellucid "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    done = subprocess.run([bash, "-c", f"{session.command} 2>&1"], env=environment, capture_output=True, timeout=120)
    printed = iter(done.stdout.decode().splitlines())
    missing = [line for line in session.output if line not in printed]
    assert missing == [], done.stdout.decode()


def test_the_journey_shows_the_values_of_the_engine(smollm2_path: Path) -> None:
    maker = tool("journey_values")
    sections = maker.values()
    for name in maker.DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        differing = maker.differences(text, sections)
        assert differing == [], f"{name}: run python tools/journey_values.py --write"
    assert "DIFFERENT" not in sections["one_answer"]
