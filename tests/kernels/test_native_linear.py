"""The compiled matrix products and row operations against the NumPy definition, on every instruction set here."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kernels.arrays import SERVED_TYPES, block_type, linear, plain, random_part

from pellucid.errors import BackendError
from pellucid.formats.block_types import BlockType
from pellucid.kernels.backend import WeightPart
from pellucid.kernels.native import NativeBackend, available_isas
from pellucid.kernels.reference import ReferenceBackend, gelu_tanh, rms_norm, silu

ISAS = available_isas()
REFERENCE = ReferenceBackend()


@pytest.fixture(scope="module", params=ISAS)
def backend(request: pytest.FixtureRequest) -> NativeBackend:
    return NativeBackend(2, request.param)


def error_bound(x: np.ndarray, weights: np.ndarray, integer: bool) -> np.ndarray:
    """[T, rows] what rounding may cost: half a 16-bit step per column for integer types, and float32 sums."""
    columns = x.shape[1]
    steps = np.zeros(x.shape)
    if integer:
        groups = np.abs(x).reshape(len(x), -1, 32)
        steps = np.repeat(groups.max(axis=2) / 32639 / 2, 32, axis=1)
    sums = (columns + 8) * 2.0**-24
    return (steps + sums * np.abs(x)) @ np.abs(weights).T.astype(np.float64) * 1.01 + 1e-30


@pytest.mark.parametrize("weight_type", SERVED_TYPES, ids=lambda t: t.name)
def test_product_stays_within_rounding_of_the_exact_sum(backend: NativeBackend, weight_type: BlockType) -> None:
    rng = np.random.default_rng(1)
    columns = 3 * math.lcm(weight_type.block_size, 32)
    for rows in (1, 16, 37):
        part = random_part(rng, weight_type, rows, columns)
        x = (rng.standard_normal((3, columns)) * rng.uniform(0.01, 30, (3, 1))).astype(np.float32)
        x[1, :40] = 0
        weights = plain(part)
        exact = x.astype(np.float64) @ weights.T.astype(np.float64)
        # A centre or minimum is taken off after the sum, so terms are as large as the unsigned codes make them.
        size = np.abs(weights) + np.abs(weights).max(axis=1, keepdims=True)
        bound = error_bound(x, size, weight_type.name not in ("F32", "F16", "BF16"))
        got = linear(backend, x, backend.matrix([part]), rows)
        assert np.all(np.abs(got - exact) <= bound), np.max(np.abs(got - exact) / bound)


@pytest.mark.parametrize("weight_type", SERVED_TYPES, ids=lambda t: t.name)
def test_a_rows_bits_do_not_depend_on_its_neighbours_threads_or_instruction_set(weight_type: BlockType) -> None:
    rng = np.random.default_rng(2)
    columns = 2 * math.lcm(weight_type.block_size, 32)
    part = random_part(rng, weight_type, 40, columns)
    x = rng.standard_normal((67, columns)).astype(np.float32)
    results = []
    for isa in ISAS:
        for threads in (1, 2, 3):
            backend = NativeBackend(threads, isa)
            matrix = backend.matrix([part])
            whole = linear(backend, x, matrix, 40)
            for count in (1, 2, 3, 5, 8, 13, 66) if threads < 3 else (7,):
                start = 67 - count
                assert np.array_equal(linear(backend, x[start:].copy(), matrix, 40), whole[start:])
            results.append(whole)
    assert all(np.array_equal(r, results[0]) for r in results)


@pytest.mark.parametrize("columns", [1, 63, 64, 65, 160, 300])
@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_weights_that_are_floats_give_a_row_its_bits_in_any_company(name: str, columns: int) -> None:
    """Many rows go through strips of columns that a single row does not."""
    rng = np.random.default_rng(11)
    part = random_part(rng, block_type(name), 24, columns)
    x = rng.standard_normal((300, columns)).astype(np.float32)
    results = []
    for isa in ISAS:
        backend = NativeBackend(2, isa)
        matrix = backend.matrix([part])
        whole = linear(backend, x, matrix, 24)
        for count in (1, 4, 7, 64, 65):
            assert np.array_equal(linear(backend, x[:count].copy(), matrix, 24), whole[:count])
        results.append(whole)
    assert all(np.array_equal(r, results[0]) for r in results)
    np.testing.assert_allclose(results[0], x.astype(np.float64) @ plain(part).T.astype(np.float64), atol=1e-4)


@pytest.mark.parametrize("rows_of_x", range(1, 68, 6))
def test_every_row_count(backend: NativeBackend, rows_of_x: int) -> None:
    rng = np.random.default_rng(rows_of_x)
    part = random_part(rng, block_type("Q4_1"), 33, 96)
    x = rng.standard_normal((rows_of_x, 96)).astype(np.float32)
    got = linear(backend, x, backend.matrix([part]), 33)
    np.testing.assert_allclose(got, x @ plain(part).T, rtol=0, atol=2e-3)


def test_parts_of_different_types_stand_below_each_other_in_their_given_row_order(backend: NativeBackend) -> None:
    rng = np.random.default_rng(3)
    order = rng.permutation(24).astype(np.int32)
    parts = [
        random_part(rng, block_type("Q5_0"), 24, 256, order),
        random_part(rng, block_type("Q8_0"), 5, 256),
        random_part(rng, block_type("F16"), 18, 256),
        random_part(rng, block_type("Q6_K"), 7, 256),
    ]
    weights = np.concatenate([plain(p) for p in parts])
    x = rng.standard_normal((4, 256)).astype(np.float32)
    matrix = backend.matrix(parts)
    assert (matrix.rows, matrix.columns) == (54, 256)
    size = np.abs(weights) + np.abs(weights).max(axis=1, keepdims=True)
    exact = x.astype(np.float64) @ weights.T.astype(np.float64)
    assert np.all(np.abs(linear(backend, x, matrix, 54) - exact) <= error_bound(x, size, True))
    ids = np.array([0, 23, 24, 28, 29, 46, 47, 53, 3], dtype=np.int32)
    out = np.empty((9, 256), dtype=np.float32)
    backend.embed(matrix, ids, 1.0, out)
    np.testing.assert_array_equal(out, weights[ids])


@pytest.mark.parametrize("weight_type", SERVED_TYPES, ids=lambda t: t.name)
def test_embedding_rows_are_the_dequantised_rows(backend: NativeBackend, weight_type: BlockType) -> None:
    rng = np.random.default_rng(4)
    part = random_part(rng, weight_type, 35, 2 * math.lcm(weight_type.block_size, 32))
    ids = rng.integers(0, 35, 20).astype(np.int32)
    out = np.empty((20, part.columns), dtype=np.float32)
    backend.embed(backend.matrix([part]), ids, 3.0, out)
    np.testing.assert_array_equal(out, plain(part)[ids] * np.float32(3.0))


def test_norm_before_and_sum_after_the_product(backend: NativeBackend) -> None:
    rng = np.random.default_rng(5)
    part = random_part(rng, block_type("Q8_0"), 48, 64)
    norm = rng.uniform(0.5, 2, 64).astype(np.float32)
    x = rng.standard_normal((9, 64)).astype(np.float32)
    matrix = backend.matrix([part])
    out = np.empty((9, 48), dtype=np.float32)
    backend.linear(x, norm, 1e-5, matrix, out, None)
    normalised, weights = rms_norm(x, norm, 1e-5), plain(part)
    size = np.abs(weights) + np.abs(weights).max(axis=1, keepdims=True)
    assert np.all(np.abs(out - normalised @ weights.T) <= error_bound(normalised, size, True))
    residual = rng.standard_normal((9, 48)).astype(np.float32)
    expected = residual + linear(backend, x, matrix, 48)
    backend.linear_add(x, matrix, residual, None)
    np.testing.assert_array_equal(residual, expected)


@pytest.mark.parametrize(("activation", "definition"), [("silu", silu), ("gelu_tanh", gelu_tanh)])
@pytest.mark.parametrize("width", [16, 40, 7])
def test_gated_product(backend: NativeBackend, activation, definition, width: int) -> None:
    rng = np.random.default_rng(6)
    gate, up = (random_part(rng, block_type("F32"), width, 48) for _ in range(2))
    norm = np.ones(48, dtype=np.float32)
    x = rng.standard_normal((5, 48)).astype(np.float32)
    out = np.empty((5, width), dtype=np.float32)
    backend.linear_gated(x, norm, 1e-6, backend.matrix([gate, up]), activation, out, None)
    n = rms_norm(x, norm, 1e-6)
    np.testing.assert_allclose(out, definition(n @ plain(gate).T) * (n @ plain(up).T), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("width", [1, 15, 16, 63, 64, 65, 576, 640])
def test_rms_norm(backend: NativeBackend, width: int) -> None:
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((3, width)) * 100).astype(np.float32)
    weight = rng.standard_normal(width).astype(np.float32)
    out = np.empty_like(x)
    backend.rms_norm(x, weight, 1e-5, out)
    np.testing.assert_allclose(out, rms_norm(x, weight, 1e-5), rtol=3e-6)
    residual = rng.standard_normal((3, width)).astype(np.float32)
    expected = residual + out
    backend.rms_norm_add(x, weight, 1e-5, residual)
    np.testing.assert_array_equal(residual, expected)


@pytest.mark.parametrize("count", [1, 3, 67])
@pytest.mark.parametrize("name", ["Q4_1", "F16"])
def test_a_bias_is_added_last(backend: NativeBackend, name: str, count: int) -> None:
    rng = np.random.default_rng(10)
    parts = [random_part(rng, block_type(name), rows, 64) for rows in (37, 20)]
    matrix, bias = backend.matrix(parts), rng.standard_normal(57).astype(np.float32)
    x, residual = (rng.standard_normal((count, width)).astype(np.float32) for width in (64, 57))
    out, added = np.empty((count, 57), dtype=np.float32), residual.copy()
    backend.linear(x, None, 0.0, matrix, out, None, bias)
    assert np.array_equal(out, linear(backend, x, matrix, 57) + bias)
    backend.linear_add(x, matrix, added, None, bias)
    backend.linear_add(x, matrix, residual)
    assert np.array_equal(added, residual + bias)
    with pytest.raises(ValueError, match="bias must have one number per row"):
        backend.linear(x, None, 0.0, matrix, out, None, bias[:-1].copy())


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_poisons_its_own_row_only(backend: NativeBackend, poison: float) -> None:
    rng = np.random.default_rng(7)
    part = random_part(rng, block_type("Q4_0"), 16, 576)
    x = rng.standard_normal((3, 576)).astype(np.float32)
    clean = linear(backend, x, backend.matrix([part]), 16)
    x[1, rng.choice([5, 575])] = poison
    got = linear(backend, x, backend.matrix([part]), 16)
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("name", ["Q4_1", "Q8_0", "Q6_K", "Q2_K"])
def test_a_group_of_activations_has_the_same_bits_in_a_narrow_and_in_a_wide_row(
    backend: NativeBackend, name: str
) -> None:
    """Sixteen groups are coded together where a row has so many; weights of zero leave one piece of it to be seen."""
    rng, weight_type, wide = np.random.default_rng(9), block_type(name), 24 * 32
    columns = math.lcm(weight_type.block_size, 32)
    narrow = random_part(rng, weight_type, 16, columns)
    x = rng.standard_normal((2, wide)).astype(np.float32) * 10 ** rng.uniform(-32, 3, (1, wide // 32)).repeat(
        32, axis=1
    )
    x = x.astype(np.float32)
    blocks = columns // weight_type.block_size
    for place in range(0, wide // columns, 3):
        data = np.zeros((16, wide // columns, blocks * weight_type.type_size), dtype=np.uint8)
        data[:, place] = narrow.data.reshape(16, -1)
        part = WeightPart("wide", data.reshape(-1), weight_type, 16, wide)
        piece = np.ascontiguousarray(x[:, place * columns : (place + 1) * columns])
        alone = linear(backend, piece, backend.matrix([narrow]), 16)
        assert np.array_equal(linear(backend, x, backend.matrix([part]), 16), alone)


def test_extreme_activations_neither_overflow_nor_vanish(backend: NativeBackend) -> None:
    part = random_part(np.random.default_rng(8), block_type("Q8_0"), 16, 32)
    for size in (1e-20, 1.0, 1e20):
        x = np.full((1, 32), size, dtype=np.float32)
        x[0, ::2] *= -1
        np.testing.assert_allclose(
            linear(backend, x, backend.matrix([part]), 16), x @ plain(part).T, rtol=0, atol=size * 5e-3
        )


def test_wrong_shapes_are_refused_before_any_memory_is_touched(backend: NativeBackend) -> None:
    matrix = backend.matrix([random_part(np.random.default_rng(9), block_type("Q8_0"), 16, 32)])
    x, out = np.zeros((2, 32), dtype=np.float32), np.zeros((2, 16), dtype=np.float32)
    for bad_x, bad_out in ((x[:, :16].copy(), out), (x, out[:1]), (x, np.zeros((2, 17), dtype=np.float32))):
        with pytest.raises(ValueError, match=r"width|shape|columns"):
            backend.linear(bad_x, None, 0.0, matrix, bad_out, None)
    with pytest.raises(ValueError, match="outside"):
        backend.embed(matrix, np.array([16], dtype=np.int32), 1.0, np.zeros((1, 32), dtype=np.float32))


def test_an_unknown_instruction_set_is_named_with_those_there_are() -> None:
    with pytest.raises(BackendError, match=r"sse9.*generic"):
        NativeBackend(1, "sse9")
