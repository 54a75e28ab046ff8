"""Which backend, how many threads, which instruction set."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from pellucid.config import BACKENDS
from pellucid.errors import InvalidParameterError, PellucidWarning
from pellucid.kernels.backend import Backend, SamplingKernels

ISA_VARIABLE = "PELLUCID_ISA"
"""Environment variable that names an instruction set, to try a slower one on purpose."""


def usable_cores() -> int:
    """Cores this process may run on: its CPU affinity, or the container's quota where that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _quota_cores() or cores)


def _quota_cores(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> int | None:
    """Whole cores of the control group's quota, at least 1 (Linux cgroup v2: "QUOTA PERIOD"); None without one."""
    try:
        quota, period = path.read_text().split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def make_backend(name: str = "native", threads: int | None = None) -> Backend:
    """The named backend; `threads` is the number of cores this process may use when None.

    More threads than cores are allowed, with a `PellucidWarning`. Raises `InvalidParameterError` for an unknown name
    and `BackendError` where the kernels can not run.
    """
    if name not in BACKENDS:
        raise InvalidParameterError("backend", f"backend is {name!r}, but must be one of {', '.join(BACKENDS)}")
    if name == "reference":
        from pellucid.kernels.reference import ReferenceBackend

        return ReferenceBackend()
    from pellucid.kernels.native import NativeBackend

    cores = usable_cores()
    if threads is not None and threads > cores:
        warnings.warn(
            f"threads is {threads}, but this process may use {cores} {'core' if cores == 1 else 'cores'}: more threads "
            "than cores slow each other down",
            PellucidWarning,
            stacklevel=2,
        )
    return NativeBackend(threads or cores, os.environ.get(ISA_VARIABLE, ""))


def unused_instructions() -> str | None:
    """Why faster instructions of this processor are not used; None where there are none."""
    from pellucid.kernels import native

    return native.unused_instructions() or None


def make_sampling_kernels(name: str = "native", threads: int | None = None) -> SamplingKernels | None:
    """The named backend's, on as many threads as `make_backend` takes.

    None for the reference: there sampling runs as it is defined, stage by stage.
    """
    if name == "reference":
        return None
    from pellucid.kernels.native import NativeSampling

    return NativeSampling(os.environ.get(ISA_VARIABLE, ""), threads or usable_cores())
