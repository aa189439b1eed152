"""What the training commands reckon when a run is over."""

import pytest

from vitrine.evaluation.bootstrap import wilson_interval


@pytest.mark.parametrize(
    ("share", "count", "interval"),
    [(0.5, 100, (0.4038, 0.5962)), (1.0, 10, (0.7225, 1.0)), (0.0, 10, (0.0, 0.2775))],
)
def test_the_interval_is_wilsons(share: float, count: int, interval: tuple[float, float]) -> None:
    assert wilson_interval(share, count) == pytest.approx(interval, abs=1e-4)  # from published tables
