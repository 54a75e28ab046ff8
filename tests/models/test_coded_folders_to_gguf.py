"""gpt-oss and DeepSeek as they are published, in 4 and 8 bit codes, written as GGUF; and what a folder may not hold."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from models.stored_folders import (
    Typed,
    coded_deepseek,
    coded_gpt_oss,
    typed_weights,
    write_tokenizer,
    write_typed,
)
from models.test_folder_to_gguf import written
from parity.families import FAMILIES, SmallModel, write_folder
from parity.ours import load_ours, logits
from parity.to_gguf import has_gguf_form, write_llama_cpp

from pellucid.config import EngineArgs
from pellucid.engine.loading import load_parts
from pellucid.errors import ModelFileError
from pellucid.formats.gguf import GGUFFile
from pellucid.models.quantized_file import quantize_file

IDS = [5, 17, 40, 3, 77, 12]


def folder_of(place: Path, name: str, tensors: Typed) -> Path:
    folder = write_typed(place, name, tensors)
    write_tokenizer(folder, 96)
    return folder


@pytest.mark.parametrize("name", ["gpt-oss", "deepseek-v3", "deepseek-v2"])
@pytest.mark.parametrize("coded", [True, False])
def test_the_file_is_the_folder_quantised_on_load(name: str, coded: bool, tmp_path: Path) -> None:
    tensors = typed_weights(name)
    if coded and name == "deepseek-v2":
        pytest.skip("the codes of DeepSeek are V3's")
    if coded:
        tensors = coded_gpt_oss()[0] if name == "gpt-oss" else coded_deepseek(False)[0]
    folder, out = folder_of(tmp_path / "hf", name, tensors), tmp_path / "q.gguf"
    counts = quantize_file(folder, out, "q8_0")
    on_load, _ = load_parts(EngineArgs(model=str(folder), quantization="q8_0"))
    from_file, _ = load_parts(EngineArgs(model=str(out)))
    one, other = logits(on_load, IDS), logits(from_file, IDS)  # type: ignore[arg-type]
    # Yarn's multiplier is kept in float32.
    assert np.abs(one - other).max() <= (1e-5 * np.abs(one).max() if name == "deepseek-v3" else 0)
    assert counts.get("MXFP4", 0) == (9 if name == "gpt-oss" and coded else 0)


def test_mxfp4_is_read_by_the_gguf_package(tmp_path: Path) -> None:
    packed, plain = coded_gpt_oss()
    quantize_file(folder_of(tmp_path / "hf", "gpt-oss", packed), tmp_path / "q.gguf", "q8_0")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "q.gguf").tensors}
    together = plain["model.layers.1.mlp.experts.gate_up_proj"][1].swapaxes(1, 2)
    for name, rows in (("gate", together[:, 0::2]), ("up", together[:, 1::2])):
        tensor = tensors[f"blk.1.ffn_{name}_exps.weight"]
        assert tensor.tensor_type == gguf.GGMLQuantizationType.MXFP4
        np.testing.assert_array_equal(gguf.quants.dequantize(tensor.data, tensor.tensor_type), rows)
    bias = plain["model.layers.1.mlp.experts.gate_up_proj_bias"][1]
    np.testing.assert_array_equal(tensors["blk.1.ffn_up_exps.bias"].data, bias[:, 1::2])


@pytest.mark.parametrize("small", [m for m in FAMILIES if has_gguf_form(m)], ids=lambda small: small.name)
def test_tensors_and_keys_are_those_of_llama_cpps_converter(small: SmallModel, tmp_path: Path) -> None:
    """The files of `write_llama_cpp` are read by llama.cpp in the live comparison (tests/parity/test_live.py)."""
    ours = GGUFFile.open(written(write_folder(small, tmp_path / "hf"), tmp_path / "m.gguf"))
    theirs = GGUFFile.open(write_llama_cpp(small, tmp_path / "llama.gguf"))
    assert set(ours.tensors) == set(theirs.tensors)
    for name, tensor in theirs.tensors.items():
        assert (ours.tensors[name].shape, ours.tensors[name].type) == (tensor.shape, tensor.type), name
        np.testing.assert_allclose(  # the factors of a scaling are computed twice
            ours.tensors[name].data.view(np.float32),
            tensor.data.view(np.float32),
            rtol=1e-6 if name.startswith("rope_") else 0,
            err_msg=name,
        )
    if small.name == "llama-linear":
        # The converter leaves out that a linear scaling reaches further.
        theirs.metadata["llama.context_length"] *= 4
    for key, value in theirs.metadata.items():
        if key not in ("general.name", f"{theirs.metadata['general.architecture']}.vocab_size"):
            wanted = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
            assert ours.metadata.get(key) == wanted, key


def test_the_layer_after_the_last_is_left_out(tmp_path: Path) -> None:
    """DeepSeek-V3's folders have one more, which guesses ahead."""
    tensors = typed_weights("deepseek-v3")
    path = write_typed(tmp_path / "plain", "deepseek-v3", tensors)
    expected = logits(load_ours(path, "reference"), IDS)
    tensors["model.layers.3.eh_proj.weight"] = ("F32", np.zeros((64, 128), dtype=np.float32))
    folder = folder_of(tmp_path / "more", "deepseek-v3", tensors)
    np.testing.assert_array_equal(logits(load_ours(folder, "reference"), IDS), expected)
    quantize_file(folder, tmp_path / "q.gguf", "q8_0")
    assert not any("eh_proj" in name or "blk.3" in name for name in GGUFFile.open(tmp_path / "q.gguf").tensors)
    tensors["model.layers.4.eh_proj.weight"] = ("F32", np.zeros((64, 128), dtype=np.float32))
    folder = folder_of(tmp_path / "unknown", "deepseek-v3", tensors)
    with pytest.raises(ModelFileError, match=r"tensor 'layers.4.eh_proj.weight' is unknown"):
        load_ours(folder, "reference")


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("llama", "model.norm.weight"),
        ("llama", "model.layers.1.mlp.up_proj.weight"),
        ("gpt-oss", "model.layers.1.self_attn.sinks"),
        ("gpt-oss", "model.layers.2.mlp.experts.down_proj"),
        ("deepseek-v3", "model.layers.2.mlp.experts.7.up_proj.weight"),
        ("deepseek-v3", "model.layers.0.self_attn.kv_b_proj.weight"),
        ("deepseek-v3", "model.layers.1.mlp.shared_experts.down_proj.weight"),
    ],
)
def test_missing_and_unknown_tensors_are_named_before_anything_is_written(name: str, lost: str, tmp_path: Path) -> None:
    tensors = typed_weights(name)
    given = tensors.pop(lost)
    folder = folder_of(tmp_path / "hf", name, tensors)
    with pytest.raises(ModelFileError, match=f"hf: tensor {lost.removeprefix('model.')} is missing"):
        quantize_file(folder, tmp_path / "q.gguf", "q8_0")
    tensors |= {lost: given, "model.layers.0.other": given}
    folder = folder_of(tmp_path / "more", name, tensors)
    with pytest.raises(ModelFileError, match=r"tensor 'layers.0.other' is unknown to architecture"):
        quantize_file(folder, tmp_path / "q.gguf", "q8_0")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == []
