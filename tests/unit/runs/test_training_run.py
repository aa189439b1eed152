"""What the training commands reckon when a run is over."""

from pathlib import Path

import pytest
from pictures import class_folders

from vitrine.data.sources.opening import open_splits
from vitrine.evaluation.bootstrap import wilson_interval
from vitrine.runs.validation import unjudged


@pytest.mark.parametrize(
    ("share", "count", "interval"),
    [(0.5, 100, (0.4038, 0.5962)), (1.0, 10, (0.7225, 1.0)), (0.0, 10, (0.0, 0.2775))],
)
def test_the_interval_is_wilsons(share: float, count: int, interval: tuple[float, float]) -> None:
    assert wilson_interval(share, count) == pytest.approx(interval, abs=1e-4)  # from published tables


def test_a_class_of_which_nothing_is_held_out_is_named(tmp_path: Path) -> None:
    photos = class_folders(tmp_path / "photos", each=20)
    assert unjudged(open_splits(photos, val_fraction=0.1)) == ()
    (photos / "lonely").mkdir()
    next((photos / "cat").iterdir()).rename(photos / "lonely" / "0.png")
    assert unjudged(open_splits(photos, val_fraction=0.1)) == ("Not judged, as no image is held out: lonely",)
