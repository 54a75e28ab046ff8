"""What is free: the machine's memory and the container's limits, both control group versions, from files made here."""

from __future__ import annotations

from pathlib import Path

import pytest

from pellucid.kv_cache import memory
from pellucid.kv_cache.memory import container_limits, free_memory, total_memory

GIB = 1024**3


def write(folder: Path, **files: str | int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def process(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def test_version_two_counts_every_group_around(tmp_path: Path, process: Path) -> None:
    process.write_text("0::/outer/inner\n")
    write(tmp_path / "outer", memory__max=4 * GIB, memory__current=3 * GIB, memory__stat=f"anon 5\ninactive_file {GIB}")
    write(tmp_path / "outer" / "inner", memory__max="max", memory__current=GIB)
    assert container_limits(process, tmp_path) == [(4 * GIB, 2 * GIB)]


def test_inside_a_container_the_groups_own_folder_is_the_root(tmp_path: Path, process: Path) -> None:
    process.write_text("0::/../docker/abc\n")
    write(tmp_path, memory__max=GIB, memory__current=GIB // 4)
    assert container_limits(process, tmp_path) == [(GIB, GIB // 4)]


def test_version_one(tmp_path: Path, process: Path) -> None:
    process.write_text("8:pids:/a\n4:cpu,memory:/a/b\n0::/\n")
    write(tmp_path / "memory", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=GIB)
    write(
        tmp_path / "memory" / "a",
        memory__limit_in_bytes=2 * GIB,
        memory__usage_in_bytes=GIB,
        memory__stat="inactive_file 1\ntotal_inactive_file 1000",
    )
    assert container_limits(process, tmp_path) == [(2 * GIB, GIB - 1000)]


@pytest.mark.parametrize("text", ["", "nonsense\n", "0:\n", "4:memory:/gone\n"])
def test_without_groups_there_is_no_limit(tmp_path: Path, process: Path, text: str) -> None:
    assert container_limits(process, tmp_path) == []
    process.write_text(text)
    assert container_limits(process, tmp_path) == []


def test_the_least_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = tmp_path / "meminfo"
    facts.write_text("MemTotal:       99 kB\nMemAvailable:       2097152 kB\n")
    monkeypatch.setattr(memory, "MEMORY_FACTS", facts)
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(memory, "container_limits", lambda: limits)
    assert free_memory() == 2 * GIB
    machine = total_memory()
    limits.append((GIB, GIB // 2))
    assert (total_memory(), free_memory()) == (min(machine, GIB), GIB // 2)
    limits.append((GIB // 4, GIB))
    assert free_memory() == 0
    limits.clear()
    facts.write_text("no such line\n")
    assert free_memory() == machine
