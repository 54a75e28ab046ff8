"""Every family beside transformers, and its GGUF form beside llama.cpp; needs `pip install '.[parity]'`."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models.stored_folders import coded_deepseek, coded_gpt_oss, typed_weights, write_tokenizer, write_typed
from models.test_folder_to_gguf import NOT_WRITTEN
from parity.families import BY_NAME, FAMILIES, VOCAB, SmallModel, golden_description, write_folder
from parity.llama_cpp_logits import llama_cpp_logits
from parity.ours import NUM_BLOCKS, batch, load_ours, logits, one_by_one, storage
from parity.to_gguf import has_gguf_form, write_llama_cpp

from pellucid.beam_search_params import BeamSearchParams
from pellucid.engine.beam_search import BeamSearch
from pellucid.formats.block_types import F32
from pellucid.formats.gguf import GGUFFile
from pellucid.formats.gguf_writer import write_gguf
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.models.decoder import Decoder
from pellucid.models.quantized_file import quantize_file

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs pip install '.[parity]'"),
]
TOLERANCE = 1e-4
"""Of the largest logit."""
NUM_GREEDY = 64
_GROWS = ("llama-dynamic", "phi3-short")
"""transformers changes the scaling of these while the text grows; ours is resolved once."""
_LLAMA_CPP_DIFFERS = {
    "phi3-short": "it makes its context 256 tokens long at least, and takes the long factors for them",
    "starcoder2-window": "it gives this family no window",
    "deepseek-v2": "it takes queries for uncompressed only in models of 26 or 27 layers",
}
_CODED = {"gpt-oss": lambda: coded_gpt_oss()[0], "deepseek-v3": lambda: coded_deepseek(power_of_two=False)[0]}
BY_FAMILY = pytest.mark.parametrize("small", FAMILIES, ids=lambda small: small.name)


@BY_FAMILY
def test_what_transformers_saves_is_what_the_goldens_hold(small: SmallModel) -> None:
    from parity.outside import describe

    assert describe(small)["shapes"] == golden_description(small.name)["shapes"]


@pytest.mark.parametrize("backend", ["reference", "native"])
@BY_FAMILY
def test_all_logits(small: SmallModel, backend: str, tmp_path: Path) -> None:
    from parity.outside import load_outside

    ids, folder = small.token_ids(), write_folder(small, tmp_path)
    outside, ours = load_outside(folder), load_ours(folder, backend, max_model_len=len(ids))
    expected, hidden = _forward(outside, ids)
    for cuts in ([], one_by_one(ids)):
        worst = _worst(logits(ours, ids, cuts), expected)
        assert worst <= TOLERANCE, f"{worst:.1e}; {_first_difference(ours, ids, hidden)}"


@BY_FAMILY
def test_greedy_tokens_for_64_steps(small: SmallModel, tmp_path: Path) -> None:
    """Equal as long as the best two of transformers are further apart than the tolerance."""
    from parity.outside import load_outside

    if small.name in _GROWS:
        pytest.skip("transformers changes the scaling while the text grows")
    ids, folder = small.token_ids(), write_folder(small, tmp_path)
    model = load_ours(folder, "native")
    text = _greedy(model, ids)
    expected, _ = _forward(load_outside(folder), text)
    for position in range(len(ids), len(text)):
        row = expected[position - 1]
        best = np.sort(row)[-2:]
        is_tie = best[1] - best[0] <= 2 * TOLERANCE * np.abs(row).max()
        assert is_tie or int(row.argmax()) == text[position], f"token {position - len(ids)}"


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "gpt-oss", "deepseek-v3"])
def test_sharded_folders(name: str, tmp_path: Path) -> None:
    from parity.outside import load_outside

    small = BY_NAME[name]
    outside = load_outside(write_folder(small, tmp_path / "one"))
    outside.save_pretrained(tmp_path / "many", max_shard_size="60KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    ids = small.token_ids()
    assert _worst(logits(load_ours(tmp_path / "many", "reference"), ids), _forward(outside, ids)[0]) <= TOLERANCE


@pytest.mark.parametrize(
    ("beams", "penalty", "early", "ends"),
    [
        (4, 1.0, False, range(5, 11)),
        (3, 2.0, True, (5, 6, 7)),
        (5, 0.0, "never", range(10, 30)),
        (2, -1.0, False, (50,)),
    ],
)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_beam_search(name: str, beams: int, penalty: float, early: Any, ends: Any, tmp_path: Path) -> None:
    import torch
    from parity.outside import load_outside

    ends = list(ends)
    ids, folder = BY_NAME[name].token_ids()[:13], write_folder(BY_NAME[name], tmp_path)
    outside = load_outside(folder).generate(
        torch.tensor([ids]), num_beams=beams, num_return_sequences=beams, max_new_tokens=20, length_penalty=penalty,
        early_stopping=early, do_sample=False, eos_token_id=ends, pad_token_id=0, return_dict_in_generate=True,
        output_scores=True,
    )  # fmt: skip
    expected = []
    for sequence in outside.sequences.tolist():
        new = sequence[len(ids) :]
        stop = next((i + 1 for i, token in enumerate(new) if token in ends), len(new))
        expected.append(new[:stop])
    model = load_ours(folder, "native")
    kv = KVCacheManager(NUM_BLOCKS)
    search = BeamSearch(model, storage(model), kv, max_num_batched_tokens=8)
    found = search.run(ids, BeamSearchParams(beams, 20, penalty, early), frozenset(ends))
    assert [list(sequence.token_ids) for sequence in found] == expected
    np.testing.assert_allclose([s.score for s in found], outside.sequences_scores.tolist(), rtol=1e-5)


@pytest.mark.parametrize("small", [m for m in FAMILIES if has_gguf_form(m)], ids=lambda small: small.name)
def test_llama_cpp_reads_the_file_as_we_do(small: SmallModel, tmp_path: Path) -> None:
    """Our reading of the converter's conventions, against the program they are made for."""
    path = write_llama_cpp(small, tmp_path / "m.gguf")
    _assert_as_llama_cpp(small, path, load_ours(path, "reference"))


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize(
    "small", [m for m in FAMILIES if has_gguf_form(m) and m.name not in NOT_WRITTEN], ids=lambda small: small.name
)
def test_llama_cpp_reads_what_quantize_writes(small: SmallModel, coded: bool, tmp_path: Path) -> None:
    """A folder in 8 bits, or in the codes it is published in; llama.cpp gets the values that the gguf package decodes,
    because it would round what it multiplies with codes, and the file itself, where it is only about right."""
    tensors = typed_weights(small.name)
    if coded:
        if small.name not in _CODED:
            pytest.skip("published in floats")
        tensors = _CODED[small.name]()
    folder, path = write_typed(tmp_path / "hf", small.name, tensors), tmp_path / "q.gguf"
    write_tokenizer(folder, VOCAB)
    quantize_file(folder, path, "q8_0")
    decoded = _assert_as_llama_cpp(small, _decoded(path, tmp_path / "decoded.gguf"), load_ours(path, "reference"))
    direct = llama_cpp_logits(path, small.token_ids())
    assert np.linalg.norm(direct - decoded) <= 0.3 * np.linalg.norm(decoded)


