"""The compiled attention and cache store against the NumPy definition, and law 1 to the bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.arrays import Attention, random_attention

from pellucid.kernels.backend import AttentionParams
from pellucid.kernels.native import NativeBackend, available_isas
from pellucid.kernels.reference import ReferenceBackend

ISAS = available_isas()
REFERENCE = ReferenceBackend()
BACKENDS = {(isa, threads): NativeBackend(threads, isa) for isa in ISAS for threads in (1, 2)}


def store(backend, case: Attention, keys, values, q_norm=None, k_norm=None):
    """Rotate and store the step's rows; returns the rotated qkv, the step and the cache as the backend sees them."""
    pairs = case.head_dim // 2
    angles = case.batch.positions[:, None] / (10.0 ** np.arange(pairs)[None, :])
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    qkv = case.qkv.copy()
    step, cache = backend.step(case.batch), backend.layer_cache(keys, values)
    backend.rotate_and_store(qkv, case.heads, q_norm, k_norm, 1e-6, cosine, sine, step, cache)
    return qkv, step, cache


def run(backend, case: Attention, window: int | None = None):
    keys, values = case.keys.copy(), case.values.copy()
    qkv, step, cache = store(backend, case, keys, values)
    out = np.full((len(qkv), case.heads * case.head_dim), np.nan, dtype=np.float32)
    backend.attention(qkv, case.heads, AttentionParams(case.head_dim**-0.5, window=window), step, cache, out)
    return out


SHAPES = [(9, 3, 64), (4, 1, 256), (2, 2, 16), (20, 1, 32), (6, 3, 80)]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("isa", ISAS)
def test_attention_equals_the_definition(heads: int, kv_heads: int, head_dim: int, dtype: str, isa: str) -> None:
    rng = np.random.default_rng(1)
    spans = [(0, 1), (0, 15), (14, 3), (255, 2), (300, 1), (16, 16)]
    case = random_attention(rng, spans, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
    for window in (None, 1, 7, 20):
        expected = run(REFERENCE, case, window)
        got = run(BACKENDS[isa, 2], case, window)
        np.testing.assert_allclose(got, expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 255, 256, 257, 511, 512, 513])
def test_lengths_around_every_block_and_split_edge(length: int) -> None:
    rng = np.random.default_rng(length)
    case = random_attention(rng, [(length - 1, 1)], heads=3, kv_heads=1, head_dim=32)
    for window in (None, 16, 255, 256, 257):
        np.testing.assert_allclose(
            run(BACKENDS[ISAS[0], 2], case, window), run(REFERENCE, case, window), rtol=0, atol=3e-6
        )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(1, 600),
    window=st.sampled_from([None, 1, 15, 16, 100, 256, 300]),
    cuts=st.lists(st.integers(1, 599), max_size=4),
    isa=st.sampled_from(ISAS),
    threads=st.sampled_from([1, 2]),
)
def test_chunks_threads_and_instruction_sets_give_the_same_bits(seed, length, window, cuts, isa, threads) -> None:
    rng = np.random.default_rng(seed)
    case = random_attention(rng, [(0, length)], heads=6, kv_heads=2, head_dim=16)
    whole = run(BACKENDS[ISAS[0], 2], case, window)
    backend = BACKENDS[isa, threads]
    keys, values, pieces = case.keys.copy(), case.values.copy(), []
    edges = sorted({0, length, *(c for c in cuts if c < length)})
    for begin, end in itertools.pairwise(edges):
        batch = case.batch
        part = Attention(
            keys, values,
            type(batch)(
                token_ids=batch.token_ids[begin:end], positions=batch.positions[begin:end],
                slot_mapping=batch.slot_mapping[begin:end], query_start_loc=np.array([0, end - begin], dtype=np.int32),
                seq_lens=np.array([end], dtype=np.int32), block_table=batch.block_table,
            ),
            case.qkv[begin:end], case.heads, case.kv_heads, case.head_dim,
        )  # fmt: skip
        qkv, step, cache = store(backend, part, keys, values)
        out = np.empty((end - begin, case.heads * case.head_dim), dtype=np.float32)
        backend.attention(qkv, case.heads, AttentionParams(case.head_dim**-0.5, window=window), step, cache, out)
        pieces.append(out)
    assert np.array_equal(np.concatenate(pieces), whole)


@pytest.mark.parametrize("isa", ISAS)
def test_rotation_norms_and_store(isa: str) -> None:
    rng = np.random.default_rng(5)
    case = random_attention(rng, [(3, 4), (0, 9)], heads=4, kv_heads=2, head_dim=32)
    q_norm, k_norm = rng.uniform(0.5, 2, (2, 32)).astype(np.float32)
    stored = []
    for backend in (REFERENCE, BACKENDS[isa, 2]):
        keys, values = case.keys.copy(), case.values.copy()
        qkv, step, _ = store(backend, case, keys, values, q_norm, k_norm)
        assert not step.nonfinite.any()
        stored.append((qkv, keys, values))
    for expected, got in zip(*stored, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-3 if got.dtype == np.float16 else 5e-6, atol=5e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e6])
def test_a_key_or_value_that_can_not_be_stored_is_reported_for_its_row(dtype: str, poison: float) -> None:
    rng = np.random.default_rng(6)
    case = random_attention(rng, [(0, 3), (5, 2)], heads=2, kv_heads=2, head_dim=16, dtype=dtype)
    case.qkv[1, -1] = poison  # the last number of row 1's value
    case.qkv[4, 2 * 16] = poison  # the first number of row 4's key
    expected = [False, dtype == "float16" or poison != 1e6, False, False, dtype == "float16" or poison != 1e6]
    for backend in (REFERENCE, *BACKENDS.values()):
        _, step, _ = store(backend, case, case.keys.copy(), case.values.copy())
        assert step.nonfinite.tolist() == expected


def test_steps_that_point_outside_the_cache_are_refused() -> None:
    rng = np.random.default_rng(7)
    case = random_attention(rng, [(20, 2)], heads=2, kv_heads=1, head_dim=16)
    backend = BACKENDS[ISAS[0], 1]
    case.batch.block_table[0, 1] = 999
    with pytest.raises(ValueError, match="outside the cache"):
        store(backend, case, case.keys, case.values)
    case.batch.block_table[0, 1] = -1
    with pytest.raises(ValueError, match="negative"):
        backend.step(case.batch)
