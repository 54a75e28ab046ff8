"""One loaded model for all tests of the verbs; a start is paid for only where the start is what is tested."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Result, run_here

from pellucid.cli import bench, chat, generate
from pellucid.engine.llm import LLM


@pytest.fixture(scope="session")
def shared_llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(max_model_len=256) as llm:
        yield llm


class Verbs:
    """Runs verbs in this process on the shared model, and keeps what they asked for."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.run: Any = functools.partial(run_here, capfd)
        self.engine: dict[str, Any] = {}

    def __call__(self, *arguments: str) -> Result:
        result: Result = self.run(*arguments)
        return result


@pytest.fixture
def verbs(shared_llm: LLM, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Verbs:
    verbs = Verbs(capfd)

    def load(engine: dict[str, Any]) -> LLM:
        verbs.engine = engine
        return shared_llm

    for module in (generate, chat, bench):
        monkeypatch.setattr(module, "load_llm", load)
    return verbs
