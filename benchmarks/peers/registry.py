"""Which engines there are, what each needs, and how its process is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

PEERS_FOLDER = Path(__file__).resolve().parent
OURS, FAST = "pellucid", "pellucid-fast"
"""The engine that ratios are against, and the same with `--precision fast`, whose speed has a price in fidelity."""


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
    cmake_sets: dict[str, str] = field(default_factory=dict)
    """CMake options that turn instruction sets on, by the set's name, where the package is compiled here."""
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
        Peer(OURS, "pellucid", "pellucid", "pellucid", is_ours=True),
        Peer(
            FAST,
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
            cmake_sets={
                "avx2": "GGML_AVX2",
                "fma": "GGML_FMA",
                "f16c": "GGML_F16C",
                "bmi2": "GGML_BMI2",
                "avx512f": "GGML_AVX512",
                "avx512vbmi": "GGML_AVX512_VBMI",
                "avx512_vnni": "GGML_AVX512_VNNI",
                "avx512_bf16": "GGML_AVX512_BF16",
            },
        ),
        Peer("ik-llama-cpp-python", "ik_llama.cpp (AVX2)", "ik_llama_cpp", "ik_llama_cpp"),
        Peer("openvino-genai", "OpenVINO GenAI", "openvino_genai", "openvino_genai"),
        Peer("transformers", "transformers bf16", "transformers", "transformers"),
        Peer("vllm-cpu", "vLLM CPU bf16", "vllm_cpu", "vllm", slow_start=True),
    )
}
