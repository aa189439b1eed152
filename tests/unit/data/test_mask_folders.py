"""Folders of masks that are compared: what their values mean, with and without class lists."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrine
from vitrine.errors import DataError


def saved(folder: Path, values: list[list[int]], *, names: str | None = None) -> Path:
    """Save one mask as a.png, and a class list beside it."""
    folder.mkdir(parents=True)
    Image.fromarray(np.array(values, dtype=np.uint8)).save(folder / "a.png")
    if names is not None:
        (folder / "classes.txt").write_text(names)
    return folder


def score_of(predicted: Path, truth: Path) -> tuple[float, dict[str, float]]:
    result = vitrine.evaluate(predicted, truth, out=predicted.parent / "out")
    return result.mean_iou, result.iou


def test_lists_on_both_sides_are_matched_by_name_and_unknown_classes_are_wrong(tmp_path: Path) -> None:
    truth = saved(tmp_path / "truth", [[0, 0, 1, 1], [255, 2, 2, 2]], names="ground\ncat\ndog\n")
    found = saved(tmp_path / "found", [[2, 2, 1, 0], [0, 0, 0, 3]], names="dog\ncat\nground\nbird\n")
    mean, iou = score_of(found, truth)
    assert iou == {"ground": 1, "cat": 0.5, "dog": pytest.approx(2 / 4)}
    assert mean == pytest.approx(np.mean([1, 0.5, 0.5]))


def test_black_and_white_truths_are_compared_with_what_predict_writes(tmp_path: Path) -> None:
    truth = saved(tmp_path / "truth" / "masks", [[0, 255], [255, 255]])
    saved(tmp_path / "found" / "masks", [[0, 0], [1, 1]])
    (tmp_path / "found" / "classes.txt").write_text("background\nforeground\n")
    assert score_of(tmp_path / "found", truth)[1] == {"background": 0.5, "foreground": pytest.approx(2 / 3)}


def test_without_lists_a_class_that_is_only_predicted_counts_as_never_found(tmp_path: Path) -> None:
    truth, found = saved(tmp_path / "truth", [[0, 0], [0, 1]]), saved(tmp_path / "found", [[0, 0], [2, 1]])
    mean, iou = score_of(found, truth)
    assert iou == {"class 0": pytest.approx(2 / 3), "class 1": 1, "class 2": 0}
    assert mean == pytest.approx(5 / 9)


def test_lists_without_a_common_name_are_refused(tmp_path: Path) -> None:
    truth = saved(tmp_path / "truth", [[0, 1]], names="ground\ncat\n")
    found = saved(tmp_path / "found", [[0, 1]], names="road\nsky\n")
    with pytest.raises(DataError, match="no name in common"):
        score_of(found, truth)
