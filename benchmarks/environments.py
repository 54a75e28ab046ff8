"""A virtual environment for each peer, in the cache folder: found, made, and its absence explained."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from benchmarks import processor
from benchmarks.peers.registry import PEERS, Peer

CACHE_VARIABLE = "PELLUCID_BENCHMARKS_CACHE"
"""Environment variable that names the folder of environments, dequantised models and compiled probes."""
ROOT = Path(__file__).resolve().parent.parent


def cache_folder() -> Path:
    """Where everything lies that can be made again."""
    from pellucid.model_store.cache import cache_folder as models_cache

    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else models_cache() / "benchmarks"


def environment_python(peer: Peer) -> Path:
    """The interpreter of the peer's own environment, whether it exists or not."""
    return cache_folder() / "environments" / peer.name / "bin" / "python"


def find_python(peer: Peer, given: Mapping[str, str]) -> Path | str:
    """An interpreter that can import the peer's module, or a sentence that says why there is none."""
    if peer.is_ours:
        return Path(sys.executable)
    python = Path(given[peer.name]) if peer.name in given else environment_python(peer)
    if not python.exists():
        where = f" ({python} does not exist)" if peer.name in given else ""
        return f"not installed{where}: python -m benchmarks.run --setup {peer.name}"
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({peer.module!r}) is None)"
    if subprocess.run([str(python), "-c", code], capture_output=True, check=False).returncode:
        return f"not installed: {python} can not import {peer.module}; python -m benchmarks.run --setup {peer.name}"
    return python


def build_variables(peer: Peer) -> dict[str, str]:
    """What pip's environment needs to compile the peer for this machine: on x86 each set by name, and no AMX."""
    if not peer.cmake_sets or "CMAKE_ARGS" in os.environ:
        return {}
    if platform.machine() not in ("x86_64", "AMD64"):
        return {"CMAKE_ARGS": "-DGGML_NATIVE=ON"}
    flags = processor.flags()
    options = [f"-D{option}={'ON' if name in flags else 'OFF'}" for name, option in peer.cmake_sets.items()]
    return {"CMAKE_ARGS": " ".join(["-DGGML_NATIVE=OFF", *options])}


def set_up(peer: Peer) -> int:
    """Make the peer's environment and install its pinned packages; pip's output is shown. Gives pip's exit code."""
    if peer.is_ours:
        print(f"{peer.name} runs with the interpreter that runs the benchmark: nothing to set up")
        return 0
    python = environment_python(peer)
    if not python.exists():
        venv.create(python.parent.parent, with_pip=True)
    variables = build_variables(peer)
    environment = {**os.environ, **variables}
    for requirements in peer.requirements:
        # A file named …-without-dependencies holds packages whose own pins can not be met outside their makers' index.
        extra = ["--no-deps"] if requirements.stem.endswith("without-dependencies") else []
        command = [str(python), "-m", "pip", "install", *extra, "-r", str(requirements)]
        print(" ".join([*(f"{k}={v!r}" for k, v in variables.items()), *command]), flush=True)
        code = subprocess.run(command, env=environment, check=False).returncode
        if code:
            print(f"{peer.name}: pip ended with exit code {code}")
            return code
    found = find_python(peer, {})
    print(f"{peer.name}: {'ready' if isinstance(found, Path) else found}")
    return 0 if isinstance(found, Path) else 1


def find_all(names: list[str], given: Mapping[str, str]) -> tuple[dict[str, Path], dict[str, str]]:
    """Interpreters by peer name, and why the others have none."""
    pythons: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for name in names:
        found = find_python(PEERS[name], given)
        if isinstance(found, Path):
            pythons[name] = found
        else:
            missing[name] = found
    return pythons, missing
