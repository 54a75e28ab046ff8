"""Which engines there are, what each needs, and how its process is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

PEERS_FOLDER = Path(__file__).resolve().parent
OURS = "pellucid"
"""The engine that ratios are against."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One engine as the command line names it."""

    name: str
    label: str
    """As tables and charts show it."""
    package: str
    """Its folder here, with `worker.py` and `requirements.txt`."""
    module: str
    """What its environment must be able to import."""
    arguments: tuple[str, ...] = ()
    """Of the worker."""
    build_environment: dict[str, str] = field(default_factory=dict)
    """Variables for pip, where the package is compiled."""
    is_ours: bool = False
    """It runs with the interpreter that runs the benchmark."""
    slow_start: bool = False
    """More than half a minute: `--quick` leaves it out unless it is named."""
    kinds: tuple[str, ...] | None = None
    """The kinds of scenario it takes part in; all when None."""

    @property
    def worker(self) -> str:
        """The module that `python -m` runs."""
        return f"benchmarks.peers.{self.package}.worker"

    @property
    def requirements(self) -> list[Path]:
        """Files of pinned packages, in the order of installation."""
        return sorted((PEERS_FOLDER / self.package).glob("requirements*.txt"), key=lambda path: path.stem)


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("pellucid", "pellucid", "pellucid", "pellucid", is_ours=True),
        Peer(
            "pellucid-fast",
            "pellucid --precision fast",
            "pellucid",
            "pellucid",
            arguments=("fast",),
            is_ours=True,
            kinds=("prefill", "fidelity"),
        ),
        Peer(
            "llama-cpp-python",
            "llama-cpp-python",
            "llama_cpp_python",
            "llama_cpp",
            build_environment={"CMAKE_ARGS": "-DGGML_NATIVE=ON -DGGML_AMX_TILE=OFF -DGGML_AMX_INT8=OFF"},
        ),
        Peer("ik-llama-cpp-python", "ik_llama.cpp (AVX2)", "ik_llama_cpp", "ik_llama_cpp"),
        Peer("openvino-genai", "OpenVINO GenAI", "openvino_genai", "openvino_genai"),
        Peer("transformers", "transformers bf16", "transformers", "transformers"),
        Peer("vllm-cpu", "vLLM CPU bf16", "vllm_cpu", "vllm", slow_start=True),
    )
}
