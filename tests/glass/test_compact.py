"""What a report leaves out, and that it says so."""

from __future__ import annotations

from sample_trace import sample_trace

from pellucid.glass.report import compact


def test_a_small_trace_is_kept_whole() -> None:
    compaction = compact.Compaction()
    events = sample_trace()
    assert [e["type"] for e in compaction.events(events)] == [e["type"] for e in events]
    assert compaction.cut is None


def test_attention_has_an_end_and_the_cut_is_told() -> None:
    compaction = compact.Compaction()
    compaction._num_weights = compact.ATTENTION_WEIGHTS + 1
    layers = [e for e in compaction.events(sample_trace()) if e["type"] == "layer"]
    assert all(e["attn"] is None for e in layers)
    assert compaction.cut is not None
    assert compaction.cut["dropped"] == {"attention": len({(e["req"], e["i"]) for e in layers})}


def test_eight_bit_weights_are_near() -> None:
    (before,) = [
        e for e in sample_trace() if e["type"] == "layer" and e["i"] == 9 and e["layer"] == 2 and e["req"] == "first"
    ]
    (after,) = compact.Compaction().events([before])
    for one, other in zip(before["attn"], after["attn"], strict=True):
        assert all(abs(a - b) <= 0.5 / 255 + 1e-4 for a, b in zip(one["w"], other["w"], strict=True))
