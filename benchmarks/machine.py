"""What this machine is and what it can do: CPU, instruction sets, load, read bandwidth, products per second."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks import processor
from benchmarks.environments import ROOT, cache_folder

PROBE_SOURCE = Path(__file__).with_name("probe.c")
INSTRUCTION_SETS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512vbmi", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
RATES = (
    "vnni_int8",
    "vnni_int16",
    "avx512_bf16",
    "avx512_float32",
    "avx2_int16",
    "avx2_float32",
    "amx_int8",
    "amx_bf16",
)
PAGES = {"4k": "4 KiB", "2m": "2 MiB"}
COMPILER_FLAGS: tuple[tuple[str, ...], ...] = ((), ("-DNO_AMX",), ("-DNO_AMX", "-DNO_BF16"))
"""The first set that compiles is taken: older compilers do not know the newest instructions."""
Say = Callable[[str], None]


def describe() -> dict[str, Any]:
    """The machine in words and numbers; nothing is measured."""
    info, flags = processor.first_processor(), processor.flags()
    return {
        "cpu": info.get("model name", platform.processor() or platform.machine()),
        "family": " ".join(f"{key} {info[key]}" for key in ("cpu family", "model", "stepping") if key in info),
        "architecture": platform.machine(),
        "cores": os.cpu_count() or 1,
        "usable_cores": processor.usable_cores(),
        "instruction_sets": [name for name in INSTRUCTION_SETS if name in flags],
        "l3_cache": _read("/sys/devices/system/cpu/cpu0/cache/index3/size"),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "kernel": f"{platform.system()} {platform.release()}",
        "hypervisor": "hypervisor" in flags,
        "python": platform.python_version(),
        "commit": _commit(),
    }


def load_average() -> float:
    """Runnable processes over the last minute, as the kernel counts them."""
    return round(os.getloadavg()[0], 2)


class Probe:
    """The compiled probe. `why` says what is missing where it can not be had."""

    def __init__(self) -> None:
        self.why: str | None = None
        self._program: Path | None = None
        compiler = next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)
        if compiler is None:
            self.why = "no C compiler (cc, gcc or clang) to build the probe with"
            return
        self._program = self._compile(compiler)

    def _compile(self, compiler: str) -> Path | None:
        source = PROBE_SOURCE.read_bytes()
        folder = cache_folder() / "probe"
        folder.mkdir(parents=True, exist_ok=True)
        message = ""
        for flags in COMPILER_FLAGS:
            program = folder / f"probe-{sha256(source + repr((compiler, flags)).encode()).hexdigest()[:16]}"
            if program.exists():
                return program
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                built = Path(temporary) / "probe"
                command = [compiler, "-O3", "-pthread", *flags, "-o", str(built), str(PROBE_SOURCE)]
                result = subprocess.run(command, capture_output=True, text=True, check=False)
                if result.returncode == 0:
                    built.replace(program)
                    return program
                message = result.stderr
        self.why = f"{compiler} can not build {PROBE_SOURCE.name}: {message.strip().splitlines()[-1:]}"
        return None

    def run(self, *arguments: str | int | float) -> dict[str, Any]:
        """One measurement: {"value": …, "mean": …, "unit": …} or {"skipped": why}."""
        if self._program is None:
            return {"skipped": self.why}
        command = [str(self._program), *map(str, arguments)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            return {"skipped": f"the probe ended with exit code {result.returncode}"}
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    def bandwidth(self, threads: int, pages: str, seconds: float) -> dict[str, Any]:
        """GB/s of reading 512 MB on pages of 4 KiB ("4k") or 2 MiB ("2m"), the best of several prefetch distances."""
        return self.run("bandwidth", threads, pages, 512, seconds)


def thread_counts(threads: int) -> list[int]:
    """One thread, two, and all that are used."""
    return sorted({1, min(2, threads), threads})


def measure_limits(threads: int, seconds: float, say: Say) -> dict[str, Any]:
    """Bandwidths and rates, for each number of threads: {"bandwidth 2 MiB pages": {"1": {…}, "2": {…}}, …}."""
    probe = Probe()
    limits: dict[str, Any] = {}
    for pages, words in PAGES.items():
        limits[f"bandwidth, {words} pages"] = row = {}
        for count in thread_counts(threads):
            row[str(count)] = probe.bandwidth(count, pages, seconds)
            say(_line(f"read bandwidth, {words} pages, {count} threads", row[str(count)]))
    for name in RATES:
        limits[name] = row = {}
        for count in thread_counts(threads):
            row[str(count)] = probe.run("rate", count, name, seconds / 4)
        say(_line(f"{name}, {threads} threads", row[str(threads)]))
    return limits


def bandwidth_again(threads: int, seconds: float) -> dict[str, Any]:
    """The 2 MiB bandwidth of all threads, measured once more at the end: how much the machine changed meanwhile."""
    return Probe().bandwidth(threads, "2m", seconds)


def _line(name: str, result: dict[str, Any]) -> str:
    if "skipped" in result:
        return f"{name}: skipped, {result['skipped']}"
    return f"{name}: {result['value']:.3g} {result['unit']} (mean {result['mean']:.3g})"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _commit() -> str:
    """The project's commit, with a + where files differ from it; empty outside a checkout."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno", "--", "src", "csrc"], cwd=ROOT, capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
