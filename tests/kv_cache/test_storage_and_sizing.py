"""The KV arrays' shapes and cost, and how many blocks an engine gets."""

from __future__ import annotations

import dataclasses
import resource
from dataclasses import replace

import numpy as np
import pytest

from pellucid.config import (
    KV_CACHE_DTYPES,
    EngineArgs,
    KVCacheDType,
    LatentConfig,
    ModelConfig,
    RopeConfig,
    kv_head_bytes,
)
from pellucid.errors import InvalidParameterError
from pellucid.kernels import kv_codes
from pellucid.kv_cache import sizing
from pellucid.kv_cache.sizing import beyond_training, largest_context, resolve_max_model_len, resolve_num_blocks
from pellucid.kv_cache.storage import KVCacheStorage, KVLayer


def config(context_length: int = 2048) -> ModelConfig:
    return ModelConfig(
        architecture="mock",
        name="mock",
        vocab_size=100,
        hidden_size=64,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        intermediate_size=1,
        context_length=context_length,
        norm_eps=1e-5,
        rope=RopeConfig(10000.0, 64),
    )


def arrays_of(layer: KVLayer) -> list[np.ndarray]:
    return [array for array in (layer.keys, layer.values, layer.scales, layer.factors) if array is not None]


SHAPES = {
    "float16": {"keys": (5, 3, 32, 16), "values": (5, 3, 16, 48)},
    "float32": {"keys": (5, 3, 32, 16), "values": (5, 3, 16, 48)},
    "int16": {"keys": (5, 3, 16, 16, 2), "values": (5, 3, 8, 48, 2), "scales": (5, 3, 2, 16)},
    "int8": {"keys": (5, 3, 16, 16, 2), "values": (5, 3, 8, 48, 2), "scales": (5, 3, 2, 16)},
    "int4": {"keys": (5, 3, 16, 16), "values": (5, 3, 16, 24), "scales": (5, 3, 2, 16), "factors": (5, 3, 5, 16)},
}


@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
def test_arrays_are_as_declared(dtype: KVCacheDType) -> None:
    storage = KVCacheStorage(2, 5, 3, 32, dtype=dtype, value_dim=48)
    per_token = 2 * 3 * (kv_head_bytes(dtype, 32) + kv_head_bytes(dtype, 48))
    assert storage.nbytes == 5 * 16 * per_token
    for layer in storage.layers:
        assert (layer.head_dim, layer.value_dim) == (32, 48)
        shapes = {name: getattr(layer, name) for name in ("keys", "values", "scales", "factors")}
        assert {name: a.shape for name, a in shapes.items() if a is not None} == SHAPES[dtype]
        for array in arrays_of(layer):
            assert array[0].flags.c_contiguous
            assert array.strides[0] == storage.block_stride == 16 * per_token
            assert array.flags.writeable
            assert not array.any()
    arrays = [array for layer in storage.layers for array in arrays_of(layer)]
    assert storage.nbytes == sum(array.nbytes for array in arrays)
    for i, array in enumerate(arrays):
        array[:] = i + 1
    assert all((array == i + 1).all() for i, array in enumerate(arrays)), "arrays do not overlap"


