"""How many threads, which backend."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from pellucid.errors import InvalidParameterError, PellucidWarning
from pellucid.kernels.dispatch import _quota_cores, make_backend, usable_cores


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000", None), ("200000 100000", 2), ("50000 100000", 1), ("nonsense", None), ("1 0", None)],
)
def test_the_containers_quota_bounds_the_cores(tmp_path: Path, text: str, cores: int | None) -> None:
    path = tmp_path / "cpu.max"
    path.write_text(text + "\n")
    assert _quota_cores(path) == cores


def test_no_quota_without_control_groups(tmp_path: Path) -> None:
    assert _quota_cores(tmp_path / "cpu.max") is None
    assert usable_cores() >= 1


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(InvalidParameterError, match=r"cuda.*native, reference"):
        make_backend("cuda")


@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="AddressSanitizer reserves terabytes")
def test_threads_the_system_does_not_give_are_one_sentence() -> None:
    program = (
        "import resource; from pellucid.errors import BackendError; from pellucid.kernels.native import NativeBackend\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "try: NativeBackend(900)\n"
        "except BackendError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert "of 900 threads: ask for fewer" in run.stdout


def test_more_threads_than_cores_are_allowed_with_a_warning() -> None:
    cores = usable_cores()
    with pytest.warns(PellucidWarning, match=rf"threads is {cores + 1}, but this process may use {cores} core"):
        assert make_backend("native", cores + 1).threads == cores + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_backend("native", cores)
        make_backend("native")
