"""Which backend, how many threads, which instruction set."""

from __future__ import annotations

import os

from pellucid.config import BACKENDS
from pellucid.errors import InvalidParameterError
from pellucid.kernels.backend import Backend

ISA_VARIABLE = "PELLUCID_ISA"
"""Environment variable that names an instruction set, to try a slower one on purpose."""


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_backend(name: str = "native", threads: int | None = None) -> Backend:
    """The named backend; `threads` is the number of cores this process may use when None.

    Raises `InvalidParameterError` for an unknown name and `BackendError` where the kernels can not run.
    """
    if name not in BACKENDS:
        raise InvalidParameterError("backend", f"backend is {name!r}, but must be one of {', '.join(BACKENDS)}")
    if name == "reference":
        from pellucid.kernels.reference import ReferenceBackend

        return ReferenceBackend()
    from pellucid.kernels.native import NativeBackend

    return NativeBackend(threads or usable_cores(), os.environ.get(ISA_VARIABLE, ""))
