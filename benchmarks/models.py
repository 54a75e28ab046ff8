"""The model files: where they are, what one token costs, and the float32 truth that fidelity is measured against."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.environments import ROOT, cache_folder

GOLDEN_FOLDER = ROOT / "tests" / "golden"
EMBEDDING, HEAD = "token_embd.weight", "output.weight"


def facts(path: Path) -> dict[str, Any]:
    """What decoding and prefilling one token costs, from the file's tensors.

    `bytes_per_token` are the weights that a decode step reads once, `kv_bytes_per_token` what one token of context adds
    by default, `operations_per_token` two for each weight of the layers (the head runs on the last position only, and
    attention is not counted).
    """
    from pellucid.config import DEFAULT_KV_CACHE_DTYPE
    from pellucid.formats.gguf import GGUFFile
    from pellucid.models.loading import read_config

    with GGUFFile.open(path) as file:
        config = read_config(file)[1]
        tensors = dict(file.tensors)
        embedding = tensors[EMBEDDING].nbytes if HEAD in tensors else 0
        matrices = [t.shape for name, t in tensors.items() if len(t.shape) == 2 and name not in (EMBEDDING, HEAD)]
        return {
            "file": path.name,
            "bytes_per_token": sum(t.nbytes for t in tensors.values()) - embedding,
            "kv_bytes_per_token": config.kv_bytes_per_token(DEFAULT_KV_CACHE_DTYPE),
            "operations_per_token": sum(2 * rows * columns for rows, columns in matrices),
            "context_length": config.context_length,
        }


def golden_fixture(path: Path) -> Path | None:
    """The fixture of logits under tests/golden that was made from exactly this file; others hold other things."""
    with path.open("rb") as stream:
        digest = sha256()
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    for fixture in sorted(GOLDEN_FOLDER.glob("*.npz")):
        with np.load(fixture, allow_pickle=False) as stored:
            if "meta" in stored and json.loads(str(stored["meta"]))["sha256"] == digest.hexdigest():
                return fixture
    return None


@contextmanager
def head_file(path: Path) -> Iterator[Path]:
    """The LM head [vocab, d] in float32 as an .npy file that workers map; removed afterwards."""
    from pellucid.formats.dequantize import dequantize
    from pellucid.formats.gguf import GGUFFile

    cache_folder().mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache_folder()) as folder:
        file_name = Path(folder) / "head.npy"
        with GGUFFile.open(path) as file:
            tensor = file.tensors.get(HEAD) or file.tensors[EMBEDDING]
            np.save(file_name, dequantize(tensor.data, tensor.type, tensor.shape))
        yield file_name
