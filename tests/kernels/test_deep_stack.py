"""Deep recursion gets a stack of its own, and no other thread hears of it."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import pellucid.kernels
from pellucid.errors import BackendError, NotEnoughMemoryError
from pellucid.kernels.deep_stack import on_deep_stack

MIB = 1024**2


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the compiled module cannot be loaded."""
    monkeypatch.delitem(sys.modules, "pellucid.kernels.native", raising=False)
    monkeypatch.setitem(sys.modules, "pellucid.kernels._native", None)
    monkeypatch.delattr(pellucid.kernels, "_native", raising=False)


def fail() -> None:
    raise KeyError("work")


def check_results() -> None:
    assert on_deep_stack(lambda: 5, 64 * MIB) == 5
    with pytest.raises(KeyError, match="work"):
        on_deep_stack(fail, 64 * MIB)
    with pytest.raises(NotEnoughMemoryError, match=r"the system gave no thread with a stack of \d+ MiB"):
        on_deep_stack(lambda: 5, 1 << 60)


def test_results_and_errors_come_back() -> None:
    check_results()


@pytest.mark.usefixtures("without_kernels")
def test_without_compiled_kernels_too() -> None:
    check_results()
    with pytest.raises(BackendError):
        importlib.import_module("pellucid.kernels.native")


def test_the_setting_of_the_process_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread started elsewhere at the same moment would get its stack by it."""

    def touched(*_: int) -> int:
        raise AssertionError("the stack size of all threads was changed")

    monkeypatch.setattr(threading, "stack_size", touched)
    assert on_deep_stack(lambda: 5, 64 * MIB) == 5


@pytest.mark.usefixtures("without_kernels")
def test_many_at_once_leave_the_setting_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    setting, before = threading.stack_size, threading.stack_size()

    def slow(*size: int) -> int:
        found = setting(*size)
        time.sleep(0.005)
        return found

    threads = [threading.Thread(target=on_deep_stack, args=(lambda: 5, 64 * MIB)) for _ in range(6)]
    monkeypatch.setattr(threading, "stack_size", slow)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert setting() == before


def run_deep(call: str) -> Any:
    """A stack overflow cannot be caught, so another process tries."""
    program = f"""
import sys
from pellucid.kernels.deep_stack import on_deep_stack
sys.setrecursionlimit(10**6)
def depth(n):
    return 1 + max(map(depth, [n - 1])) if n else 0
print({call})
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)


def test_the_stack_is_as_deep_as_asked() -> None:
    done = run_deep("on_deep_stack(lambda: depth(60_000), 512 * 1024**2)")
    assert (done.returncode, done.stdout) == (0, "60000\n"), done.stderr[-500:]
    assert run_deep("on_deep_stack(lambda: depth(60_000), 8 * 1024**2)").returncode != 0
