"""Data sets with a mask per object: three formats of the same pictures, what is seen, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from box_scenes import CLASSES, HEIGHT, WIDTH, coco_boxes
from instance_scenes import VOC_NAMES, coco_outlines, mask_of, scene, shares, voc_objects, yolo_outlines
from PIL import Image

from vitrine.data.decoding.coco_masks import runs_of
from vitrine.data.decoding.mask_planes import mask_boxes, unpacked
from vitrine.data.sources.opening import open_splits, read_as, task_of
from vitrine.errors import DataError, ImageError


@pytest.mark.parametrize("write", [voc_objects, coco_outlines, yolo_outlines])
def test_three_formats_of_the_same_pictures_have_the_same_masks(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    splits = open_splits(f"instances:{write(tmp_path)}")
    assert {name: len(source) for name, source in splits.items()} == {"train": 6, "val": 2}
    source = splits["train"]
    names = VOC_NAMES if write is voc_objects else CLASSES
    for index in range(6):
        annotation, (_, rectangles) = source.annotation(index), scene(int(Path(source.name(index)).stem))
        assert annotation.planes is not None
        np.testing.assert_array_equal(
            unpacked(annotation.planes, len(rectangles)), [mask_of(one) for one in rectangles]
        )
        assert [source.classes[label] for label in annotation.labels] == [names[one[0]] for one in rectangles]
        np.testing.assert_allclose(
            annotation.boxes, mask_boxes(annotation.planes, len(rectangles)), atol=1e-4
        )
        np.testing.assert_array_equal(annotation.areas, [mask_of(one).sum() for one in rectangles])


def test_outlines_are_seen_in_the_data_and_boxes_and_class_masks_are_still_read(tmp_path: Path) -> None:
    for write, name, others in (
        (coco_outlines, "coco", ("boxes",)),
        (yolo_outlines, "yolo", ("boxes",)),
        (voc_objects, "voc", ("masks",)),
    ):
        root = write(tmp_path / name)
        assert task_of(str(root)) == ("masks" if name == "voc" else "instances")
        for other in (*others, "instances"):
            source = open_splits(f"{other}:{root}")["train"]
            assert (source.task, len(source)) == (other, 6)
        prefixed = read_as(f"instances:{root}", others[0])
        assert open_splits(prefixed)["train"].task == others[0]
        assert read_as(prefixed, others[0]) == prefixed
    boxes = coco_boxes(tmp_path / "boxes")
    assert task_of(str(boxes)) == "boxes"
    with pytest.raises(DataError, match=r"train2017\.json: .* 000\.png"):
        open_splits(f"instances:{boxes}")


def test_the_border_of_voc_counts_nowhere(tmp_path: Path) -> None:
    source = open_splits(f"instances:{voc_objects(tmp_path, border=2)}")["train"]
    annotation, (_, rectangles) = source.annotation(0), scene(0)
    assert annotation.is_void is not None
    _, left, top, right, bottom = rectangles[0]
    assert annotation.is_void[top, right - 1]  # the quarter that the object lacks
    assert annotation.is_void[max(top - 2, 0) : bottom + 2, left - 1].all()
    assert not annotation.is_void[mask_of(rectangles[0])].any()


def test_crowds_are_ignored_and_their_runs_are_read(tmp_path: Path) -> None:
    root = coco_outlines(tmp_path)
    file = root / "annotations" / "instances_train2017.json"
    values, mask = json.loads(file.read_text()), mask_of((0, 3, 4, 30, 40))
    values["annotations"][0] |= {"iscrowd": 1, "segmentation": runs_of(mask)}
    file.write_text(json.dumps(values))
    annotation = open_splits(f"instances:{root}")["train"].annotation(0)
    assert annotation.planes is not None
    assert annotation.is_ignored.tolist()[0]
    np.testing.assert_array_equal(unpacked(annotation.planes, 1)[0], mask)


def test_objects_without_one_class_and_masks_of_two_sizes_are_refused(tmp_path: Path) -> None:
    root = voc_objects(tmp_path, train=2)
    classes = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
    Image.fromarray(classes).save(root / "SegmentationClass" / "000.png")
    Image.fromarray(classes[:40]).save(root / "SegmentationClass" / "001.png")
    source = open_splits(f"instances:{root}")["train"]
    with pytest.raises(ImageError, match=r"000\.png: object 1 .*values 0"):
        source.annotation(0)
    with pytest.raises(ImageError, match=r"48 x 64.*40 x 64"):
        source.annotation(1)
    yolo = yolo_outlines(tmp_path / "yolo")
    label = yolo / "train" / "labels" / "001.txt"
    label.write_text(f"0 {shares((0, 4, 4, 20, 20))}\n1 0.5 0.5 0.2 0.2\n")
    with pytest.raises(DataError, match=r"001\.png .*no outline"):
        open_splits(f"instances:{yolo}")


def test_a_fingerprint_changes_with_an_outline(tmp_path: Path) -> None:
    root = coco_outlines(tmp_path)
    before = open_splits(f"instances:{root}")["train"].fingerprint()
    file = root / "annotations" / "instances_train2017.json"
    values = json.loads(file.read_text())
    values["annotations"][0]["segmentation"][0][0] += 1
    file.write_text(json.dumps(values))
    assert open_splits(f"instances:{root}")["train"].fingerprint() != before
