"""Folders of the small parity models with tensors in any type of safetensors, and with a tokenizer."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from parity.families import BY_NAME, golden_description, weights_of

Typed = dict[str, tuple[str, np.ndarray]]
"""Name → (type of safetensors, array of its bytes or numbers)."""


def typed_weights(name: str) -> Typed:
    """The float32 tensors of a small model."""
    model = BY_NAME[name]
    return {key: ("F32", values) for key, values in weights_of(model, golden_description(name)["shapes"]).items()}


def safetensors_bytes(tensors: Typed) -> bytes:
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [end, end + values.nbytes]}
        end += values.nbytes
    text = json.dumps(header).encode()
    data = b"".join(np.ascontiguousarray(values).tobytes() for _, values in tensors.values())
    return struct.pack("<Q", len(text)) + text + data


def write_typed(folder: Path, name: str, tensors: Typed, **config: Any) -> Path:
    """The folder of a small model with these tensors; config: what differs in config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(golden_description(name)["config"] | config))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return folder


def write_tokenizer(folder: Path, num_tokens: int) -> None:
    """A WordPiece-free tokenizer of so many tokens: the bytes that fit, by GPT-2's alphabet."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[: num_tokens - 3]
    vocab = {"<pad>": 0, "<s>": 1, "</s>": 2} | {letter: i + 3 for i, letter in enumerate(letters)}
    engine = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens(["<pad>", "<s>", "</s>"])
    engine.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>", "add_bos_token": false}')
