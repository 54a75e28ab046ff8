"""Steps of few rows run operations that were noted before: their bits are those of operations called one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from models.small_models import write_llama
from parity.ours import batch, load_ours, logits, one_by_one, storage

from pellucid.models import decoder
from pellucid.models.decoder import MAX_NOTED_ROWS, Decoder

IDS = [(37 * i + 5) % 96 for i in range(60)]
CUTS = {
    "one by one": one_by_one(IDS),
    "growing": [1, 3, 6, 22, 23, 24, 59],
    "at the limit": [MAX_NOTED_ROWS, 2 * MAX_NOTED_ROWS + 1, 2 * MAX_NOTED_ROWS + 2],
}


@pytest.fixture(params=["native", "reference"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Decoder:
    return load_ours(write_llama(tmp_path / "small.gguf"), request.param)


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS.keys())
def test_the_bits_are_those_of_called_operations(
    model: Decoder, cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = [logits(model, IDS, cuts) for _ in range(2)]  # each in a cache of its own
    assert model._noted, "nothing was noted"
    monkeypatch.setattr(decoder, "MAX_NOTED_ROWS", 0)
    called = logits(model, IDS, cuts)
    for one in noted:
        np.testing.assert_array_equal(one, called)


def test_two_caches_in_turn(model: Decoder) -> None:
    """What was noted belongs to one cache; steps in another are noted anew."""
    caches = [storage(model), storage(model)]
    texts = [IDS[:20], IDS[20:40]]
    expected = [logits(model, text) for text in texts]
    for position in range(20):
        for kv, text, rows in zip(caches, texts, expected, strict=True):
            output = model.forward(batch(text[position : position + 1], position), kv)
            got = model.compute_logits(output.hidden)[0]
            np.testing.assert_allclose(got, rows[position], rtol=0, atol=1e-4)
