"""Operations noted once and run again: as if called each time, on what the arrays then hold, and as well checked."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from kernels.arrays import Attention, random_attention

from pellucid.formats.block_types import BLOCK_TYPES_BY_NAME
from pellucid.kernels.backend import AttentionParams, Backend, WeightPart
from pellucid.kernels.native import NativeBackend, available_isas
from pellucid.kernels.reference import ReferenceBackend

HEADS, KV_HEADS, DIM = 4, 2, 32
WIDTH = (HEADS + 2 * KV_HEADS) * DIM
BACKENDS = [ReferenceBackend(), *(NativeBackend(2, isa) for isa in available_isas())]


def case_of(seed: int, spans: list[tuple[int, int]]) -> Attention:
    rng = np.random.default_rng(seed)
    return random_attention(rng, spans, heads=HEADS, kv_heads=KV_HEADS, head_dim=DIM, dtype="int16")


class Chain:
    """A product, rotation and store, attention, on arrays that stay."""

    def __init__(self, backend: Backend, case: Attention) -> None:
        rng = np.random.default_rng(0)
        weights = rng.standard_normal((WIDTH, 64)).astype(np.float32)
        type_ = BLOCK_TYPES_BY_NAME["F32"]
        self.matrix = backend.matrix([WeightPart("w", weights.view(np.uint8).reshape(-1), type_, WIDTH, 64)])
        count = len(case.qkv)
        self.x = np.zeros((count, 64), dtype=np.float32)
        self.qkv = np.zeros((count, WIDTH), dtype=np.float32)
        self.out = np.zeros((count, HEADS * DIM), dtype=np.float32)
        self.angles = (np.ones((count, DIM // 2), dtype=np.float32), np.zeros((count, DIM // 2), dtype=np.float32))
        self.backend, self.step = backend, backend.step(case.batch)
        self.cache = backend.layer_cache(case.fresh_layer())
        self.params = AttentionParams(DIM**-0.5)

    def operations(self) -> None:
        backend = self.backend
        backend.linear(self.x, None, 0.0, self.matrix, self.qkv, self.step)
        backend.rotate_and_store(self.qkv, HEADS, None, None, 1e-6, *self.angles, self.step, self.cache)
        backend.attention(self.qkv, HEADS, self.params, self.step, self.cache, self.out)


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.isa)
def test_noted_operations_are_the_called_ones(backend: Backend) -> None:
    first, other = case_of(1, [(20, 1), (3, 1)]), case_of(2, [(40, 1), (0, 1)])
    noted, called = Chain(backend, first), Chain(backend, first)
    run = backend.note(noted.operations)
    assert not noted.out.any(), "noting does nothing yet"
    for seed, case in enumerate((first, other, first)):
        x = np.random.default_rng(seed).standard_normal(noted.x.shape).astype(np.float32)
        for chain in (noted, called):
            chain.x[:] = x
            chain.step.renew(case.batch)
        run()
        called.operations()
        assert called.out.any()
        np.testing.assert_array_equal(noted.out, called.out)


@pytest.mark.parametrize("backend", BACKENDS[1:], ids=lambda backend: backend.isa)
def test_what_is_noted_owns_its_arrays(backend: Backend) -> None:
    case = case_of(1, [(20, 1)])
    chain = Chain(backend, case)
    chain.x[:] = 1.0
    chain.operations()
    expected, run, out = chain.out.copy(), backend.note(chain.operations), chain.out
    out[:] = 0.0
    del chain
    gc.collect()
    run()
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("backend", BACKENDS[1:], ids=lambda backend: backend.isa)
def test_a_renewed_step_is_checked_again(backend: Backend) -> None:
    case = case_of(1, [(20, 1)])
    chain = Chain(backend, case)
    run = backend.note(chain.operations)
    with pytest.raises(ValueError, match="as many rows"):
        chain.step.renew(case_of(1, [(20, 2)]).batch)
    far = replace(case.batch, block_table=np.full_like(case.batch.block_table, 10_000))
    chain.step.renew(far)
    with pytest.raises(ValueError, match="outside the cache"):
        run()
    chain.step.renew(case.batch)
    run()
    ids, rows = np.zeros(1, dtype=np.int32), np.zeros((1, 64), dtype=np.float32)
    with pytest.raises(ValueError, match="can not be noted"):
        backend.note(lambda: backend.embed(chain.matrix, ids, 1.0, rows))
    chain.operations()  # noting has ended, though it failed


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.isa)
def test_a_renewed_step_forgets_what_was_not_finite(backend: Backend) -> None:
    case = case_of(1, [(20, 1)])
    chain = Chain(backend, case)
    run = backend.note(chain.operations)
    chain.x[:] = np.nan
    run()
    assert chain.step.nonfinite.tolist() == [True]
    chain.x[:] = 1.0
    chain.step.renew(case.batch)
    run()
    assert chain.step.nonfinite.tolist() == [False]
