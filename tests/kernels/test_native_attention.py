"""The compiled attention and cache store against the NumPy definition, and law 1 to the bit."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.arrays import Attention, arrays_of, random_attention

from pellucid.config import KV_CACHE_DTYPES
from pellucid.errors import UnsupportedModelError
from pellucid.kernels import kv_codes
from pellucid.kernels.backend import AttentionParams
from pellucid.kernels.native import NativeBackend, available_isas
from pellucid.kernels.reference import ReferenceBackend

ISAS = available_isas()
REFERENCE = ReferenceBackend()
BACKENDS = {(isa, threads): NativeBackend(threads, isa) for isa in ISAS for threads in (1, 2, 5)}
TOLERANCE = {"float16": 3e-6, "float32": 3e-6, "int16": 5e-4, "int8": 5e-4, "int4": 5e-4}
"""Largest difference of an output of size 1: the compiled twin rounds queries and weights to 15 bits for integer KV."""


def store(backend, case: Attention, layer, q_norm=None, k_norm=None):
    """Rotate and store the step's rows; returns the rotated qkv, the step and the cache as the backend sees them."""
    pairs = case.head_dim // 2
    angles = case.batch.positions[:, None] / (10.0 ** np.arange(pairs)[None, :])
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    qkv = case.qkv.copy()
    step, cache = backend.step(case.batch), backend.layer_cache(layer)
    backend.rotate_and_store(qkv, case.heads, q_norm, k_norm, 1e-6, cosine, sine, step, cache)
    return qkv, step, cache


def run(backend, case: Attention, window: int | None = None, **rules):
    qkv, step, cache = store(backend, case, case.fresh_layer())
    out = np.full((len(qkv), case.heads * case.value_dim), np.nan, dtype=np.float32)
    backend.attention(qkv, case.heads, AttentionParams(case.head_dim**-0.5, window=window, **rules), step, cache, out)
    return out


SHAPES = [(9, 3, 64), (4, 1, 256), (2, 1, 128), (3, 3, 64), (2, 2, 16), (20, 1, 32), (6, 3, 80)]


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_attention_equals_the_definition(heads: int, kv_heads: int, head_dim: int, dtype: str, isa: str) -> None:
    rng = np.random.default_rng(1)
    spans = [(0, 1), (0, 15), (14, 3), (255, 2), (300, 1), (16, 16)]
    case = random_attention(rng, spans, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
    for window in (None, 1, 7, 20):
        expected = run(REFERENCE, case, window)
        got = run(BACKENDS[isa, 2], case, window)
        np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 255, 256, 257, 511, 512, 513])
def test_lengths_around_every_block_and_split_edge(length: int, dtype: str) -> None:
    rng = np.random.default_rng(length)
    case = random_attention(rng, [(length - 1, 1)], heads=3, kv_heads=1, head_dim=32, dtype=dtype)
    for window in (None, 16, 255, 256, 257):
        expected, got = run(REFERENCE, case, window), run(BACKENDS[ISAS[0], 2], case, window)
        np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["int16", "float32", "int8", "int4"])
@pytest.mark.parametrize("isa", ISAS)
def test_values_narrower_than_keys_caps_sinks_and_slopes(isa: str, dtype: str) -> None:
    rng = np.random.default_rng(11)
    case = random_attention(
        rng, [(0, 20), (260, 3), (40, 1)], heads=6, kv_heads=2, head_dim=48, value_dim=32, dtype=dtype
    )
    sinks = np.array([-3, 0, 1, 2, 5, 80], dtype=np.float32)
    slopes = (-(2.0 ** -np.arange(1, 7))).astype(np.float32) * -1
    for rules in (
        {}, {"softcap": 0.5}, {"sinks": sinks}, {"slopes": slopes}, {"softcap": 2.0, "sinks": sinks, "slopes": slopes},
    ):  # fmt: skip
        for window in (None, 9):
            expected = run(REFERENCE, case, window, **rules)
            got = run(BACKENDS[isa, 2], case, window, **rules)
            np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE[dtype], err_msg=str(rules))
            if rules:
                assert not np.allclose(expected, run(REFERENCE, case, window), atol=1e-3)


@pytest.mark.parametrize("dtype", ["int16", "float32"])
@pytest.mark.parametrize("isa", ISAS)
def test_rows_of_an_encoder_see_what_comes_after(isa: str, dtype: str) -> None:
    rng = np.random.default_rng(13)
    case = random_attention(rng, [(0, 1), (0, 300), (0, 17)], heads=4, kv_heads=2, head_dim=32, dtype=dtype)
    slopes = np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32)
    for rules in ({}, {"slopes": slopes}):
        expected = run(REFERENCE, case, causal=False, **rules)
        got = run(BACKENDS[isa, 2], case, causal=False, **rules)
        np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE[dtype] * 10)
        assert not np.allclose(expected, run(REFERENCE, case, **rules), atol=1e-3)


