"""What `check` says of masks."""

import re
from pathlib import Path

import numpy as np
from masks import mask_folders
from pictures import save

from vitrine.data.auditing.scan import scan, skip_unreadable
from vitrine.data.sources.opening import open_splits


def test_masks_that_cannot_be_used_are_named_and_skipped(tmp_path: Path) -> None:
    root = mask_folders(tmp_path, train=6, val=2)
    masks = root / "masks" / "train"
    save(masks / "000.png", np.zeros((48, 60), dtype=np.uint8))
    save(masks / "001.png", np.full((48, 64), 77, dtype=np.uint8))
    (masks / "002.png").write_bytes(b"nothing")
    save(masks / "003.png", np.full((48, 64), 255, dtype=np.uint8))
    splits = open_splits(root)
    report = scan(splits, is_cached=False)
    problems = {(issue.path, issue.problem) for issue in report.issues}
    for number, problem in (
        (0, "mask size"),
        (1, "unreadable mask"),
        (2, "unreadable mask"),
        (3, "empty mask"),
    ):
        assert (f"images/train/{number:03d}.png", problem) in problems
    details = {issue.path: issue.detail for issue in report.issues}
    assert re.search("48 x 64.*48 x 60", details["images/train/000.png"])
    assert "77, " in details["images/train/001.png"]
    assert report.bad["train"] == (0, 1, 2)
    assert len(skip_unreadable(splits, report)["train"]) == 3


def test_classes_are_counted_by_pictures_and_unseen_ones_are_reported(tmp_path: Path) -> None:
    root = mask_folders(tmp_path, train=4, val=1)
    (root / "classes.txt").write_text("ground\ngreen\nblue\nnever\n")
    report = scan(open_splits(root), is_cached=False)
    assert report.counts["train"] == (4, 2, 2, 0)
    problems = {(issue.path, issue.problem) for issue in report.issues}
    assert ("never", "empty class") in problems
    assert ("blue", "missing class") in problems  # the only validation picture has the other one
    assert ("ground", "empty class") not in problems
