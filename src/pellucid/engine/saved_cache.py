"""What must be the same for a saved KV cache to be used again, and when it is read and written.

Law 1 says that the same weights, arithmetic and settings give the same bits. Names and settings are compared one by
one, so that a refusal can say what differs. What no setting tells (another build's kernels, another instruction set,
weights changed in place) shows in keys and values themselves: a fixed text is run, and its bits are compared.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pellucid.config import EngineArgs, ModelConfig
from pellucid.errors import KVCacheFileError
from pellucid.forward_batch import SequencePart, batch_of
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.kv_cache.saved import check_is_ours, load_cache, save_cache
from pellucid.kv_cache.storage import KVCacheStorage

_PROBE_TOKENS = 48
_PIECE = 1 << 20


class EngineLike(Protocol):
    """What is read of an engine."""

    args: EngineArgs
    config: ModelConfig
    max_model_len: int
    model: Any
    kv: KVCacheManager
    storage: KVCacheStorage


class SavedCache:
    """The file of one engine. A file that this engine cannot use is kept as FILE.old when its own is saved."""

    def __init__(self, engine: EngineLike, path: str) -> None:
        """Raises `InvalidParameterError` where the file is there and is no saved cache."""
        self._engine = engine
        self._path = Path(path)
        check_is_ours(self._path)
        self._aside: Path | None = None
        self._settings: dict[str, str] | None = None
        self.note: str | None = None
        """Why the file was not used; None when it was, or when there was none."""

    def load(self) -> int:
        """Take what the file has; gives back the number of blocks. A file that cannot be used leaves a `note`."""
        if not self._path.exists() or self._path.stat().st_size == 0:
            return 0
        engine = self._engine
        try:
            return load_cache(self._path, engine.kv, engine.storage, self._known_settings(), engine.config.vocab_size)
        except KVCacheFileError as error:
            self._aside = self._path.with_name(f"{self._path.name}.old")
            self.note = f"{error}; when a new one is saved, this file is kept as {self._aside}"
            return 0

    def save(self) -> int:
        """Write what is cached now; gives back the number of blocks. Raises `KVCacheFileError`."""
        saved = save_cache(self._path, self._engine.kv, self._engine.storage, self._known_settings(), self._aside)
        self._aside = None
        return saved

    def _known_settings(self) -> dict[str, str]:
        if self._settings is None:
            engine = self._engine
            self._settings = {
                "model": engine.args.model,
                "weights file": _weights_digest(engine.args.model),
                "--rope-scaling": str(engine.args.rope_scaling),
                "--rope-theta": str(engine.args.rope_theta),
                "shape of the model": hashlib.sha256(repr(engine.config).encode()).hexdigest(),
                "--kv-cache-dtype": engine.args.kv_cache_dtype,
                "--precision": engine.args.precision,
                "--max-model-len": str(engine.max_model_len),
                "--backend": engine.args.backend,
                "arithmetic (instruction set, kernels or weights)": _arithmetic_digest(engine),
            }
        return self._settings


def _weights_digest(name: str) -> str:
    """sha256 of the model's file, or of the names and contents of its folder's files; empty where there is none."""
    from pellucid.errors import PellucidError
    from pellucid.model_store.store import resolve

    try:
        path = resolve(name, download=False)
    except PellucidError:  # a model made in memory: its arithmetic tells
        return ""
    digest = hashlib.sha256()
    for part in [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file()):
        digest.update(f"{part.name}\n".encode())
        with part.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    return digest.hexdigest()


def _arithmetic_digest(engine: EngineLike) -> str:
    """A hash of the keys and values of a fixed text, ids from all over the vocabulary, in a cache of its own."""
    own, count = engine.storage, min(_PROBE_TOKENS, engine.max_model_len)
    num_blocks = -(-count // own.block_size)
    scratch = KVCacheStorage.for_model(engine.config, num_blocks, own.block_size, own.dtype)
    ids = np.linspace(0, engine.config.vocab_size - 1, count).astype(np.int32)
    fast_rows = np.arange(count) < count // 2 if engine.args.precision == "fast" else None
    batch = batch_of([SequencePart(ids.tolist(), 0, range(num_blocks))], own.block_size)
    engine.model.forward(replace(batch, fast_rows=fast_rows), scratch)
    digest = hashlib.sha256()
    for block in range(num_blocks):
        digest.update(scratch.block_bytes(block))
    return digest.hexdigest()