def _decoded(path: Path, out: Path) -> Path:
    import gguf

    tensors = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors
    }
    metadata = GGUFFile.open(path).metadata | {"general.file_type": 0}
    flat = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in tensors.items()}
    write_gguf(out, metadata, {name: (values.shape, F32, values) for name, values in flat.items()})
    return out


def _assert_as_llama_cpp(small: SmallModel, path: Path, ours: Decoder) -> np.ndarray:
    if small.name in _LLAMA_CPP_DIFFERS:
        pytest.skip(_LLAMA_CPP_DIFFERS[small.name])
    if small.name == "gpt-oss":
        ours = _with_rounded_bounds(ours)
    ids = small.token_ids()
    # Its GELU comes from a table in float16.
    tolerance = 3e-3 if "gelu" in ours.config.activation else TOLERANCE
    theirs = llama_cpp_logits(path, ids)
    assert _worst(logits(ours, ids), theirs) <= tolerance
    return theirs


def _with_rounded_bounds(model: Decoder) -> Decoder:
    """llama.cpp rounds yarn's bounds to whole pairs, which gpt-oss says it should not."""
    rope = model.config.rope
    assert rope.scaling is not None
    rounded = dataclasses.replace(rope, scaling=dataclasses.replace(rope.scaling, truncate=True))
    return Decoder(dataclasses.replace(model.config, rope=rounded), model.weights, model.backend)


def _forward(outside: Any, ids: list[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits [T, vocab], and what enters the first layer and leaves each [T, hidden_size]."""
    import torch

    with torch.no_grad():
        out = outside(torch.tensor([ids]), output_hidden_states=True)
    return out.logits[0].numpy(), [state[0].numpy() for state in out.hidden_states]


def _worst(ours: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(ours - expected).max() / np.abs(expected).max())


def _greedy(model: Decoder, ids: list[int]) -> list[int]:
    kv, text, computed = storage(model), list(ids), 0
    while len(text) < len(ids) + NUM_GREEDY:
        hidden = model.forward(batch(text[computed:], computed), kv).hidden
        computed = len(text)
        text.append(int(model.compute_logits(hidden[-1:])[0].argmax()))
    return text


class _Residuals:
    """A probe that keeps what leaves each layer."""

    def __init__(self) -> None:
        self.found: dict[str, np.ndarray] = {}

    def wants(self, name: str) -> bool:
        return name.endswith(".residual")

    def record(self, name: str, tensor: np.ndarray) -> None:
        self.found[name] = tensor.copy()


def _first_difference(model: Decoder, ids: list[int], hidden: list[np.ndarray]) -> str:
    """Which layer goes astray first; transformers' last hidden state is normed and left out."""
    probe = _Residuals()
    model.forward(batch(ids, 0), storage(model), probe)
    for layer in range(model.config.num_layers - 1):
        worst = _worst(probe.found[f"layers.{layer}.residual"], hidden[layer + 1])
        if worst > TOLERANCE:
            return f"layer {layer} is the first that differs, by {worst:.1e}"
    return "no layer before the last differs"
