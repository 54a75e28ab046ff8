"""What the operating system says about the processor, before anything is measured."""

from __future__ import annotations

import os
from pathlib import Path


def first_processor() -> dict[str, str]:
    """The first entry of /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def flags() -> set[str]:
    """Instruction sets and other features by the kernel's names."""
    info = first_processor()
    return set(info.get("flags", info.get("Features", "")).split())


def usable_cores() -> int:
    """Cores this process may use: its affinity, and the quota of its control group where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return cores
