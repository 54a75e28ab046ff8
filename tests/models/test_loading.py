"""From a file to a decoder: what is read, what is refused, and the conventions of the files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from models.small_models import LLAMA_SHAPE, llama_metadata, llama_tensors, write_llama

from pellucid.config import RopeConfig
from pellucid.errors import ModelFileError, NotEnoughMemoryError, UnsupportedModelError
from pellucid.formats.block_types import BLOCK_TYPES_BY_NAME
from pellucid.formats.gguf import GGUFFile
from pellucid.formats.quantize import quantize
from pellucid.forward_batch import SequencePart, batch_of
from pellucid.kernels.dispatch import make_backend
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.models import loading
from pellucid.models.architectures.common import half_split_rows
from pellucid.models.decoder import Decoder
from pellucid.models.loading import load_model, read_config
from pellucid.models.rotary import RotaryTable, inverse_frequencies
from pellucid.models.sources import gguf_source
from pellucid.trace.probe import Recorder

F32 = BLOCK_TYPES_BY_NAME["F32"]


def logits_of(model: Decoder, ids: list[int], probe: Recorder | None = None) -> np.ndarray:
    """Logits [T, vocab] of one sequence run in one step."""
    kv = KVCacheStorage.for_model(model.config, 8, dtype="float32")
    batch = batch_of([SequencePart(ids, 0, range(8))], kv.block_size)
    return model.compute_logits(model.forward(batch, kv, probe).hidden).copy()


IDS = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79, 50, 28]


@pytest.mark.parametrize("weight_type", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_native_and_reference_agree_on_a_whole_model(tmp_path: Path, weight_type: str) -> None:
    path = write_llama(tmp_path / "m.gguf", tensors=llama_tensors(np.random.default_rng(1), weight_type))
    native, reference = (load_model(path, make_backend(name, 2)) for name in ("native", "reference"))
    # Float weights take float32 activations: only the order of sums differs. Integer weights take 16-bit ones.
    bound = 2e-5 if weight_type in ("F32", "F16", "BF16") else 1e-3
    np.testing.assert_allclose(logits_of(native, IDS), logits_of(reference, IDS), rtol=0, atol=bound)


def test_m68_rows_of_q_and_k_go_back_to_the_order_before_conversion() -> None:
    heads, head_dim = 3, 8
    weights = np.arange(heads * head_dim * 5, dtype=np.float32).reshape(heads * head_dim, 5)
    # llama.cpp's converter: the two halves of each head become the odd and even rows.
    stored = weights.reshape(heads, 2, head_dim // 2, 5).swapaxes(1, 2).reshape(weights.shape)
    np.testing.assert_array_equal(stored[half_split_rows(heads, head_dim, head_dim)], weights)


def test_m71_the_rope_base_of_the_file_is_used(tmp_path: Path) -> None:
    results = []
    for base in (5000.0, 10000.0, None):
        path = write_llama(tmp_path / "m.gguf", llama_metadata(**{"llama.rope.freq_base": base}))
        results.append(logits_of(load_model(path, make_backend("reference")), IDS))
    assert np.abs(results[0] - results[1]).max() > 1e-3
    np.testing.assert_array_equal(results[1], results[2])  # 10000 where the file names none


def test_m69_llama3_factors_divide_the_inverse_frequencies(tmp_path: Path) -> None:
    tensors = llama_tensors(np.random.default_rng(0))
    factors = np.array([1, 1, 1, 2.5, 4, 8, 8, 8], dtype=np.float32)
    tensors["rope_freqs.weight"] = ((8,), F32, factors.view(np.uint8))
    with GGUFFile.open(write_llama(tmp_path / "m.gguf", tensors=tensors)) as file:
        _, config = read_config(file)
    plain = inverse_frequencies(dataclasses.replace(config.rope, scaling=None))
    np.testing.assert_allclose(inverse_frequencies(config.rope), plain / factors, rtol=1e-7)
    load_model(tmp_path / "m.gguf", make_backend("reference"))


def test_inverse_frequencies_of_the_paper() -> None:
    frequencies = inverse_frequencies(RopeConfig(theta=10000.0, dim=64))
    np.testing.assert_allclose(frequencies, 10000.0 ** (-2 * np.arange(32) / 64), rtol=3e-7)


def test_rotary_rows_do_not_depend_on_the_order_of_asking() -> None:
    rope = RopeConfig(theta=100000.0, dim=64)
    one, two = RotaryTable(rope), RotaryTable(rope)
    far = np.array([4000], dtype=np.int32)
    first = one.rows(far)
    for position in (0, 255, 256, 300, 4000):
        two.rows(np.array([position], dtype=np.int32))
    for a, b in zip(first, two.rows(far), strict=True):
        assert np.array_equal(a, b)


def test_m73_a_tied_head_is_the_embedding_and_an_untied_one_is_used(tmp_path: Path) -> None:
    tied = load_model(write_llama(tmp_path / "tied.gguf"), make_backend("native", 1))
    assert tied.weights.head is tied.weights.embedding
    assert tied.config.tie_word_embeddings
    tensors = llama_tensors(np.random.default_rng(0), tied=False)
    untied = load_model(write_llama(tmp_path / "untied.gguf", tensors=tensors), make_backend("native", 1))
    assert not untied.config.tie_word_embeddings
    assert np.abs(logits_of(untied, IDS) - logits_of(tied, IDS)).max() > 0.1
    tensors["output.weight"] = tensors["token_embd.weight"]
    copied = load_model(write_llama(tmp_path / "copied.gguf", tensors=tensors), make_backend("native", 1))
    assert logits_of(copied, IDS).shape == (len(IDS), LLAMA_SHAPE["vocab"])


def test_tied_models_of_one_seed_have_the_same_body(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf")
    recorder = Recorder()
    model = load_model(path, make_backend("native", 1))
    with_probe = logits_of(model, IDS, recorder)
    np.testing.assert_array_equal(with_probe, logits_of(model, IDS))
    assert {"embedding", "layers.0.attn.q", "layers.1.attn.out", "layers.1.residual", "final_norm"} <= set(
        recorder.tensors
    )
    assert recorder.tensors["layers.0.attn.k"].shape == (len(IDS), 32)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general.architecture": "mamba"}, ["mamba", "gemma2, gemma3", "llama, olmo2"]),
        ({"general.architecture": None}, ["None", "supported"]),
        ({"llama.block_count": None}, ["llama.block_count", "missing"]),
        ({"llama.block_count": 0}, ["llama.block_count", "0"]),
        ({"llama.context_length": 1}, ["llama.context_length", "from 2"]),
        ({"llama.block_count": 3}, ["blk.2.attn_norm.weight", "missing"]),
        ({"llama.block_count": 1}, ["blk.1.", "unknown"]),
        ({"llama.attention.head_count_kv": 3}, ["4 heads", "3 KV heads"]),
        (
            {"llama.attention.head_count": 1000, "llama.attention.head_count_kv": 1000},
            ["llama.embedding_length is 64, which llama.attention.head_count 1000 does not divide", "key_length says"],
        ),
        (
            {"llama.attention.head_count": 5, "llama.attention.head_count_kv": 5},
            ["llama.embedding_length is 64, which llama.attention.head_count 5 does not divide"],
        ),
        ({"llama.embedding_length": 128}, ["token_embd.weight", "(96, 64)"]),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, ["layer_norm_rms_epsilon", "-1.0"]),
        ({"llama.rope.dimension_count": 7}, ["rope.dimension_count", "7"]),
        ({"llama.rope.scaling.type": "spiral"}, ["rope.scaling.type", "spiral"]),
        ({"llama.logit_scale": 0.5}, ["llama.logit_scale", "not supported"]),
        ({"llama.feed_forward_length": "many"}, ["feed_forward_length", "many"]),
    ],
)
def test_files_that_do_not_fit_are_refused_by_name(tmp_path: Path, changes: dict, words: list[str]) -> None:
    path = write_llama(tmp_path / "m.gguf", llama_metadata(**changes))
    with pytest.raises((ModelFileError, UnsupportedModelError)) as caught:
        load_model(path, make_backend("native", 1))
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_misshapen_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    for change, words in (
        ({"blk.1.ffn_up.weight": None}, "blk.1.ffn_up.weight is missing"),
        ({"blk.0.attn_q.weight": ((64, 96), F32, np.zeros(64 * 96 * 4, np.uint8))}, "blk.0.attn_q.weight has shape"),
        ({"blk.0.attn_q.scale": ((64,), F32, np.zeros(256, np.uint8))}, "'blk.0.attn_q.scale' is unknown"),
        ({"token_embd.weight": None}, "token_embd.weight is missing"),
        ({"output_norm.weight": None}, "output_norm.weight is missing"),
    ):
        tensors = llama_tensors(np.random.default_rng(0)) | change
        kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        with pytest.raises(ModelFileError, match=words):
            load_model(write_llama(tmp_path / "m.gguf", tensors=kept), make_backend("native", 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"llama.rope.freq_base": 1e-45},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1e-45},
    ],
)
def test_rotary_frequencies_beyond_float32_are_refused(tmp_path: Path, changes: dict) -> None:
    path = write_llama(tmp_path / "m.gguf", llama_metadata(**changes))
    with pytest.raises(ModelFileError, match=r"m.gguf: rope.freq_base .* not finite"):
        load_model(path, make_backend("reference"))


@pytest.mark.parametrize("head_dim", [8, 24, 592])
def test_heads_that_the_native_backend_cannot_keep_are_refused_on_loading(
    tmp_path: Path, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LLAMA_SHAPE, "head_dim", head_dim)
    metadata = llama_metadata(**{"llama.attention.key_length": head_dim})
    path = write_llama(tmp_path / "m.gguf", metadata, llama_tensors(np.random.default_rng(0)))
    load_model(path, make_backend("reference"))
    with pytest.raises(UnsupportedModelError, match=f"m.gguf: head_dim is {head_dim}: .*multiple of 16, at most 576"):
        load_model(path, make_backend("native", 1))


def test_a_known_type_without_kernels_is_named_with_its_tensor(tmp_path: Path) -> None:
    unserved = next(t for t in BLOCK_TYPES_BY_NAME.values() if not t.served and 64 % t.block_size == 0)
    tensors = llama_tensors(np.random.default_rng(0))
    data = np.zeros(unserved.nbytes((96, 64)), dtype=np.uint8)
    norm = np.zeros(unserved.nbytes((64,)), dtype=np.uint8)
    for change in (("blk.0.ffn_gate.weight", (96, 64), data), ("blk.1.ffn_norm.weight", (64,), norm)):
        path = write_llama(tmp_path / "m.gguf", tensors=tensors | {change[0]: (change[1], unserved, change[2])})
        for name in ("native", "reference"):
            with pytest.raises(UnsupportedModelError, match=f"m.gguf: tensor '{change[0]}' is of type {unserved.name}"):
                load_model(path, make_backend(name, 1))


def write_parts(folder: Path, count: int) -> list[Path]:
    """A small model in several files, as gguf-split writes them."""
    tensors = list(llama_tensors(np.random.default_rng(0)).items())
    paths = []
    for number in range(count):
        own = dict(tensors[number::count])
        keys = {"split.no": np.uint16(number), "split.count": np.uint16(count)}
        keys |= {"split.tensors.count": np.int32(len(tensors))}
        metadata = llama_metadata(**keys) if number == 0 else keys
        paths.append(write_llama(folder / f"m-{number + 1:05}-of-{count:05}.gguf", metadata, own))
    return paths


def test_a_split_model_is_the_same_model(tmp_path: Path) -> None:
    backend = make_backend("native", 1)
    whole = load_model(write_llama(tmp_path / "m.gguf"), backend)
    parts = write_parts(tmp_path, 3)
    for path in (parts[0], parts[2]):
        np.testing.assert_array_equal(logits_of(load_model(path, backend), [1, 2, 3]), logits_of(whole, [1, 2, 3]))


def test_missing_cut_and_foreign_parts_are_named(tmp_path: Path) -> None:
    backend = make_backend("native", 1)
    parts = write_parts(tmp_path, 2)
    whole = parts[1].read_bytes()
    parts[1].write_bytes(whole[:-100])
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002.gguf is cut short"):
        load_model(parts[0], backend)
    parts[1].write_bytes(parts[0].read_bytes())
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002.gguf says that it is part 0 of 2"):
        load_model(parts[0], backend)
    parts[1].unlink()
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002.gguf is missing"):
        load_model(parts[0], backend)
    renamed = parts[0].rename(tmp_path / "one.gguf")
    with pytest.raises(UnsupportedModelError, match="one part of a split model"):
        load_model(renamed, backend)


def test_quantised_norms_and_vectors_are_read(tmp_path: Path) -> None:
    tensors = llama_tensors(np.random.default_rng(0))
    kind = BLOCK_TYPES_BY_NAME["F16"]
    tensors["output_norm.weight"] = ((64,), kind, quantize(np.ones(64, dtype=np.float32), kind))
    load_model(write_llama(tmp_path / "m.gguf", tensors=tensors), make_backend("native", 1))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_weights_larger_than_the_free_memory_are_refused_before_they_are_packed(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_llama(tmp_path / "m.gguf", llama_metadata(), llama_tensors(np.random.default_rng(0)))
    chosen = make_backend(backend)
    decoder = load_model(path, chosen)
    with GGUFFile.open(path) as file:
        needed = gguf_source(file).packed_bytes(chosen)
    vectors = needed - decoder.weight_bytes
    assert 0 < vectors < 100_000, "matrices as they are packed, and the norms"
    monkeypatch.setattr(loading, "free_memory", lambda: needed)
    load_model(path, chosen)
    monkeypatch.setattr(loading, "free_memory", lambda: needed - 1)
    monkeypatch.setattr(chosen, "matrix", lambda parts: pytest.fail("nothing may be packed"))
    with pytest.raises(NotEnoughMemoryError, match=f"m.gguf: the weights take {needed} bytes .* but {needed - 1} of"):
        load_model(path, chosen)
