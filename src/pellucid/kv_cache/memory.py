"""How much memory this process may have and how much of it is free: the machine's, and its container's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

PROCESS_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
MEMORY_FACTS = Path("/proc/meminfo")
_NO_LIMIT = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2^63."""


def total_memory() -> int:
    """Bytes this process may ever have: the machine's memory, or its container's limit where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit, _ in container_limits())])


def free_memory() -> int:
    """Bytes it can have now without anything being paged out: files in the page cache count as free.

    On systems without /proc/meminfo the machine's whole memory.
    """
    free = _available()
    machine = total_memory() if free is None else free
    return max(0, min([machine, *(limit - used for limit, used in container_limits())]))


def container_limits(process: Path = PROCESS_GROUPS, root: Path = GROUPS) -> list[tuple[int, int]]:
    """(limit, used) in bytes of every control group with a limit around this process (Linux cgroup v2 and v1).

    Pages of files that nobody holds on to are not counted as used, since they are given back when asked for.
    """
    found = []
    for folder, names in _group_folders(process, root):
        limit, used = _number(folder / names[0]), _number(folder / names[1])
        if limit is not None and used is not None and limit < _NO_LIMIT:
            found.append((limit, max(0, used - _inactive_file(folder / "memory.stat", names[2]))))
    return found


def _group_folders(process: Path, root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The process's groups from the innermost out, and the files' names there; in a container often the root only."""
    try:
        lines = process.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            top, names = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top, names = root / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth]), names


def _available() -> int | None:
    try:
        for line in MEMORY_FACTS.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _number(path: Path) -> int | None:
    """A whole number that is all of a file; None for "max" or where there is no such file."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _inactive_file(path: Path, name: str) -> int:
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
