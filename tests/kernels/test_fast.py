"""Precision "fast": products with 8-bit activations (bfloat16 on AMX), for rows that may have them, no others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kernels.arrays import SERVED_TYPES, block_type, fast_step, linear, plain, random_part, with_codes

from pellucid.formats.block_types import BlockType
from pellucid.kernels.native import NativeBackend, available_isas

ISAS = available_isas()
BYTE_ISAS = [isa for isa in ISAS if not isa.startswith("amx")]
FLOATS = ("F32", "F16", "BF16")


def eight_bits(x: np.ndarray) -> np.ndarray:
    """The definition: each 32 columns rounded to whole multiples of (largest size / 127)."""
    groups = x.reshape(len(x), -1, 32)
    scale = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    codes = np.rint(groups / np.where(scale > 0, scale, 1))
    return (codes * scale).reshape(x.shape).astype(np.float64)


def bfloat16(x: np.ndarray) -> np.ndarray:
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("isa", BYTE_ISAS)
@pytest.mark.parametrize("weight_type", SERVED_TYPES, ids=lambda t: t.name)
def test_fast_products_are_those_of_8_bit_activations(weight_type: BlockType, isa: str) -> None:
    rng = np.random.default_rng(1)
    columns = 3 * math.lcm(weight_type.block_size, 32)
    part = random_part(rng, weight_type, 37, columns)
    x = (rng.standard_normal((21, columns)) * rng.uniform(0.01, 30, (21, 1))).astype(np.float32)
    x[1, :40] = 0
    backend, weights = NativeBackend(2, isa), plain(part)
    got = linear(backend, x, backend.matrix([part]), 37, fast_step(backend, np.ones(21, dtype=bool)))
    rounded = x.astype(np.float64) if weight_type.name in FLOATS else eight_bits(x)
    # What is left is float32's share; ties of the division by the scale may fall the other way, a step of one column.
    size = np.abs(x) @ (np.abs(weights) + np.abs(weights).max(axis=1, keepdims=True)).T
    assert np.all(np.abs(got - rounded @ weights.T) <= 2e-6 * size + 1e-6 * np.abs(x).max() * np.abs(weights).max())


@pytest.mark.parametrize("isa", BYTE_ISAS)
@pytest.mark.parametrize("weight_type", [t for t in SERVED_TYPES if t.name not in FLOATS], ids=lambda t: t.name)
def test_fast_sums_hold_the_largest_codes_and_activations(weight_type: BlockType, isa: str) -> None:
    """All bits of codes set, or none, and activations at the end of their range: no sum on the way overflows."""
    columns = 3 * math.lcm(weight_type.block_size, 32)
    backend = NativeBackend(2, isa)
    step = fast_step(backend, np.ones(20, dtype=bool))
    x = np.ones((20, columns), dtype=np.float32)
    x[1], x[2, ::2], x[3, 1::2], x[4, columns // 2 :] = -1, -1, -1, -1
    usual = random_part(np.random.default_rng(8), weight_type, 16, columns)
    for filling in (0x00, 0x7F, 0x80, 0xFF):
        part = with_codes(usual, filling)
        weights = plain(part).astype(np.float64)
        got = linear(backend, x, backend.matrix([part]), 16, step)
        size = np.abs(x) @ (np.abs(weights) + np.abs(weights).max(axis=1, keepdims=True)).T
        assert np.all(np.abs(got - x.astype(np.float64) @ weights.T) <= 2e-6 * size)


@pytest.mark.skipif("amx_emulated" not in ISAS, reason="the tile kernels need AVX-512 VNNI")
@pytest.mark.parametrize("weight_type", SERVED_TYPES, ids=lambda t: t.name)
def test_fast_products_on_tiles_are_those_of_bfloat16(weight_type: BlockType) -> None:
    rng = np.random.default_rng(2)
    columns = 3 * weight_type.block_size if weight_type.name in FLOATS else 3 * math.lcm(weight_type.block_size, 32)
    part = random_part(rng, weight_type, 37, columns)
    x = rng.standard_normal((64 * 3 + 21, columns)).astype(np.float32)
    for isa in [i for i in ISAS if i.startswith("amx")]:
        backend, weights = NativeBackend(1, isa), plain(part)
        matrix = backend.matrix([part])
        for count in (5, 16, 17, 33, 64, len(x)):
            rows = x[:count].copy()
            got = linear(backend, rows, matrix, 37, fast_step(backend, np.ones(count, dtype=bool)))
            expected = bfloat16(rows) @ bfloat16(weights).T
            # A weight that lies between two bfloat16 numbers in float32's own rounding may go either way.
            assert np.all(np.abs(got - expected) <= 1e-4 * (np.abs(rows) @ np.abs(weights).T) + 1e-6)


@pytest.mark.parametrize("weight_type", SERVED_TYPES, ids=lambda t: t.name)
def test_fast_bits_agree_among_instruction_sets_without_tiles(weight_type: BlockType) -> None:
    rng = np.random.default_rng(3)
    columns = 2 * math.lcm(weight_type.block_size, 32)
    part = random_part(rng, weight_type, 40, columns)
    x = rng.standard_normal((67, columns)).astype(np.float32)
    results = []
    for isa in BYTE_ISAS:
        backend = NativeBackend(2, isa)
        matrix = backend.matrix([part])
        results.append(linear(backend, x, matrix, 40, fast_step(backend, np.ones(67, dtype=bool))))
        alone = linear(backend, x[3:4].copy(), matrix, 40, fast_step(backend, np.ones(1, dtype=bool)))
        assert np.array_equal(alone, results[-1][3:4])
    assert all(np.array_equal(r, results[0]) for r in results)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_that_must_be_exact_are_exact_between_fast_ones(isa: str) -> None:
    rng = np.random.default_rng(4)
    parts = [random_part(rng, block_type(name), 24, 256) for name in ("Q4_K", "F16", "Q8_0")]
    x = rng.standard_normal((150, 256)).astype(np.float32)
    fast = np.zeros(150, dtype=bool)
    fast[3:40] = fast[41:43] = fast[60:149] = True
    backend = NativeBackend(2, isa)
    matrix = backend.matrix(parts)
    exact, all_fast = linear(backend, x, matrix, 72), linear(backend, x, matrix, 72, fast_step(backend, fast | True))
    mixed = linear(backend, x, matrix, 72, fast_step(backend, fast))
    assert np.array_equal(mixed[~fast], exact[~fast])
    assert np.array_equal(mixed[60:149], all_fast[60:149])
    assert not np.array_equal(mixed[60:149], exact[60:149])


@pytest.mark.parametrize("isa", ISAS)
def test_fast_sums_and_gates(isa: str) -> None:
    rng = np.random.default_rng(5)
    gate, up = (random_part(rng, block_type("Q4_1"), 32, 64) for _ in range(2))
    backend = NativeBackend(2, isa)
    matrix = backend.matrix([gate, up])
    x = rng.standard_normal((20, 64)).astype(np.float32)
    step = fast_step(backend, np.ones(20, dtype=bool))
    products = linear(backend, x, matrix, 64, step)
    residual = rng.standard_normal((20, 64)).astype(np.float32)
    expected = residual + products
    backend.linear_add(x, matrix, residual, step)
    np.testing.assert_array_equal(residual, expected)
    out = np.empty((20, 32), dtype=np.float32)
    norm = np.ones(64, dtype=np.float32)
    backend.linear_gated(x, norm, 1e-6, matrix, "silu", out, step)
    normed = np.empty((20, 64), dtype=np.float32)
    backend.linear(x, norm, 1e-6, matrix, normed, step)
    g, u = normed[:, :32].astype(np.float64), normed[:, 32:]
    np.testing.assert_allclose(out, g / (1 + np.exp(-g)) * u, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("isa", ISAS)
def test_a_number_that_is_not_finite_spoils_its_own_row_only(isa: str, poison: float) -> None:
    rng = np.random.default_rng(6)
    part = random_part(rng, block_type("Q4_0"), 16, 64)
    x = rng.standard_normal((18, 64)).astype(np.float32)
    backend = NativeBackend(1, isa)
    matrix, step = backend.matrix([part]), fast_step(backend, np.ones(18, dtype=bool))
    clean = linear(backend, x, matrix, 16, step)
    x[7, 5] = poison
    got = linear(backend, x, matrix, 16, step)
    assert not np.isfinite(got[7]).any()
    np.testing.assert_array_equal(np.delete(got, 7, axis=0), np.delete(clean, 7, axis=0))


def test_a_step_of_another_size_is_refused() -> None:
    backend = NativeBackend(1)
    matrix = backend.matrix([random_part(np.random.default_rng(7), block_type("Q8_0"), 16, 32)])
    with pytest.raises(ValueError, match="one row per input row"):
        linear(backend, np.zeros((3, 32), dtype=np.float32), matrix, 16, fast_step(backend, np.ones(2, dtype=bool)))
