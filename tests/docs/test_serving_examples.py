"""The examples of serving, run: the server's line, what curl is answered, what the openai client's programs print."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pytest
from documents import ROOT, fences

SERVING = ROOT / "docs" / "serving.md"
CONSOLES = (ROOT / "README.md", ROOT / "README.zh-CN.md", SERVING)
PORT = ":8000"
"""As the examples have it; here any free one."""
_OF_ONE_RUN = re.compile(r'"id":"[\w-]+"|"created":\d+')


class Shown(NamedTuple):
    """A command and the line below it."""

    command: str
    line: str


def shown(program: str) -> list[Shown]:
    """What is the same in several documents is there once."""
    parts = [
        part.strip().split("\n")
        for document in CONSOLES
        for _, _, language, body in fences(document)
        if language == "console"
        for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]
    ]
    found = [Shown(lines[0], lines[1]) for lines in parts if len(lines) == 2 and lines[0].startswith(program)]
    return list(dict.fromkeys(found))


class Served:
    """Servers by their commands, started when they are asked for; `lines` has what each said."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._lines: dict[str, str] = {}

    def line(self, command: str) -> str:
        if command not in self._lines:
            words = [sys.executable, "-m", *shlex.split(command), "--port", "0"]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            process = subprocess.Popen(
                words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            self._processes[command] = process
            assert process.stdout is not None
            self._lines[command] = process.stdout.readline().rstrip("\n")
        return self._lines[command]

    def port(self) -> str:
        """Of the one with the defaults, as `:8123`."""
        found = re.search(r":\d+(?=/v1)", self.line("pellucid serve"))
        assert found is not None, self.line("pellucid serve")
        return found[0]

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def served(smollm2_path: object) -> Iterator[Served]:
    servers = Served()
    yield servers
    servers.end()


def test_there_are_examples() -> None:
    assert len(shown("curl ")) >= 2
    assert "pellucid serve" in [one.command for one in shown("pellucid serve")]


@pytest.mark.parametrize("example", shown("pellucid serve"), ids=lambda one: one.command)
def test_the_line_of_a_server(example: Shown, served: Served, request: pytest.FixtureRequest) -> None:
    if "gemma3" in example.command:
        request.getfixturevalue("gemma3_path")
    assert re.sub(r":\d+(?=/v1)", PORT, served.line(example.command)) == example.line


@pytest.mark.parametrize("example", shown("curl "), ids=lambda one: one.command)
def test_what_curl_is_answered(example: Shown, served: Served) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    words = shlex.split(example.command.replace(PORT, served.port()))
    answer = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    assert _OF_ONE_RUN.sub("", answer) == _OF_ONE_RUN.sub("", example.line)


def test_programs_of_the_openai_client(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """They are one conversation with the server: later ones use the client of the first."""
    names: dict[str, object] = {}
    blocks = [(language, body) for _, _, language, body in fences(SERVING)]
    programs = [(one, after) for one, after in pairwise(blocks) if one[0] == "python"]
    assert len(programs) == 2
    for (_, source), (language, output) in programs:
        exec(compile(source.replace(PORT, served.port()), str(SERVING), "exec"), names)
        assert language == "text"
        assert capsys.readouterr().out == output
