"""The draw's generator against published vectors, and the independence of what it draws."""

from __future__ import annotations

import timeit

import numpy as np
import pytest
from naive_sampling import chi_square_z

from pellucid.sampling.draw import philox4x32, uniform

# Random123 1.14, tests/kat_vectors, "philox4x32 10": counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: str, key: str, expected: str) -> None:
    c0, c1, c2, c3 = (int(word, 16) for word in counter.split())
    k0, k1 = (int(word, 16) for word in key.split())
    assert philox4x32((c0, c1, c2, c3), (k0, k1)) == tuple(int(word, 16) for word in expected.split())


def test_bits_of_the_draw_are_those_documented() -> None:
    assert uniform(0, 0, 0) == (0x6627E8D5E169C58D >> 11) / 2**53
    low, high, _, _ = philox4x32((7, 1, 3, 0), (0x89ABCDEF, 0x01234567))
    assert uniform(0x0123456789ABCDEF, 3, (1 << 32) + 7) == ((low << 32 | high) >> 11) / 2**53


def test_draw_depends_on_every_argument_and_on_nothing_else() -> None:
    arguments = [
        (seed, index, position)
        for seed in (0, 1, 2**32, 2**63 - 1)
        for index in (0, 1, 127)
        for position in (0, 1, 2**32)
    ]
    first = [uniform(*a) for a in arguments]
    assert len(set(first)) == len(arguments)
    assert [uniform(*a) for a in reversed(arguments)] == first[::-1]
    assert all(0.0 <= u < 1.0 for u in first)


def test_draws_are_uniform_and_neighbours_independent() -> None:
    # A right generator exceeds 5 standard deviations with a chance of 3e-7 a check.
    count = 20_000
    rows = {
        "base": [uniform(5, 0, p) for p in range(count)],
        "next position": [uniform(5, 0, p + 1) for p in range(count)],
        "next sample index": [uniform(5, 1, p) for p in range(count)],
        "next seed": [uniform(6, 0, p) for p in range(count)],
        "high seed": [uniform(5 + 2**32, 0, p) for p in range(count)],
        "sample indices": [uniform(5, p + 1, 0) for p in range(count)],
    }
    base = np.array(rows["base"])
    for name, row in rows.items():
        values = np.array(row)
        cells = np.bincount((values * 100).astype(int), minlength=100)
        assert chi_square_z(cells.tolist(), [0.01] * 100) < 5.0, name
        if name == "base":
            continue
        assert abs(float(np.corrcoef(base, values)[0, 1])) * count**0.5 < 5.0, name
        pairs = np.bincount((base * 10).astype(int) * 10 + (values * 10).astype(int), minlength=100)
        assert chi_square_z(pairs.tolist(), [0.01] * 100) < 5.0, name


def test_draw_is_cheap() -> None:
    # 4 microseconds are usual; the bound leaves room for a busy machine.
    assert min(timeit.repeat(lambda: uniform(7, 3, 1000), number=500, repeat=5)) / 500 < 60e-6
