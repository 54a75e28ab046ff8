"""Tile products (AMX) against the row products: the same bits, on emulated tiles where the processor has none."""

from __future__ import annotations

import errno
import math

import numpy as np
import pytest
from kernels.arrays import SERVED_TYPES, linear, random_part

from pellucid.errors import BackendError
from pellucid.formats.block_types import BlockType
from pellucid.kernels import _native  # type: ignore[attr-defined]
from pellucid.kernels.native import NativeBackend, available_isas, unused_instructions

TILED = [isa for isa in ("amx", "amx_emulated") if isa in available_isas()]
needs_avx512 = pytest.mark.skipif(not TILED, reason="the tile kernels need AVX-512 VNNI for what is not on tiles")


@needs_avx512
@pytest.mark.parametrize("isa", TILED)
@pytest.mark.parametrize("weight_type", SERVED_TYPES, ids=lambda t: t.name)
def test_tiles_give_the_bits_of_the_row_kernels_for_every_row_count(weight_type: BlockType, isa: str) -> None:
    rng = np.random.default_rng(1)
    # Every count on one panel, and a few on several, over an odd number of groups.
    for multiple, rows, counts in ((1, 16, range(1, 68)), (3, 33, (5, 20, 67))):
        columns = multiple * math.lcm(weight_type.block_size, 32)
        part = random_part(rng, weight_type, rows, columns)
        x = (rng.standard_normal((67, columns)) * rng.uniform(0.01, 30, (67, 1))).astype(np.float32)
        plain, tiled = NativeBackend(2, "avx512vnni"), NativeBackend(2, isa)
        expected = linear(plain, x, plain.matrix([part]), rows)
        matrix = tiled.matrix([part])
        for count in counts:
            assert np.array_equal(linear(tiled, x[:count].copy(), matrix, rows), expected[:count]), count


@needs_avx512
@pytest.mark.parametrize("isa", TILED)
@pytest.mark.parametrize("threads", [1, 2])
def test_many_rows_are_shared_among_the_threads_block_by_block(isa: str, threads: int) -> None:
    rng = np.random.default_rng(2)
    part = random_part(rng, next(t for t in SERVED_TYPES if t.name == "Q6_K"), 48, 256)
    x = rng.standard_normal((64 * 5 + 7, 256)).astype(np.float32)
    plain, tiled = NativeBackend(1, "avx512vnni"), NativeBackend(threads, isa)
    expected = linear(plain, x, plain.matrix([part]), 48)
    assert np.array_equal(linear(tiled, x, tiled.matrix([part]), 48), expected)


@needs_avx512
def test_the_emulation_passes_the_try_that_real_tiles_must_pass() -> None:
    assert _native.emulated_tiles_agree()


@needs_avx512
def test_emulated_tiles_are_never_chosen_unasked() -> None:
    assert NativeBackend(1).isa == available_isas()[0] != "amx_emulated"


@pytest.mark.parametrize(
    ("answers", "usable", "note"),
    [
        ((False, False, 0, False), False, ""),
        ((True, False, 0, True), False, "system does not enable it"),
        ((True, True, errno.EPERM, True), False, "kernel refuses it"),
        ((True, True, 0, False), False, "was wrong"),
        ((True, True, 0, True), True, ""),
    ],
)
def test_why_amx_is_not_used_is_told_where_the_processor_has_it(
    answers: tuple[bool, bool, int, bool], usable: bool, note: str
) -> None:
    got_usable, got_note = _native.judge_amx(*answers)
    assert got_usable is usable
    assert (note in got_note) if note else got_note == ""
    assert not got_note or got_note.endswith("avx512vnni is used")


def test_why_avx_vnni_is_not_used_is_told_where_the_processor_has_it() -> None:
    assert _native.judge_avxvnni(False, False) == (False, "")
    assert _native.judge_avxvnni(True, True) == (True, "")
    usable, note = _native.judge_avxvnni(True, False)
    assert not usable
    assert note.endswith("a product computed with it at the start was wrong: avx2 is used")


def test_amx_is_refused_by_name_where_it_can_not_run() -> None:
    if "amx" in available_isas():
        assert unused_instructions() == ""
        return
    with pytest.raises(BackendError, match=r"'amx'.*generic"):
        NativeBackend(1, "amx")
