"""What converters do to weights, undone to the bit, and files that are refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.small_models import LLAMA_SHAPE, llama_metadata, llama_tensors, write_llama
from models.stored_folders import typed_weights, write_typed
from parity.ours import load_ours, logits

from pellucid.config import RopeConfig, RopeScaling
from pellucid.errors import ModelFileError, UnsupportedModelError
from pellucid.formats.block_types import F32
from pellucid.formats.gguf import GGUFFile
from pellucid.kernels.dispatch import make_backend
from pellucid.kernels.reference import ReferenceMatrix
from pellucid.models.loading import load_model, read_config
from pellucid.models.rotary import inverse_frequencies
from pellucid.models.weights import AttentionWeights

IDS = [5, 17, 40, 3, 77, 12]


def converted(rows: np.ndarray, heads: int) -> np.ndarray:
    """`LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py: half-split pairs become interleaved ones."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 2), (9, 3), (8, 1)])
def test_m68_q_and_k_of_a_whole_model_are_the_published_rows(tmp_path: Path, heads: int, kv_heads: int) -> None:
    head_dim, hidden = LLAMA_SHAPE["head_dim"], LLAMA_SHAPE["hidden"]
    tensors = llama_tensors(np.random.default_rng(0))
    published: list[np.ndarray] = []
    for i in range(LLAMA_SHAPE["layers"]):
        parts = {}
        for name, count in (("attn_q", heads), ("attn_k", kv_heads), ("attn_v", kv_heads)):
            parts[name] = (
                np.random.default_rng(count + i).standard_normal((count * head_dim, hidden)).astype(np.float32)
            )
            stored = parts[name] if name == "attn_v" else converted(parts[name], count)
            tensors[f"blk.{i}.{name}.weight"] = (stored.shape, F32, np.ascontiguousarray(stored).view(np.uint8))
        published.append(np.concatenate(list(parts.values())))
        out = np.zeros((hidden, heads * head_dim), np.float32)
        tensors[f"blk.{i}.attn_output.weight"] = (out.shape, F32, out.view(np.uint8))
    counts: dict[str, Any] = {
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.key_length": head_dim,
    }
    model = load_model(write_llama(tmp_path / "m.gguf", llama_metadata(**counts), tensors), make_backend("reference"))
    for layer, expected in zip(model.weights.layers, published, strict=True):
        assert isinstance(layer.attention, AttentionWeights)
        assert isinstance(layer.attention.qkv.matrix, ReferenceMatrix)
        np.testing.assert_array_equal(layer.attention.qkv.matrix.weights, expected)


# LlamaRotaryEmbedding(rope_theta=500000, head_dim=32, rope_type="llama3", factor=8, low_freq_factor=1,
# high_freq_factor=4, original_max_position_embeddings=8192).inv_freq of transformers 5.24.0.
LLAMA3_INV_FREQ = [
    1.0,
    0.44036662578582764,
    0.193922758102417,
    0.08539710193872452,
    0.03760603070259094,
    0.016560440883040428,
    0.00729266507551074,
    0.0032114461064338684,
    0.0005248460220173001,
    7.784655463183299e-05,
    3.428102354519069e-05,
    1.5096217794052791e-05,
    6.647869668086059e-06,
    2.927499735960737e-06,
    1.289173155782919e-06,
    5.677088097399974e-07,
]


def test_m69_llama3_frequencies_are_those_of_transformers() -> None:
    """The divisors are what llama.cpp's converter writes into `rope_freqs.weight`."""
    base, dim, factor, low, high, trained = 500000.0, 32, 8.0, 1.0, 4.0, 8192
    divisors = []
    for frequency in 1.0 / base ** (np.arange(0, dim, 2) / dim):
        wavelength = 2 * np.pi / frequency
        if wavelength < trained / high:
            divisors.append(1.0)
        elif wavelength > trained / low:
            divisors.append(factor)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    rope = RopeConfig(theta=base, dim=dim, scaling=RopeScaling("divisors", factors=tuple(divisors)))
    np.testing.assert_allclose(inverse_frequencies(rope), LLAMA3_INV_FREQ, rtol=5e-7)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"llama.expert_count": 8}, ModelFileError, "llama.expert_used_count is missing"),
        ({"llama.rope.scaling.type": "spiral"}, UnsupportedModelError, "rope.scaling.type is 'spiral', but only none,"),
        ({"llama.rope.scaling.type": 3}, ModelFileError, "rope.scaling.type is 3, but must be a string"),
        ({"split.count": [1, 2]}, UnsupportedModelError, "split.count is array"),
        ({"llama.attention.head_count": [4, 4]}, ModelFileError, "llama.attention.head_count is array"),
        ({"llama.attention.head_count": 128}, ModelFileError, "llama.attention.head_count 128 does not divide"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    path = write_llama(tmp_path / "m.gguf", llama_metadata(**changes))
    with pytest.raises(kind, match=message):
        load_model(path, make_backend("native", 1))


@pytest.mark.parametrize("factor", [0.0, -1.0, np.nan, np.inf])
def test_rope_factors_that_give_no_angle_are_refused(tmp_path: Path, factor: float) -> None:
    tensors = llama_tensors(np.random.default_rng(0))
    factors = np.array([1, 1, 1, factor, 4, 8, 8, 8], dtype=np.float32)
    tensors["rope_freqs.weight"] = ((8,), F32, factors.view(np.uint8))
    with pytest.raises(ModelFileError, match=r"rope_freqs.weight has a factor that is not finite or not above 0"):
        load_model(write_llama(tmp_path / "m.gguf", tensors=tensors), make_backend("native", 1))


def test_the_config_says_which_norms_there_are(tmp_path: Path, gemma3_path: Path) -> None:
    for path, expected in ((write_llama(tmp_path / "m.gguf"), False), (gemma3_path, True)):
        with GGUFFile.open(path) as file:
            _, config = read_config(file)
        assert (config.qk_norm, config.post_norms) == (expected, expected)


def test_a_hostile_tensor_name_is_shown_escaped_and_short(tmp_path: Path) -> None:
    tensors = llama_tensors(np.random.default_rng(0))
    tensors["\x1b[31m\n" + "x" * 5000] = tensors["output_norm.weight"]
    with pytest.raises(ModelFileError) as caught:
        load_model(write_llama(tmp_path / "m.gguf", tensors=tensors), make_backend("native", 1))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250


def test_m73_the_head_of_a_folder(tmp_path: Path) -> None:
    """Tied: a copy that is in the file too is no matter. Not tied and not there: said so, and by its name."""
    tensors = typed_weights("llama")
    untied = logits(load_ours(write_typed(tmp_path / "untied", "llama", tensors), "reference"), IDS)
    copied = write_typed(tmp_path / "copied", "llama", tensors, tie_word_embeddings=True)
    del tensors["lm_head.weight"]
    tied = write_typed(tmp_path / "tied", "llama", tensors, tie_word_embeddings=True)
    with_copy, without = (logits(load_ours(folder, "reference"), IDS) for folder in (copied, tied))
    np.testing.assert_array_equal(with_copy, without)
    assert np.abs(with_copy - untied).max() > 0.1, "the copy is not read"
    with pytest.raises(ModelFileError, match=r"tensor lm_head.weight is missing, and tie_word_embeddings is false"):
        load_ours(write_typed(tmp_path / "lost", "llama", tensors), "reference")