@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
def test_a_latents_value_has_no_rotated_part(dtype: KVCacheDType) -> None:
    latent = LatentConfig(query_rank=0, rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    model = replace(config(), num_layers=2, num_kv_heads=1, head_dim=576, latent=latent)
    storage = KVCacheStorage.for_model(model, 3, dtype=dtype)
    assert (storage.head_dim, storage.value_dim) == (576, 512)
    assert storage.nbytes == 3 * 16 * model.kv_bytes_per_token(dtype)
    assert model.kv_bytes_per_token(dtype) == 2 * (kv_head_bytes(dtype, 576) + kv_head_bytes(dtype, 512))


def test_a_type_that_does_not_fit_the_heads_is_refused() -> None:
    KVCacheStorage(1, 1, 1, 24, dtype="int8")
    with pytest.raises(InvalidParameterError, match="int4, but needs heads of a multiple of 16 numbers") as caught:
        KVCacheStorage(1, 1, 1, 24, dtype="int4")
    assert caught.value.field == "kv_cache_dtype"


@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
def test_clear_zeroes_the_given_blocks_in_every_layer(dtype: KVCacheDType) -> None:
    storage = KVCacheStorage(2, 4, 1, 16, dtype=dtype)
    arrays = [array for layer in storage.layers for array in arrays_of(layer)]
    for array in arrays:
        array[:] = np.nan if array.dtype.kind == "f" else 3
    storage.clear([1, 3])
    for array in arrays:
        assert not array[[1, 3]].any()
        assert array[[0, 2]].all()


@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
def test_clear_slots_zeroes_single_tokens(dtype: KVCacheDType) -> None:
    """As if they had never been stored: what the other tokens of the blocks hold does not change."""
    rng = np.random.default_rng(3)
    k, v = rng.standard_normal((2, 64, 1, 32)).astype(np.float32)
    storages = [KVCacheStorage(2, 4, 1, 32, dtype=dtype) for _ in range(2)]
    wiped = [3, 4, 17, 63]
    for storage, slots in zip(storages, (np.arange(64), np.setdiff1d(np.arange(64), wiped)), strict=True):
        for layer in storage.layers:
            kv_codes.store(layer, slots // 16, slots % 16, k[slots], v[slots])
    storages[0].clear_slots(wiped)
    for first, second in zip(*(storage.layers for storage in storages), strict=True):
        for ours, expected in zip(arrays_of(first), arrays_of(second), strict=True):
            assert np.array_equal(ours, expected)


def test_unwritten_blocks_cost_no_memory() -> None:
    storage = KVCacheStorage(30, 4096, 3, 64)
    assert storage.nbytes > 10**9
    before = _resident()
    for layer in storage.layers:
        for array in arrays_of(layer):
            array[:2] = 1
    grown = _resident() - before
    assert grown < 4 * 30 * 2 * 2 * 3 * 64 * 16 * 2 + 2 * 2**20, f"two blocks cost {grown} bytes"


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_default_pool_is_four_requests_or_two_gib_or_half_of_what_is_free() -> None:
    plenty = 64 * 1024**3
    assert resolve_num_blocks(config(), EngineArgs(), 2048, free=plenty) == 4 * 128
    block_bytes = config().kv_bytes_per_token(EngineArgs().kv_cache_dtype) * 16
    assert resolve_num_blocks(config(), EngineArgs(), 65536, free=plenty) == 2 * 1024**3 // block_bytes
    assert resolve_num_blocks(config(), EngineArgs(), 131072, free=plenty) == 8192, "never less than one request"
    assert resolve_num_blocks(config(), EngineArgs(), 2048, free=600 * block_bytes) == 300
    assert resolve_num_blocks(config(), EngineArgs(), 2048, free=200 * block_bytes) == 128, "nor here"


def test_pool_of_given_bytes() -> None:
    block_bytes = config().kv_bytes_per_token("float32") * 16
    args = EngineArgs(kv_cache_memory_bytes=10 * block_bytes + 5, kv_cache_dtype="float32")
    assert resolve_num_blocks(config(), args, 160) == 10
    with pytest.raises(
        InvalidParameterError, match=r"room for 160 tokens .* max_model_len 161 needs .* to 160$"
    ) as caught:
        resolve_num_blocks(config(), args, 161)
    assert caught.value.field == "kv_cache_memory_bytes"


def test_a_request_larger_than_what_is_free_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "free_memory", lambda: 10**6)
    message = "needs 48660480 bytes .*23760 a token.*, but 1000000 bytes of memory are free: set max_model_len to 32 or"
    with pytest.raises(InvalidParameterError, match=message) as caught:
        resolve_num_blocks(config(), EngineArgs(), 2048)
    assert caught.value.field == "max_model_len"
    assert resolve_num_blocks(config(), EngineArgs(), 32) == 2


def test_more_than_the_process_may_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "total_memory", lambda: 10**9)
    with pytest.raises(InvalidParameterError, match="at most the memory that this process may have, 1000000000"):
        resolve_num_blocks(config(), EngineArgs(kv_cache_memory_bytes=2 * 10**9), 2048)


def test_a_draft_model_takes_its_share() -> None:
    alone = largest_context(config(), EngineArgs(), 10**9)
    together = largest_context(config(), EngineArgs(), 10**9, config())
    assert alone // 2 - 16 <= together <= alone // 2
    assert largest_context(config(), EngineArgs(), -5) == 0


def test_max_model_len() -> None:
    assert resolve_max_model_len(config(), EngineArgs()) == 2048
    assert resolve_max_model_len(config(), EngineArgs(max_model_len=100)) == 100
    assert resolve_max_model_len(config(), EngineArgs(max_model_len=2049)) == 2049
    learned = dataclasses.replace(config(), positions="learned")
    with pytest.raises(InvalidParameterError, match="a table of 2048 positions"):
        resolve_max_model_len(learned, EngineArgs(max_model_len=2049))
    assert beyond_training(config(), 2048) is None
    assert "trained for 2048 positions" in (beyond_training(config(), 2049) or "")


def test_a_cache_that_the_process_cannot_have_is_refused() -> None:
    for num_blocks in (2**40, 2**62):
        with pytest.raises(InvalidParameterError, match=r"cannot have the .* bytes of its KV cache") as caught:
            KVCacheStorage(num_layers=2, num_blocks=num_blocks, num_kv_heads=2, head_dim=64)
        assert caught.value.field == "kv_cache_memory_bytes"
