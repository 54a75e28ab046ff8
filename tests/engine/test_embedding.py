"""Embeddings of a small model: what the vectors are, whatever shares the steps; refusals; blocks given back."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from models.small_models import write_llama

from pellucid.engine.embedding import Embedder
from pellucid.errors import InvalidParameterError
from pellucid.forward_batch import SequencePart, batch_of
from pellucid.kernels.dispatch import make_backend
from pellucid.kv_cache.manager import KVCacheManager
from pellucid.kv_cache.storage import KVCacheStorage
from pellucid.models.decoder import Decoder
from pellucid.models.loading import load_model
from pellucid.pooling_params import PoolingParams

BLOCKS = 16
TEXTS = [[3, 14, 15], list(range(40)), [92], [65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79, 50, 28, 8, 4, 1]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    path: Path = write_llama(tmp_path_factory.mktemp("model") / "m.gguf")
    return load_model(path, make_backend("native", 1))


def storage_of(model: Decoder) -> KVCacheStorage:
    config = model.config
    return KVCacheStorage.for_model(config, BLOCKS, dtype="float32")


def embed(model: Decoder, texts: list[list[int]], params: PoolingParams, budget: int) -> list[np.ndarray]:
    kv = KVCacheManager(BLOCKS)
    vectors = Embedder(model, storage_of(model), kv, max_num_batched_tokens=budget).embed(texts, params)
    kv.check_integrity()
    assert kv.num_available == BLOCKS
    return vectors


def hidden_of(model: Decoder, ids: list[int]) -> np.ndarray:
    batch = batch_of([SequencePart(ids, 0, range(BLOCKS))], 16)
    return model.forward(batch, storage_of(model)).hidden.copy()


@pytest.mark.parametrize("pooling", ["last", "mean", "cls"])
@pytest.mark.parametrize("budget", [7, 512])
def test_a_vector_is_pooled_from_the_text_alone(model: Decoder, pooling: str, budget: int) -> None:
    pool = {"last": lambda rows: rows[-1], "mean": lambda rows: rows.mean(axis=0), "cls": lambda rows: rows[0]}[pooling]
    params = PoolingParams(pooling=pooling, normalize=False)  # type: ignore[arg-type]
    for vector, ids in zip(embed(model, TEXTS, params, budget), TEXTS, strict=True):
        np.testing.assert_allclose(vector, pool(hidden_of(model, ids).astype(np.float64)), rtol=0, atol=1e-6)


def test_the_bits_do_not_depend_on_what_shares_the_steps(model: Decoder) -> None:
    params = PoolingParams(pooling="mean")
    together = embed(model, TEXTS, params, 7)
    for vector, ids in zip(together, TEXTS, strict=True):
        np.testing.assert_array_equal(vector, embed(model, [ids], params, 512)[0])


def test_dimensions_are_cut_before_the_length_is_made_one(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    params = PoolingParams(normalize=True, dimensions=5)
    with monkeypatch.context() as patch:
        patch.setattr(model, "config", dataclasses.replace(model.config, can_shorten_embeddings=True))
        whole = embed(model, TEXTS[:1], PoolingParams(normalize=False), 512)[0][:5]
        short = embed(model, TEXTS[:1], params, 512)[0]
        np.testing.assert_allclose(short, whole / np.linalg.norm(whole), rtol=1e-6)
        with pytest.raises(InvalidParameterError, match="dimensions is 65, but the model's vectors have 64 numbers"):
            embed(model, TEXTS, PoolingParams(dimensions=65), 512)
        sizes = dataclasses.replace(model.config, embedding_sizes=(8, 32))
        patch.setattr(model, "config", sizes)
        assert len(embed(model, TEXTS[:1], PoolingParams(dimensions=8), 512)[0]) == 8
        with pytest.raises(InvalidParameterError, match="dimensions is 5, but must be one of 8, 32, 64"):
            embed(model, TEXTS, params, 512)
    assert len(embed(model, TEXTS[:1], PoolingParams(dimensions=64), 512)[0]) == 64
    with pytest.raises(InvalidParameterError, match=r"does not say that its vectors of 64 numbers can be shortened"):
        embed(model, TEXTS, params, 512)


def test_a_text_without_room_is_refused_and_nothing_is_kept(model: Decoder) -> None:
    kv = KVCacheManager(2)
    embedder = Embedder(model, storage_of(model), kv, max_num_batched_tokens=512)
    with pytest.raises(InvalidParameterError, match="a text of 40 tokens finds no room in the KV cache"):
        embedder.embed(TEXTS[:2], PoolingParams())
    assert kv.num_available == 2


def test_jobs_share_steps_in_turn_and_blocks_come_back_when_they_are_needed(model: Decoder) -> None:
    """The texts of two jobs; between the steps somebody takes nearly all blocks, again and again."""
    kv = KVCacheManager(BLOCKS)
    embedder = kv.borrower = Embedder(model, storage_of(model), kv, max_num_batched_tokens=512)
    jobs = [embedder.add(TEXTS, PoolingParams()), embedder.add(TEXTS[::-1], PoolingParams(pooling="mean"))]
    found: dict[tuple[int, int], np.ndarray] = {}
    num_taken = 0
    for step in range(200):
        for one in embedder.step(9)[0]:
            assert isinstance(one.vector, np.ndarray)
            found[jobs.index(one.job), one.index] = one.vector
        kv.check_integrity()
        assert kv.num_available == BLOCKS, "what is borrowed counts as available"
        if step in (1, 4, 5):
            num_taken += embedder.num_blocks > 0
            assert kv.grow(7, (BLOCKS - 1) * 16)
            assert embedder.num_blocks <= 1
            kv.free(7)
        if not embedder.has_work:
            break
    assert num_taken
    assert kv.num_unused == BLOCKS
    for place, (texts, pooling) in enumerate([(TEXTS, "last"), (TEXTS[::-1], "mean")]):
        alone = embed(model, texts, PoolingParams(pooling=pooling), 512)  # type: ignore[arg-type]
        for index, vector in enumerate(alone):
            np.testing.assert_array_equal(found[place, index], vector)


def test_a_dropped_job_is_forgotten(model: Decoder) -> None:
    kv = KVCacheManager(BLOCKS)
    embedder = Embedder(model, storage_of(model), kv, max_num_batched_tokens=512)
    gone, stays = embedder.add(TEXTS, PoolingParams()), embedder.add(TEXTS[:1], PoolingParams())
    embedder.step(5)
    embedder.drop(gone)
    done, _ = embedder.step(512)
    assert [one.job for one in done] == [stays] or stays.num_left == 0
    assert not embedder.has_work
    assert kv.num_unused == BLOCKS


def test_a_batch_of_parts_is_what_the_arrays_say() -> None:
    batch = batch_of([SequencePart([7, 8], 15, [4, 2]), SequencePart([9], 0, [5])], 16)
    assert batch.token_ids.tolist() == [7, 8, 9]
    assert batch.positions.tolist() == [15, 16, 0]
    assert batch.slot_mapping.tolist() == [4 * 16 + 15, 2 * 16, 5 * 16]
    assert batch.query_start_loc.tolist() == [0, 2, 3]
    assert batch.seq_lens.tolist() == [17, 1]
    assert batch.block_table.tolist() == [[4, 2], [5, 0]]