def test_rules_that_can_not_be_are_refused() -> None:
    case = random_attention(np.random.default_rng(1), [(0, 2)], heads=2, kv_heads=1, head_dim=16)
    backend = BACKENDS[ISAS[0], 1]
    with pytest.raises(ValueError, match="softcap must be above 0"):
        run(backend, case, softcap=-1.0)
    with pytest.raises(ValueError, match="one number per head"):
        run(backend, case, sinks=np.zeros(3, dtype=np.float32))


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(1, 600),
    window=st.sampled_from([None, 1, 15, 16, 100, 256, 300]),
    cuts=st.lists(st.integers(1, 599), max_size=4),
    isa=st.sampled_from(ISAS),
    threads=st.sampled_from([1, 2, 5]),  # more than KV heads, too
    dtype=st.sampled_from(KV_CACHE_DTYPES),
    ruled=st.booleans(),
    head_dim=st.sampled_from([16, 64]),
    shape=st.sampled_from([(6, 2), (8, 1)]),
)
def test_chunks_threads_and_instruction_sets_give_the_same_bits(
    seed, length, window, cuts, isa, threads, dtype, ruled, head_dim, shape
) -> None:
    rng = np.random.default_rng(seed)
    num_heads, num_kv_heads = shape
    case = random_attention(rng, [(0, length)], heads=num_heads, kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)
    heads = np.arange(num_heads, dtype=np.float32)
    rules = {"softcap": 1.0, "sinks": heads, "slopes": heads / 100} if ruled else {}
    whole = run(BACKENDS[ISAS[0], 2], case, window, **rules)
    backend, layer, pieces = BACKENDS[isa, threads], case.fresh_layer(), []
    edges = sorted({0, length, *(c for c in cuts if c < length)})
    for begin, end in itertools.pairwise(edges):
        qkv, step, cache = store(backend, rows_of(case, begin, end), layer)
        out = np.empty((end - begin, case.heads * case.head_dim), dtype=np.float32)
        backend.attention(
            qkv, case.heads, AttentionParams(case.head_dim**-0.5, window=window, **rules), step, cache, out
        )
        pieces.append(out)
    assert np.array_equal(np.concatenate(pieces), whole)


def rows_of(case: Attention, begin: int, end: int) -> Attention:
    """Rows [begin, end) of a case of one sequence with nothing cached, as a step of its own."""
    batch = case.batch
    part = type(batch)(
        token_ids=batch.token_ids[begin:end],
        positions=batch.positions[begin:end],
        slot_mapping=batch.slot_mapping[begin:end],
        query_start_loc=np.array([0, end - begin], dtype=np.int32),
        seq_lens=np.array([end], dtype=np.int32),
        block_table=batch.block_table,
    )
    return replace(case, batch=part, qkv=case.qkv[begin:end])


@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
def test_a_row_has_the_same_bits_in_any_company(dtype: str) -> None:
    rng = np.random.default_rng(12)
    spans = [(700, 3), (0, 130), (511, 1), (30, 40)]
    case = random_attention(rng, spans, heads=9, kv_heads=3, head_dim=64, dtype=dtype)
    together = run(BACKENDS[ISAS[0], 2], case)
    for i, (begin, end) in enumerate(itertools.pairwise(case.batch.query_start_loc)):
        alone = rows_of(case, begin, end)
        lengths, table = case.batch.seq_lens[i : i + 1], case.batch.block_table[i : i + 1]
        alone = replace(alone, batch=replace(alone.batch, seq_lens=lengths, block_table=table))
        assert np.array_equal(run(BACKENDS[ISAS[0], 1], alone), together[begin:end])


@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_rotation_norms_and_store(isa: str, dtype: str) -> None:
    rng = np.random.default_rng(5)
    case = random_attention(rng, [(3, 4), (0, 9)], heads=4, kv_heads=2, head_dim=32, dtype=dtype)
    q_norm, k_norm = rng.uniform(0.5, 2, (2, 32)).astype(np.float32)
    stored = []
    for backend in (REFERENCE, BACKENDS[isa, 2]):
        layer = case.fresh_layer()
        qkv, step, _ = store(backend, case, layer, q_norm, k_norm)
        assert not step.nonfinite.any()
        stored.append((qkv, *kv_codes.gather(layer, case.batch.block_table[1], 9)))
    coarse = {"float16": 2e-3, "float32": 5e-6, "int16": 1e-3, "int8": 2e-2, "int4": 0.4}[dtype]  # one code apart
    for index, (expected, got) in enumerate(zip(*stored, strict=True)):
        np.testing.assert_allclose(got, expected, rtol=5e-6, atol=coarse if index else 5e-6)
        assert np.mean(np.abs(got - expected) > 5e-6) < (0.02 if index else 1e-9), "codes differ only at near-ties"


