"""Folders that are not what they say: one sentence each, and nothing allocated beyond the files."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parity.families import BY_NAME, golden_description, write_folder

from pellucid.config import EngineArgs
from pellucid.engine.loading import load_parts
from pellucid.errors import ModelFileError, ModelStoreError, PellucidError, UnsupportedModelError
from pellucid.formats.block_types import F32
from pellucid.formats.gguf_writer import write_gguf


def changed_config(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(config))


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def only_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def hostile(folder: Path) -> None:
    text = json.dumps({"x": {"dtype": "F32", "shape": [1 << 40, 1 << 20], "data_offsets": [0, 1 << 62]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def endless_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", (1 << 63) - 1) + b"{}")


def large_tokenizer(folder: Path) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(200))]
    (folder / "vocab.txt").write_text("\n".join(pieces))


ROPE = {"rope_parameters": {"rope_type": "spiral", "rope_theta": 10000.0, "factor": 2.0}}
CASES: dict[str, tuple[Callable[[Path], None], type[PellucidError], str]] = {
    "hidden_size": (lambda f: changed_config(f, hidden_size=128), ModelFileError, r"has shape .* but must have"),
    "layers": (lambda f: changed_config(f, num_hidden_layers=4), ModelFileError, r"layers\.3\..* is missing"),
    "fewer layers": (lambda f: changed_config(f, num_hidden_layers=2), ModelFileError, r"layers\.2\..* is unknown to"),
    "rope type": (
        lambda f: changed_config(f, **ROPE),
        UnsupportedModelError,
        "rope_type is 'spiral', but only default",
    ),
    "cut": (cut, ModelFileError, r"model\.safetensors"),
    "pickle": (only_a_pickle, ModelFileError, r"pytorch_model\.bin is a pickle file, which may run any program"),
    "hostile": (hostile, ModelFileError, r"model\.safetensors"),
    "endless header": (endless_header, ModelFileError, r"model\.safetensors"),
    "tokenizer": (large_tokenizer, ModelFileError, r"tokenizer has 205 tokens, but the embedding has 96 rows"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_each(case: str, tmp_path: Path) -> None:
    change, kind, said = CASES[case]
    folder = write_folder(BY_NAME["llama"], tmp_path / "hf", golden_description("llama"))
    size = sum(file.stat().st_size for file in folder.iterdir())
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(91))]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    load_parts(EngineArgs(model=str(folder), backend="reference"))
    change(folder)
    tracemalloc.start()
    with pytest.raises((ModelFileError, UnsupportedModelError), match=said) as caught:
        load_parts(EngineArgs(model=str(folder), backend="reference"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(caught.value, kind)
    assert "\n" not in str(caught.value)
    assert peak < 4 * size + 1_000_000


def test_g60_an_adapter_is_no_model(tmp_path: Path) -> None:
    """None is ever applied, so that the key of a cached prefix need not have it."""
    folder, path = tmp_path / "adapter", tmp_path / "adapter.gguf"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
    keys = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"}
    write_gguf(path, keys, {"blk.0.attn_q.weight.lora_a": ((8, 64), F32, bytes(4 * 8 * 64))})
    with pytest.raises(ModelStoreError, match=r"adapter holds no GGUF file, and no config\.json with safetensors"):
        load_parts(EngineArgs(model=str(folder)))
    with pytest.raises(UnsupportedModelError, match=r"adapter\.gguf is an adapter, not a model, and adapters are not"):
        load_parts(EngineArgs(model=str(path)))
