"""One server over the mock model for most tests, one over the real model for a few."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from http_server import RunningServer, mock_engine

from pellucid.config import EngineArgs
from pellucid.engine.llm_engine import LLMEngine


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    with RunningServer(mock_engine()) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return server.client()


@pytest.fixture(scope="session")
def slow_server() -> Iterator[RunningServer]:
    """5 ms a step, so that requests last while something is done to them."""
    with RunningServer(mock_engine(step_seconds=0.005)) as running:
        yield running


@pytest.fixture(scope="session")
def real_server(smollm2_path: Path) -> Iterator[RunningServer]:
    with RunningServer(LLMEngine.from_args(EngineArgs(max_model_len=1024))) as running:
        yield running
