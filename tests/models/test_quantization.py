"""Quantise on load and to a file: which tensor becomes what, and that both ways give the same bits."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from models.small_models import llama_metadata, llama_tensors, write_llama
from models.stored_folders import typed_weights, write_typed
from parity.ours import load_ours, logits
from tokenizer.small_tokenizers import byte_level_metadata

from pellucid.config import QUANTIZATIONS, EngineArgs, Quantization
from pellucid.engine.loading import load_parts, needed_bytes
from pellucid.errors import InvalidParameterError, ModelFileError
from pellucid.formats.block_types import BLOCK_TYPES_BY_NAME, BlockType
from pellucid.formats.dequantize import dequantize
from pellucid.formats.gguf import GGUFFile
from pellucid.formats.quantize import quantize
from pellucid.kernels.dispatch import make_backend
from pellucid.models.model_files import open_model
from pellucid.models.quantized_file import FILE_TYPES, quantize_file

IDS = [5, 17, 40, 3, 77, 12]
F32 = BLOCK_TYPES_BY_NAME["F32"]


def wide_llama(path: Path, source: str = "F32") -> Path:
    """hidden_size 64, but an MLP of 256 numbers, so that `ffn_down` has whole K blocks."""
    rng = np.random.default_rng(0)
    tensors = llama_tensors(rng, source)
    for name, (shape, _, _) in list(tensors.items()):
        wide = tuple(256 if size == 96 and "token_embd" not in name else size for size in shape)
        if wide != shape:
            values = rng.standard_normal(wide).astype(np.float32) * np.float32(wide[-1] ** -0.5)
            kind = BLOCK_TYPES_BY_NAME[source]
            tensors[name] = (wide, kind, quantize(values, kind))
    return write_llama(path, llama_metadata(**{"llama.feed_forward_length": 256}) | byte_level_metadata(), tensors)


def padded(path: Path) -> Path:
    """The same with an embedding as large as the tokenizer."""
    rng = np.random.default_rng(1)
    with GGUFFile.open(path) as file:
        tensors = {t.name: (t.shape, t.type, t.data.copy()) for t in file.tensors.values()}
        metadata = file.metadata
    rows = rng.standard_normal((len(metadata["tokenizer.ggml.tokens"]), 64)).astype(np.float32)
    tensors["token_embd.weight"] = (rows.shape, F32, rows.reshape(-1).view(np.uint8))
    return write_llama(path, metadata, tensors)


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_the_rule(tmp_path: Path, quantization: Quantization) -> None:
    source = padded(wide_llama(tmp_path / "m.gguf"))
    quantize_file(source, tmp_path / "q.gguf", quantization)
    smaller = {"q4_k": "Q4_1", "q5_k": "Q5_1", "q6_k": "Q8_0"}
    plain = smaller.get(quantization, quantization.upper())
    reader = gguf.GGUFReader(tmp_path / "q.gguf")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.0.ffn_down.weight"] == quantization.upper()
    assert kinds["blk.1.attn_q.weight"] == kinds["blk.1.ffn_up.weight"] == plain
    assert kinds["blk.0.attn_norm.weight"] == "F32"
    assert reader.get_field("general.file_type").contents() == FILE_TYPES[quantization]
    assert (
        reader.get_field("tokenizer.ggml.tokens").contents() == GGUFFile.open(source).metadata["tokenizer.ggml.tokens"]
    )


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_on_load_and_from_the_file_are_the_same_bits(tmp_path: Path, quantization: Quantization) -> None:
    source = padded(wide_llama(tmp_path / "m.gguf"))
    quantize_file(source, tmp_path / "q.gguf", quantization)
    args = EngineArgs(model=str(source), quantization=quantization)
    on_load, _ = load_parts(args)
    from_file, _ = load_parts(EngineArgs(model=str(tmp_path / "q.gguf")))
    np.testing.assert_array_equal(logits(on_load, IDS), logits(from_file, IDS))  # type: ignore[arg-type]
    assert on_load.config.weight_bytes == from_file.config.weight_bytes
    assert needed_bytes(args) == needed_bytes(EngineArgs(model=str(tmp_path / "q.gguf")))


def test_folders_of_every_form_of_matrix(tmp_path: Path) -> None:
    """Transposed, stacked and fused matrices too: as close to the floats as 8 bits are."""
    for name in ("llama", "gpt2", "olmo2", "gpt-oss", "deepseek-v3", "mixtral"):
        folder = write_typed(tmp_path / name, name, typed_weights(name))
        with open_model(folder) as files:
            model = files.load(make_backend("reference"), quantization="q8_0")
        exact = logits(load_ours(folder, "reference"), IDS)
        difference = np.abs(logits(model, IDS) - exact).max() / np.abs(exact).max()
        assert 0 < difference < 0.1, name


def test_blocks_stay_as_they_are(tmp_path: Path) -> None:
    source = padded(wide_llama(tmp_path / "m.gguf", "Q5_1"))
    quantize_file(source, tmp_path / "q.gguf", "q4_0")
    before, after = GGUFFile.open(source).tensors, GGUFFile.open(tmp_path / "q.gguf").tensors
    name = "blk.0.attn_q.weight"
    assert after[name].type.name == "Q5_1"
    np.testing.assert_array_equal(before[name].data, after[name].data)


def test_refusals(tmp_path: Path) -> None:
    source = padded(wide_llama(tmp_path / "m.gguf"))
    with pytest.raises(InvalidParameterError, match="quantization is 'q3_k', but must be one of q8_0"):
        EngineArgs(quantization="q3_k")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameterError, match="must be another file"):
        quantize_file(source, source, "q8_0")
    with GGUFFile.open(source) as file:
        tensors = {t.name: (t.shape, t.type, t.data.copy()) for t in file.tensors.values()}
        metadata = file.metadata
    tensors["blk.0.attn_q.weight"][2].view(np.float32)[7] = np.nan
    write_llama(source, metadata, tensors)
    with pytest.raises(ModelFileError, match=r"blk.0.attn_q.weight can not be quantised: values must be finite"):
        quantize_file(source, tmp_path / "q.gguf", "q8_0")
    assert not (tmp_path / "q.gguf").exists()


def _kinds() -> list[BlockType]:
    return [BLOCK_TYPES_BY_NAME[name] for name in ("Q4_K", "Q5_K", "Q6_K")]


@pytest.mark.parametrize("block_type", _kinds(), ids=lambda t: t.name)
def test_k_types_err_no_more_than_llama_cpp(block_type: BlockType) -> None:
    """Relative errors of ggml_quantize_chunk (llama.cpp as of llama-cpp-python 0.3.36) on the same values."""
    values = (np.random.RandomState(0).standard_t(4, (64, 1024)) * 0.02).astype(np.float32)
    theirs = {"Q4_K": 0.0864, "Q5_K": 0.0439, "Q6_K": 0.0230}[block_type.name]
    ours = dequantize(quantize(values, block_type), block_type, values.shape)
    error = float(np.sqrt(np.square(ours - values).mean() / np.square(values).mean()))
    assert error < theirs * 1.03


@pytest.mark.parametrize("block_type", _kinds(), ids=lambda t: t.name)
def test_k_types_of_odd_values(block_type: BlockType) -> None:
    rng = np.random.default_rng(3)
    rows = [
        np.zeros(256), np.full(256, 3.5), np.full(256, -2.0),
        np.abs(rng.standard_normal(256)), -np.abs(rng.standard_normal(256)),
        rng.standard_normal(256) * 1e-30, rng.standard_normal(256) * 1e3, np.where(np.arange(256) == 7, 100.0, 0.0),
        np.where(np.arange(256) < 32, rng.standard_normal(256), 0.0),
    ]  # fmt: skip
    values = np.stack(rows).astype(np.float32)
    data = quantize(values, block_type)
    ours = dequantize(data, block_type, values.shape)
    np.testing.assert_array_equal(
        ours, gguf.quants.dequantize(data.reshape(len(rows), -1), gguf.GGMLQuantizationType[block_type.name])
    )
    steps = {"Q4_K": 15, "Q5_K": 31, "Q6_K": 31}[block_type.name]
    bound = (np.maximum(values.max(axis=1), 0) - np.minimum(values.min(axis=1), 0)) * 1.3 / steps + 1e-6
    assert (np.abs(ours - values).max(axis=1) <= bound).all()
