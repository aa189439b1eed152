"""What `check` says of boxes."""

import re
from pathlib import Path

from box_scenes import scene, voc_boxes, write_xml
from pictures import save

from vitrine.data.auditing.scan import scan, skip_unreadable
from vitrine.data.sources.opening import open_splits


def test_boxes_that_are_wrong_are_named_with_their_place(tmp_path: Path) -> None:
    root = voc_boxes(tmp_path, train=6, val=1)
    files = root / "Annotations"
    write_xml(files / "000.xml", scene(0)[1], size=(30, 64))
    write_xml(files / "001.xml", [(0, 10, 10, 10, 20), (0, 70, 5, 90, 20), (1, 5, 5, 25, 25)])
    write_xml(files / "002.xml", [(0, 40, 30, 80, 60)])
    write_xml(files / "003.xml", [(1, 5, 5, 25, 25), (1, 5, 5, 25, 25)])
    save(root / "JPEGImages" / "100.png", scene(4)[0])  # a copy of a training picture
    splits = open_splits(root)
    report = scan(splits, is_cached=False)
    details = {(issue.path, issue.problem): issue.detail for issue in report.issues}
    assert re.search("48 x 64 .*30 x", details["JPEGImages/000.png", "box size"])
    words = details["JPEGImages/001.png", "empty box"]
    assert words.startswith("2 boxes: ") and "10, 10, 10, 20" in words and "no area" in words
    assert "reaches over the border" in details["JPEGImages/002.png", "box outside"]
    assert "1 box twice" in details["JPEGImages/003.png", "repeated box"]
    assert any(problem == "leak" for _, problem in details)
    assert report.bad["train"] == (0,)
    assert len(skip_unreadable(splits, report)["train"]) == 5


def test_pictures_are_counted_per_class_and_classes_without_a_box_are_reported(tmp_path: Path) -> None:
    root = voc_boxes(tmp_path, train=4, val=1)
    (root / "classes.txt").write_text("green\nblue\nred\n")
    splits = open_splits(root)
    report = scan(splits, is_cached=False)
    have = [{one[0] for one in scene(seed)[1]} for seed in range(4)]
    assert report.counts["train"] == (sum(0 in one for one in have), sum(1 in one for one in have), 0)
    assert ("red", "empty class") in {(issue.path, issue.problem) for issue in report.issues}
