"""The KV arrays' shapes and cost, and how many blocks an engine gets."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from pellucid.config import EngineArgs, ModelConfig, RopeConfig
from pellucid.errors import InvalidParameterError
from pellucid.kv_cache import sizing
from pellucid.kv_cache.sizing import resolve_max_model_len, resolve_num_blocks
from pellucid.kv_cache.storage import KVCacheStorage


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


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_arrays_are_as_declared(dtype: str) -> None:
    storage = KVCacheStorage(2, 5, 3, 8, dtype=dtype)  # type: ignore[arg-type]
    for keys, values in zip(storage.keys, storage.values, strict=True):
        assert keys.shape == (5, 3, 8, 16)
        assert values.shape == (5, 3, 16, 8)
        assert keys.dtype == values.dtype == np.dtype(dtype)
        for array in (keys, values):
            assert array[0].flags.c_contiguous
            assert array.strides[0] == storage.block_stride == 2 * 2 * 3 * 8 * 16 * array.itemsize
        assert keys.flags.writeable
        assert not keys.any()
    assert storage.nbytes == sum(a.nbytes for a in storage.keys + storage.values)
    storage.keys[0][:] = 1
    assert not storage.keys[1].any()
    assert not storage.values[0].any(), "arrays do not overlap"


def test_clear_zeroes_the_given_blocks_in_every_layer() -> None:
    storage = KVCacheStorage(2, 4, 1, 2)
    for array in storage.keys + storage.values:
        array[:] = np.nan
    storage.clear([1, 3])
    for array in storage.keys + storage.values:
        assert not array[[1, 3]].any()
        assert np.isnan(array[[0, 2]]).all()


def test_unwritten_blocks_cost_no_memory() -> None:
    storage = KVCacheStorage(30, 4096, 3, 64)
    assert storage.nbytes > 10**9
    before = _resident()
    for array in storage.keys + storage.values:
        array[:2] = 1
    grown = _resident() - before
    assert grown < 4 * 30 * 2 * 2 * 3 * 64 * 16 * 2 + 2 * 2**20, f"two blocks cost {grown} bytes"


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_default_pool_is_four_requests_or_two_gib() -> None:
    assert resolve_num_blocks(config(), EngineArgs(), 2048) == 4 * 128
    block_bytes = config().kv_bytes_per_token("float16") * 16
    assert resolve_num_blocks(config(), EngineArgs(), 65536) == 2 * 1024**3 // block_bytes
    assert resolve_num_blocks(config(), EngineArgs(), 131072) == 8192, "never less than one request"


def test_pool_of_given_bytes() -> None:
    block_bytes = config().kv_bytes_per_token("float32") * 16
    args = EngineArgs(kv_cache_memory_bytes=10 * block_bytes + 5, kv_cache_dtype="float32")
    assert resolve_num_blocks(config(), args, 160) == 10
    with pytest.raises(InvalidParameterError, match=r"room for 160 tokens .* max_model_len 161 needs") as caught:
        resolve_num_blocks(config(), args, 161)
    assert caught.value.field == "kv_cache_memory_bytes"


def test_a_request_larger_than_the_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "machine_memory_bytes", lambda: 10**6)
    with pytest.raises(InvalidParameterError, match=r"set max_model_len to 43 or less") as caught:
        resolve_num_blocks(config(), EngineArgs(), 2048)
    assert caught.value.field == "max_model_len"


def test_max_model_len() -> None:
    assert resolve_max_model_len(config(), EngineArgs()) == 2048
    assert resolve_max_model_len(config(), EngineArgs(max_model_len=100)) == 100
    with pytest.raises(InvalidParameterError, match="trained for 2048 positions"):
        resolve_max_model_len(config(), EngineArgs(max_model_len=2049))


def test_a_cache_that_the_process_cannot_have_is_refused() -> None:
    for num_blocks in (2**40, 2**62):
        with pytest.raises(InvalidParameterError, match=r"cannot have the .* bytes of its KV cache") as caught:
            KVCacheStorage(num_layers=2, num_blocks=num_blocks, num_kv_heads=2, head_dim=64)
        assert caught.value.field == "kv_cache_memory_bytes"
