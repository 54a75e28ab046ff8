"""Beam search against exhaustive search; tests/parity holds it against transformers."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from models.small_models import LLAMA_SHAPE, llama_metadata, llama_tensors, write_llama
from models.test_loading import logits_of

from pellucid.beam_search_params import BeamSearchParams, BeamSearchSequence
from pellucid.engine.beam_search import BeamSearch
from pellucid.errors import InvalidParameterError
from pellucid.kernels.dispatch import make_backend
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.models.decoder import Decoder
from pellucid.models.loading import load_model

VOCAB = 5
PROMPT = [1, 4, 2, 0, 3, 3, 1, 2, 4, 0, 1, 1, 2, 3]  # 14 tokens: the beams' second token fills the first block


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    monkeypatch.setitem(LLAMA_SHAPE, "vocab", VOCAB)
    tensors = llama_tensors(np.random.default_rng(7))
    shape, kind, data = tensors["output_norm.weight"]
    tensors["output_norm.weight"] = (shape, kind, (data.view(np.float32) * np.float32(3)).view(np.uint8))
    return load_model(write_llama(tmp_path / "m.gguf", llama_metadata(), tensors), make_backend("native", 1))


def search(
    model: Decoder, params: BeamSearchParams, ends: frozenset[int], blocks: int = 512
) -> list[BeamSearchSequence]:
    config = model.config
    kv = KVCacheManager(blocks)
    storage = KVCacheStorage.for_model(config, blocks, dtype="float32")
    found = BeamSearch(model, storage, kv, max_num_batched_tokens=8).run(PROMPT, params, ends)
    kv.check_integrity()
    assert kv.num_available == blocks
    return found


def exhaustive(model: Decoder, length: int, ends: frozenset[int]) -> dict[tuple[int, ...], float]:
    """Summed logprob of every sequence of `length` tokens, or fewer where an end token comes."""
    totals: dict[tuple[int, ...], float] = {}
    for tokens in itertools.product(range(VOCAB), repeat=length):
        stop = next((i + 1 for i, token in enumerate(tokens) if token in ends), length)
        if tokens[:stop] in totals:
            continue
        logits = logits_of(model, [*PROMPT, *tokens])[len(PROMPT) - 1 : -1].astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        totals[tokens[:stop]] = float(sum(logprobs[i, tokens[i]] for i in range(stop)))
    return totals


@pytest.mark.parametrize(("length", "ends"), [(2, frozenset()), (3, frozenset({2}))])
def test_a_beam_wide_enough_finds_the_best_sequences_of_all(model: Decoder, length: int, ends: frozenset[int]) -> None:
    totals = exhaustive(model, length, ends)
    found = search(model, BeamSearchParams(40, length, length_penalty=0.0, early_stopping="never"), ends)
    best = sorted(totals, key=lambda tokens: -totals[tokens])[: len(found)]
    assert [tuple(sequence.token_ids) for sequence in found] == best
    for sequence in found:
        assert sequence.cumulative_logprob == pytest.approx(totals[tuple(sequence.token_ids)], abs=1e-4)
        assert sequence.finish_reason == ("stop" if sequence.token_ids[-1] in ends else "length")


def test_scores_are_divided_by_a_power_of_the_length(model: Decoder) -> None:
    for penalty in (2.0, -1.0):
        for sequence in search(model, BeamSearchParams(3, 6, length_penalty=penalty), frozenset({2})):
            assert sequence.score == pytest.approx(sequence.cumulative_logprob / len(sequence.token_ids) ** penalty)


def test_a_beam_of_one_is_greedy(model: Decoder) -> None:
    ids = list(PROMPT)
    for _ in range(8):
        ids.append(int(logits_of(model, ids)[-1].argmax()))
    (found,) = search(model, BeamSearchParams(1, 8), frozenset())
    assert found.token_ids == ids[len(PROMPT) :]


def test_a_cache_too_small_for_the_beams_is_refused(model: Decoder) -> None:
    with pytest.raises(InvalidParameterError, match="beam_width is 8, for which 24 KV blocks are needed, but 16 are"):
        search(model, BeamSearchParams(8, 20), frozenset(), blocks=16)


@pytest.mark.parametrize(
    ("field", "value"),
    [("beam_width", 0), ("beam_width", True), ("max_tokens", 1.5), ("length_penalty", float("nan")),
     ("early_stopping", "always"), ("early_stopping", 1), ("ignore_eos", None)],
)  # fmt: skip
def test_values_out_of_range_are_named(field: str, value: object) -> None:
    values = {"beam_width": 2, "max_tokens": 2, field: value}
    with pytest.raises(InvalidParameterError, match=f"^{field} is "):
        BeamSearchParams(**values)  # type: ignore[arg-type]
