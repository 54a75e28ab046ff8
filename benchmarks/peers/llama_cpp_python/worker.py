"""llama.cpp through llama-cpp-python."""

from __future__ import annotations

import ctypes
import importlib
from importlib.metadata import version

from benchmarks.peers.llama_cpp import LlamaCppEngine
from benchmarks.peers.protocol import serve

llama_cpp = importlib.import_module("llama_cpp")


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _silent(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    """The library reports every tensor it loads."""


class LlamaCppPythonEngine(LlamaCppEngine):
    """The package's module has upstream's functions."""

    def __init__(self) -> None:
        super().__init__(llama_cpp)
        llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))

    def describe(self) -> dict[str, str]:
        system = bytes(llama_cpp.llama_print_system_info()).decode()
        sets = [part.split("=")[0].strip(" :|") for part in system.split("|") if part.strip().endswith("= 1")]
        return {"version": version("llama-cpp-python"), "built with": " ".join(s.split()[-1] for s in sets)}

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def keep(self, tokens: int) -> None:
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), 0, tokens, -1)


if __name__ == "__main__":
    serve(LlamaCppPythonEngine())
