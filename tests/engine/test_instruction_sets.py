"""Every instruction set of the machine through the whole engine: as faithful as law 2 asks, and the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from golden.fidelity import MAX_MEAN_KL, MAX_ROW_KL

from pellucid.kernels.dispatch import ISA_VARIABLE
from pellucid.kernels.native import available_isas


def started(isa: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A program of ours in a process with this instruction set."""
    environment = {**os.environ, ISA_VARIABLE: isa, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=1500, check=False
    )


def answers(isa: str, path: Path) -> dict[str, Any]:
    run = started(isa, str(Path(__file__).with_name("isa_answers.py")), str(path))
    assert run.returncode == 0, f"{isa}: {run.stderr}"
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_instruction_set_is_faithful_and_gives_the_same_bits(smollm2_path: Path) -> None:
    found = {isa: answers(isa, smollm2_path) for isa in available_isas()}
    first = next(iter(found.values()))
    assert len(first["alone"]) > 5
    for isa, answer in found.items():
        assert answer["isa"] == isa, "the variable chooses the kernels"
        assert answer["mean_kl"] < MAX_MEAN_KL
        assert answer["max_kl"] < MAX_ROW_KL
        assert answer["hidden"] == first["hidden"], isa
        assert answer["alone"] == first["alone"], isa


def test_an_unknown_instruction_set_is_one_sentence(smollm2_path: Path) -> None:
    run = started("z80", "-m", "pellucid", "generate", "--model", str(smollm2_path), "Hello")
    assert run.returncode != 0
    assert run.stdout == ""
    assert f"{ISA_VARIABLE} is 'z80', but this machine and build have: {', '.join(available_isas())}" in run.stderr
    assert len(run.stderr.splitlines()) == 1
