"""ik_llama.cpp through ik-llama-cpp-python."""

from __future__ import annotations

import ctypes
import importlib
from importlib.metadata import version
from typing import Any

from benchmarks.peers.llama_cpp import LlamaCppEngine
from benchmarks.peers.protocol import serve

api = importlib.import_module("ik_llama_cpp._ctypes_api")


class IkLlamaCppEngine(LlamaCppEngine):
    """This fork has the older functions of the KV cache, one of which the package does not bind."""

    def __init__(self) -> None:
        super().__init__(api)
        self._remove: Any = api._lib.llama_kv_cache_seq_rm
        self._remove.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]

    def describe(self) -> dict[str, str]:
        return {"version": version("ik-llama-cpp-python"), "built with": "AVX2", "weights": "repacked when loaded"}

    def model_params(self) -> Any:
        params = super().model_params()
        params.repack_tensors, params.use_mmap = True, False  # its fastest layout; it can not repack a mapped file
        return params

    def context_params(self, streams: int) -> Any:
        params = super().context_params(streams)
        params.flash_attn = streams == 1  # with several, an assertion of its kernel fails (S > 0) and ends the process
        return params

    def clear(self) -> None:
        api.llama_kv_cache_clear(self._context)

    def keep(self, tokens: int) -> None:
        self._remove(self._context, 0, tokens, -1)


if __name__ == "__main__":
    serve(IkLlamaCppEngine())