@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e6])
def test_a_key_or_value_that_can_not_be_stored_is_reported_for_its_row(dtype: str, poison: float) -> None:
    rng = np.random.default_rng(6)
    case = random_attention(rng, [(0, 3), (5, 2)], heads=2, kv_heads=2, head_dim=16, dtype=dtype)
    case.qkv[1, -1] = poison  # the last number of row 1's value
    case.qkv[4, 2 * 16] = poison  # the first number of row 4's key
    bad = dtype == "float16" or poison != 1e6
    for backend in (REFERENCE, *BACKENDS.values()):
        _, step, _ = store(backend, case, case.fresh_layer())
        assert step.nonfinite.tolist() == [False, bad, False, False, bad]


@pytest.mark.parametrize("dtype", ["int16", "int8", "int4"])
@pytest.mark.parametrize("isa", ISAS)
def test_a_query_that_is_not_finite_spoils_its_own_row_only(isa: str, dtype: str) -> None:
    rng = np.random.default_rng(8)
    case = random_attention(rng, [(300, 3)], heads=2, kv_heads=1, head_dim=32, dtype=dtype)
    clean = run(BACKENDS[isa, 1], case)
    case.qkv[1, 3] = np.nan
    spoiled = run(BACKENDS[isa, 1], case)
    assert np.isnan(spoiled[1, :32]).all()
    assert np.array_equal(spoiled[[0, 2]], clean[[0, 2]])
    assert np.array_equal(spoiled[1, 32:], clean[1, 32:])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dim=st.sampled_from([16, 48, 64, 256, 576]),
    size=st.sampled_from([0.0, 1e-35, 1e-20, 1.0, 1e15, 1e30]),
    spikes=st.integers(0, 3),
    dtype=st.sampled_from(["int16", "int8", "int4"]),
    isa=st.sampled_from(ISAS),
)
def test_codes_of_any_size_never_wrap(seed, dim, size, spikes, dtype, isa) -> None:
    """Sums of products that wrapped would be far from the definition; queries here are keys, the longest product."""
    rng = np.random.default_rng(seed)
    case = random_attention(rng, [(0, 20)], heads=1, kv_heads=1, head_dim=dim, dtype=dtype)
    row = np.ones(dim) if spikes == 0 else np.where(np.arange(dim) < spikes, 1.0, 0.01)
    key = (row * rng.choice([-1, 1], dim) * size).astype(np.float32)
    pairs = np.zeros((20, dim // 2), dtype=np.float32)
    case.qkv[:] = np.concatenate([key / max(size, 1) / dim**0.5, key, np.full(dim, size)])
    layer, qkv = case.fresh_layer(), case.qkv.copy()
    backend = BACKENDS[isa, 1]
    step, cache = backend.step(case.batch), backend.layer_cache(layer)
    backend.rotate_and_store(qkv, 1, None, None, 1e-6, pairs + 1, pairs, step, cache)
    assert not step.nonfinite.any()
    out = np.empty((20, dim), dtype=np.float32)
    backend.attention(qkv, 1, AttentionParams(1e-3 / max(size, 1e-30)), step, cache, out)
    expected = 0 if size < 1e-30 else size
    np.testing.assert_allclose(out, np.full_like(out, expected), rtol=1e-3)


def test_steps_that_point_outside_the_cache_are_refused() -> None:
    rng = np.random.default_rng(7)
    case = random_attention(rng, [(20, 2)], heads=2, kv_heads=1, head_dim=16)
    backend = BACKENDS[ISAS[0], 1]
    case.batch.block_table[0, 1] = 999
    with pytest.raises(ValueError, match="outside the cache"):
        store(backend, case, case.fresh_layer())
    case.batch.block_table[0, 1] = -1
    with pytest.raises(ValueError, match="negative"):
        backend.step(case.batch)


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    backend = BACKENDS[ISAS[0], 1]
    layers = {
        dtype: random_attention(
            np.random.default_rng(1), [(0, 1)], heads=1, kv_heads=1, head_dim=16, dtype=dtype
        ).fresh_layer()
        for dtype in KV_CACHE_DTYPES
    }
    for broken in (
        replace(layers["int16"], scales=None),
        replace(layers["int16"], factors=layers["int4"].factors),
        replace(layers["float16"], scales=layers["int16"].scales),
        replace(layers["int4"], factors=None),
        replace(layers["int8"], values=layers["int16"].values),
        replace(layers["int16"], keys=layers["int16"].keys[:1]),
        replace(layers["int16"], scales=np.ascontiguousarray(layers["int16"].scales)),
    ):
        with pytest.raises(UnsupportedModelError, match="does not fit the native backend"):
            backend.layer_cache(broken)
    assert all(array.flags.writeable for array in arrays_of(layers["int4"]))
