"""Two processes side by side: what counts of their steps, and the whole on a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import two_processes


def test_only_steps_count_while_both_decode() -> None:
    early, late = [0.0, 1.0, 2.0, 3.0, 4.0], [2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]
    assert two_processes.rates([early, late]) == [1.0, 2.0]
    assert two_processes.rates([late]) == [2.0]


def test_the_last_line_is_json(tiny_model: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, two_processes.__file__, "--model", str(tiny_model), "--rounds", "1", "--seconds", "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["together_over_alone"] > 0
    assert figures["alone_tokens_per_s"] > 0
