"""What is computed from a request's times."""

from __future__ import annotations

import pytest

from pellucid.outputs import RequestMetrics


def test_e4_times_of_a_request() -> None:
    metrics = RequestMetrics(arrival_time=10.0)
    assert (metrics.ttft, metrics.tpot, metrics.itl) == (None, None, [])
    metrics.first_token_time = metrics.last_token_time = 10.5
    metrics.token_times.append(10.5)
    assert (metrics.ttft, metrics.tpot, metrics.itl) == (0.5, None, [])
    metrics.token_times += [10.75, 11.5]
    assert metrics.ttft == 0.5
    assert metrics.tpot == pytest.approx(0.5)
    assert metrics.itl == pytest.approx([0.25, 0.75])
