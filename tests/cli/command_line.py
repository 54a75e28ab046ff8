"""How the tests run the command line: in a process as users do, or in this one where a start would only cost time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from pellucid.cli.main import main


class Result(NamedTuple):
    code: int
    out: str
    err: str


def run(*arguments: str, stdin: str | bytes = "", env: dict[str, str] | None = None, cwd: Path | None = None) -> Result:
    """`pellucid ARGUMENTS` in a process of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "COLUMNS": "100",
        **(env or {}),
    }
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [sys.executable, "-m", "pellucid", *arguments],
        input=data,
        env=environment,
        cwd=cwd,
        capture_output=True,
        timeout=120,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


def run_here(capfd: pytest.CaptureFixture[str], *arguments: str) -> Result:
    """The same in this process, with what it wrote."""
    capfd.readouterr()
    code = main(arguments)
    written = capfd.readouterr()
    return Result(code, written.out, written.err)


def refused(result: Result) -> str:
    """The one sentence of a refusal: exit code 2, nothing on stdout, one line on stderr, no traceback."""
    lines = result.err.splitlines()
    assert result.code == 2, result
    assert result.out == "", result
    assert "Traceback" not in result.err, result.err
    assert len(lines) == 1, result.err
    assert lines[0].startswith("error: "), result.err
    return lines[0].removeprefix("error: ")
