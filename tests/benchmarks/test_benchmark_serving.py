"""The HTTP scenarios against our own server on a tiny model: every figure comes out, and failures are said."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import serving
from benchmarks.peers.registry import FAST, OURS, PEERS
from benchmarks.peers.serving import COMMANDS, Server, Start, extra_body
from benchmarks.serving_overhead import OVERHEAD_FIGURES
from benchmarks.serving_scenarios import FIGURES, SCENARIOS, ScenarioError, Sizes
from pellucid.cli.load.client import Target
from pellucid.cli.load.driver import new_client
from pellucid.config import PRECISION_KL

TINY = Sizes(3, 2, 20, 8, 100, 2, 3, 150, 200, 20, 1)


def test_all_figures_come_out_and_the_last_line_is_json(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "Sizes", lambda: TINY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    options = ["--model", str(tiny_model), "--peers", OURS, "--rounds", "2", "--out", str(tmp_path), "-t", "1"]
    assert serving.main(options) == 0
    *table, last = capsys.readouterr().out.splitlines()
    summary = json.loads(last)
    assert set(summary["medians"]) == {*FIGURES, *OVERHEAD_FIGURES}, json.loads((tmp_path / "serving.json").read_text())
    assert all(by[OURS] is not None for by in summary["medians"].values())
    assert len(table) == 2 + len(FIGURES) + len(OVERHEAD_FIGURES)
    stored = json.loads((tmp_path / "serving.json").read_text(encoding="utf-8"))
    assert stored["not_measured"] == []
    assert set(stored["values"]["chat-16-tokens"][OURS]) == {"0", "1"}


def test_ratios_are_of_the_same_rounds_and_above_one_is_ahead(tmp_path: Path) -> None:
    run = serving.Run(TINY, 1, tmp_path)
    for round_, (ours, theirs) in enumerate([(300.0, 100.0), (100.0, 50.0), (90.0, 30.0)]):
        run.add(OURS, round_, {"chat-16-tokens": ours, "chat-16-ttft-p95": 10.0})
        run.add("llama-cpp-python", round_, {"chat-16-tokens": theirs, "chat-16-ttft-p95": 25.0})
    assert run.ratio("chat-16-tokens", "llama-cpp-python") == 3.0
    assert run.ratio("chat-16-ttft-p95", "llama-cpp-python") == 2.5
    assert "100 | 50 (3.00 ×)" in run.table()
    run.add(FAST, 0, {"chat-16-tokens": 400.0})
    assert f"| | {OURS} | llama-cpp-python | {FAST} (mean KL {PRECISION_KL['fast']} on" in run.table()


def test_a_server_that_does_not_start_or_answer_is_said(tmp_path: Path) -> None:
    with Server(OURS, Path(sys.executable), tmp_path / "no.gguf", 1, tmp_path / "log") as server:
        with pytest.raises(serving.ServerError, match="exit code 2"):
            server.wait()

        async def ask(scenario: Any) -> Any:
            async with new_client(server.url, None, 5) as client:
                return await scenario(client, Target("model"), TINY, 0)

        for scenario in SCENARIOS.values():
            with pytest.raises(ScenarioError, match="no connection"):
                asyncio.run(ask(scenario))


def test_every_server_is_a_peer_with_a_command() -> None:
    for name, command in COMMANDS.items():
        assert name in PEERS
        words = command(Start(Path("m.gguf"), 81, 3))
        assert words[0] == "-m"
        assert "81" in words
        assert "m.gguf" in words
    assert extra_body("llama-cpp-python", [2]) == {"logit_bias": {"2": -100}}
