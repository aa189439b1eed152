"""What `check` says of masks of objects."""

import json
from pathlib import Path

from instance_scenes import coco_outlines, voc_objects
from PIL import Image

from vitrine.data.auditing.scan import scan, skip_unreadable
from vitrine.data.sources.opening import open_splits


def test_outlines_without_a_pixel_and_classes_that_never_occur_are_reported(tmp_path: Path) -> None:
    root = coco_outlines(tmp_path)
    file = root / "annotations" / "instances_train2017.json"
    values = json.loads(file.read_text())
    values["annotations"][0]["segmentation"] = [[900, 900, 910, 900, 910, 910]]
    values["categories"].append({"id": 9, "name": "red"})
    file.write_text(json.dumps(values))
    other = root / "annotations" / "instances_val2017.json"
    other.write_text(json.dumps(json.loads(other.read_text()) | {"categories": values["categories"]}))
    issues = scan(open_splits(f"instances:{root}"), is_cached=False).issues
    said = {(one.problem, one.path) for one in issues}
    assert ("empty outline", "000.png") in said
    assert ("empty class", "red") in said
    assert not {one.problem for one in issues} & {"box outside", "empty box", "unreadable mask"}


def test_masks_that_do_not_fit_their_picture_are_skipped(tmp_path: Path) -> None:
    root = voc_objects(tmp_path)
    for folder in ("SegmentationObject", "SegmentationClass"):
        Image.open(root / folder / "001.png").resize((32, 24)).save(root / folder / "001.png")
    (root / "SegmentationObject" / "002.png").write_bytes(b"nothing")
    splits = open_splits(f"instances:{root}")
    report = scan(splits, is_cached=False)
    said = {(one.problem, Path(one.path).name) for one in report.issues}
    assert {("box size", "001.jpg"), ("unreadable mask", "002.jpg")} <= said
    kept = skip_unreadable(splits, report)
    assert [len(source) for source in kept.values()] == [4, 2]
