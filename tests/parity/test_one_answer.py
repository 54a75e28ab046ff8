"""Law 1 for every family: a text's bits do not depend on chunks or on what shares the step (native kernels)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from parity.families import FAMILIES, SmallModel, write_folder
from parity.ours import load_ours, logits, one_by_one, storage

from pellucid.forward_batch import ForwardBatch
from pellucid.models.decoder import Decoder


@pytest.mark.parametrize("small", FAMILIES, ids=lambda small: small.name)
def test_bits_are_those_of_the_text_alone(small: SmallModel, tmp_path: Path) -> None:
    ids = small.token_ids()[:36]
    model = load_ours(write_folder(small, tmp_path), "native", max_model_len=small.num_tokens)
    alone = logits(model, ids)
    for cuts in (one_by_one(ids), [7, 16, 17, 33], [16, 32]):
        np.testing.assert_array_equal(logits(model, ids, cuts), alone)
    np.testing.assert_array_equal(_beside_another(model, ids), alone)


def _beside_another(model: Decoder, ids: list[int]) -> np.ndarray:
    """The text in blocks 5 to 7, beside another in blocks 0 to 2 that is always a few tokens ahead."""
    other, kv = ids[::-1], storage(model)
    rows: list[np.ndarray] = []
    done = ahead = 0
    for count in (1, 4, 9, 2, len(ids) - 16):
        more = min(count + 1, len(other) - ahead)
        positions = np.array([*range(ahead, ahead + more), *range(done, done + count)], dtype=np.int32)
        slots = positions.astype(np.int64)
        slots[more:] += 5 * 16
        step = ForwardBatch(
            np.array(other[ahead : ahead + more] + ids[done : done + count], dtype=np.int32),
            positions,
            slots,
            np.array([0, more, more + count], dtype=np.int32),
            np.array([ahead + more, done + count], dtype=np.int32),
            np.array([[0, 1, 2], [5, 6, 7]], dtype=np.int32),
        )
        rows.append(model.compute_logits(model.forward(step, kv).hidden[more:]).copy())
        ahead, done = ahead + more, done + count
    return np.concatenate(rows)
