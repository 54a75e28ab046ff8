"""Types of safetensors beyond plain floats, and folders as models: embeddings with more rows than tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from models.stored_folders import coded_deepseek, coded_gpt_oss, typed_weights, write_tokenizer, write_typed
from parity.ours import load_ours, logits

from pellucid import LLM, SamplingParams
from pellucid.errors import InvalidParameterError, ModelFileError, UnsupportedModelError
from pellucid.formats.block_types import MXFP4
from pellucid.formats.dequantize import dequantize
from pellucid.formats.repack import E4M3_VALUES, mxfp4_blocks

IDS = [5, 17, 40, 3, 77, 12, 60, 60, 9]


def test_values_of_8_bit_floats() -> None:
    assert E4M3_VALUES[[0x00, 0x01, 0x08, 0x38, 0x40, 0x7E, 0xB8]].tolist() == [0, 2**-9, 2**-6, 1, 2, 448, -1]
    assert np.isnan(E4M3_VALUES[[0x7F, 0xFF]]).all()


def test_blocks_of_4_bit_floats_keep_every_number() -> None:
    # Byte j holds elements 2 j (low nibble) and 2 j + 1 in gpt-oss's files.
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
    codes = np.random.default_rng(0).integers(0, 256, (5, 16), dtype=np.uint8)
    scales = np.array([120, 127, 130, 100, 128], dtype=np.uint8)
    expected = np.stack([levels[codes & 15], levels[codes >> 4]], axis=2).reshape(5, 32)
    expected *= 2.0 ** (scales.astype(np.float32)[:, None] - 127)
    np.testing.assert_array_equal(dequantize(mxfp4_blocks(codes, scales), MXFP4, (5, 32)), expected)


def test_gpt_oss_in_4_bit_floats(tmp_path: Path) -> None:
    """The same logits as the floats that the codes stand for."""
    packed, plain = coded_gpt_oss()
    ours = logits(load_ours(write_typed(tmp_path / "packed", "gpt-oss", packed), "reference"), IDS)
    expected = logits(load_ours(write_typed(tmp_path / "plain", "gpt-oss", plain), "reference"), IDS)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    del packed[next(name for name in packed if name.endswith("_scales"))]
    with pytest.raises(ModelFileError, match="_scales is missing"):
        load_ours(write_typed(tmp_path / "cut", "gpt-oss", packed), "reference")


@pytest.mark.parametrize("power_of_two", [True, False])
def test_8_bit_floats_with_block_scales(tmp_path: Path, power_of_two: bool) -> None:
    packed, plain = coded_deepseek(power_of_two)
    ours = logits(load_ours(write_typed(tmp_path / "packed", "deepseek-v3", packed), "reference"), IDS)
    expected = logits(load_ours(write_typed(tmp_path / "plain", "deepseek-v3", plain), "reference"), IDS)
    np.testing.assert_array_equal(ours, expected)
    del packed["model.layers.0.mlp.down_proj.weight_scale_inv"]
    with pytest.raises(UnsupportedModelError, match=r"down_proj.weight is of type F8_E4M3, which is supported with"):
        load_ours(write_typed(tmp_path / "cut", "deepseek-v3", packed), "reference")


@pytest.mark.parametrize("dtype", ["F64", "I64", "I8", "BOOL", "F8_E5M2"])
def test_types_without_kernels_are_refused_by_name(tmp_path: Path, dtype: str) -> None:
    tensors = typed_weights("llama")
    values = tensors["model.norm.weight"][1]
    sizes = {"F64": 8, "I64": 8}
    tensors["model.norm.weight"] = (dtype, np.zeros(len(values), dtype=f"V{sizes.get(dtype, 1)}"))
    with pytest.raises(UnsupportedModelError, match=f"norm.weight' is of type {dtype}, which is not supported"):
        load_ours(write_typed(tmp_path, "llama", tensors), "native")


def test_a_folder_is_a_model(tmp_path: Path) -> None:
    """Rows of the embedding beyond the tokenizer are never drawn, whatever their logits are."""
    tensors = typed_weights("llama")
    head = "lm_head.weight" if "lm_head.weight" in tensors else "model.embed_tokens.weight"
    tensors[head][1][80:] *= 100
    folder = write_typed(tmp_path / "m", "llama", tensors)
    write_tokenizer(folder, 80)
    with LLM(model=str(folder)) as llm:
        assert llm.config.vocab_size == 80
        params = SamplingParams(max_tokens=40, ignore_eos=True, temperature=2.0, logprobs=5, seed=1)
        answer = llm.generate("!!", params)[0].outputs[0]
        assert len(answer.token_ids) == 40
        assert max(answer.token_ids) < 80
        assert all(token_id < 80 for entry in answer.logprobs or [] for token_id in entry)
        with pytest.raises(InvalidParameterError, match="79"):
            llm.generate([3, 85])


def test_a_tokenizer_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    folder = write_typed(tmp_path / "m", "llama", typed_weights("llama"))
    write_tokenizer(folder, 97)
    with pytest.raises(ModelFileError, match="the tokenizer has 97 tokens, but the embedding has 96 rows"):
        LLM(model=str(folder))
