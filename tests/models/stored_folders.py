"""Folders of the small parity models with tensors in any type of safetensors, and with a tokenizer."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from parity.families import BY_NAME, golden_description, weights_of

from pellucid.formats.block_types import MXFP4
from pellucid.formats.dequantize import dequantize
from pellucid.formats.repack import E4M3_VALUES, fp8_values, mxfp4_blocks

Typed = dict[str, tuple[str, np.ndarray]]
"""Name → (type of safetensors, array of its bytes or numbers)."""


def typed_weights(name: str) -> Typed:
    """The float32 tensors of a small model."""
    model = BY_NAME[name]
    return {key: ("F32", values) for key, values in weights_of(model, golden_description(name)["shapes"]).items()}


def coded_gpt_oss() -> tuple[Typed, Typed]:
    """gpt-oss with experts in MXFP4 as it is published, and with the floats that the codes stand for."""
    rng = np.random.default_rng(1)
    packed, plain = typed_weights("gpt-oss"), typed_weights("gpt-oss")
    for name in [n for n in packed if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = plain[name][1].shape
        codes = rng.integers(0, 256, (experts, rows, columns // 32, 16), dtype=np.uint8)
        scales = rng.integers(121, 125, (experts, rows, columns // 32), dtype=np.uint8)
        del packed[name]
        packed[name + "_blocks"], packed[name + "_scales"] = ("U8", codes), ("U8", scales)
        values = dequantize(mxfp4_blocks(codes.reshape(-1, 16), scales.reshape(-1)), MXFP4, (experts, rows, columns))
        plain[name] = ("F32", np.ascontiguousarray(values.swapaxes(1, 2)))
    return packed, plain


def coded_deepseek(power_of_two: bool) -> tuple[Typed, Typed]:
    """DeepSeek-V3 with matrices in FP8 as it is published, and with the floats that the codes stand for."""
    rng = np.random.default_rng(2)
    packed, plain = typed_weights("deepseek-v3"), typed_weights("deepseek-v3")
    for name in [n for n in packed if n.endswith("_proj.weight")]:
        rows, columns = plain[name][1].shape
        codes = rng.integers(0, 0x50, (rows, columns), dtype=np.uint8) | (rng.integers(0, 2, (rows, columns)) << 7)
        codes = codes.astype(np.uint8)
        scales = rng.uniform(0.01, 0.03, (-(-rows // 128), -(-columns // 128))).astype(np.float32)
        if power_of_two:
            scales = np.exp2(np.round(np.log2(scales))).astype(np.float32)
        packed[name] = ("F8_E4M3", codes)
        packed[name + "_scale_inv"] = ("F32", scales)
        whole = np.kron(scales, np.ones((128, 128), dtype=np.float32))[:rows, :columns]
        np.testing.assert_array_equal(fp8_values(codes, scales), E4M3_VALUES[codes] * whole)
        plain[name] = ("F32", E4M3_VALUES[codes] * whole)
    return packed, plain


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
