"""Data sets with boxes: three formats of the same pictures, their layouts, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from box_scenes import CLASSES, coco_boxes, scene, voc_boxes, write_xml, yolo_boxes
from pictures import save

from vitrine.data.sources.opening import open_splits, task_of
from vitrine.errors import DataError
from vitrine.runtime.progress import quiet


@pytest.mark.parametrize("write", [voc_boxes, coco_boxes, yolo_boxes])
def test_three_formats_of_the_same_pictures_have_the_same_objects(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    root = write(tmp_path)
    assert task_of(str(root)) == "boxes"
    splits = open_splits(root)
    assert {name: len(source) for name, source in splits.items()} == {"train": 6, "val": 2}
    source = splits["val"]
    assert sorted(source.classes) == sorted(CLASSES)
    for index in range(2):
        seed = int(Path(source.name(index)).stem)
        annotation, (pixels, rectangles) = source.annotation(index), scene(seed)
        assert annotation.size == pixels.shape[:2]
        np.testing.assert_allclose(annotation.boxes, [one[1:] for one in rectangles], atol=1e-3)
        assert [source.classes[label] for label in annotation.labels] == [
            CLASSES[one[0]] for one in rectangles
        ]
        np.testing.assert_array_equal(source.read(index).label, ())
    assert splits["train"].fingerprint() != source.fingerprint()


def test_voc_has_its_own_classes_and_difficult_objects_are_ignored(tmp_path: Path) -> None:
    text = (
        "<annotation><size><width>64</width><height>48</height></size><object><name>dog</name><difficult>1</difficult>"
        "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9.5</xmax><ymax>8</ymax></bndbox><part><name>head</name><bndbox>"
        "<xmin>2</xmin><ymin>2</ymin><xmax>3</xmax><ymax>3</ymax></bndbox></part></object></annotation>"
    )
    save(tmp_path / "VOC2012" / "JPEGImages" / "a.jpg", scene(0)[0])
    folder = tmp_path / "VOC2012" / "Annotations"
    folder.mkdir()
    (folder / "a.xml").write_text(text)
    source = open_splits(tmp_path, val_fraction=0)["train"]
    assert (len(source.classes), source.classes[11]) == (20, "dog")
    annotation = source.annotation(0)
    np.testing.assert_array_equal(annotation.boxes, [[0, 0, 9.5, 8]])
    assert (annotation.labels.tolist(), annotation.is_ignored.tolist()) == ([11], [True])


def test_files_of_labelimg_lie_beside_their_pictures(tmp_path: Path) -> None:
    for seed in range(3):
        save(tmp_path / f"{seed}.png", scene(seed)[0])
        if seed < 2:
            write_xml(tmp_path / f"{seed}.xml", scene(seed)[1])
    with quiet():
        source = open_splits(tmp_path, val_fraction=0)["train"]
    assert [source.name(index) for index in range(len(source))] == ["0.png", "1.png"]


def test_yolo_counts_a_picture_without_a_file_as_empty_and_reads_polygons(tmp_path: Path) -> None:
    for name in "abc":
        save(tmp_path / "images" / f"{name}.png", scene(0)[0])
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("1 0.25 0.5 0.75 0.5 0.5 1.0\n")
    with quiet():
        source = open_splits(f"boxes:{tmp_path}", val_fraction=0)["train"]
    assert source.classes == ("class 0", "class 1")
    np.testing.assert_allclose(source.annotation(0).boxes, [[16, 24, 48, 48]])
    assert source.annotation(1).boxes.shape == (0, 4)
    (tmp_path / "data.yaml").write_text("names: [only]\n")
    with pytest.raises(DataError, match=r"data\.yaml has 1 class.*class 1,"):
        open_splits(tmp_path)


def test_a_file_of_coco_alone_finds_its_pictures_and_ignores_crowds(tmp_path: Path) -> None:
    root = coco_boxes(tmp_path)
    file = root / "annotations" / "instances_val2017.json"
    values = json.loads(file.read_text())
    values["annotations"][0]["iscrowd"] = 1
    values["images"].append({"id": 900, "file_name": "gone.png"})
    file.write_text(json.dumps(values))
    with quiet():
        source = open_splits(file, val_fraction=0)["train"]
    assert len(source) == 2
    assert source.annotation(0).is_ignored.tolist()[0]
    assert source.classes == ("green", "blue")  # by category id
    (root / "val2017").rename(root / "elsewhere")
    with pytest.raises(DataError, match="are not beside it"):
        open_splits(file)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("labels/a.txt", "0 0.5 0.5 0.2\n", "line 1 has 4 numbers"),
        ("labels/a.txt", "0.5 0.5 0.5 0.2 0.2\n", "the number of a class"),
        ("labels/a.txt", "cat 0.5 0.5 0.2 0.2\n", "'cat' .*number"),
        ("annotations/a.xml", "<annotation", "a.xml is not XML"),
        ("annotations/a.xml", "<annotations/>", "its root is annotations"),
        ("annotations/a.xml", "<annotation><object/></annotation>", "a name or a bndbox"),
        ("annotations.json", '{"images": [], "categories": [], "annotations": []}', "has no categories"),
    ],
)
def test_files_that_cannot_be_read_are_named(file: str, text: str, message: str, tmp_path: Path) -> None:
    save(tmp_path / "images" / "a.png", scene(0)[0])
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=message):
        open_splits(tmp_path)


def test_an_annotation_of_an_unknown_picture_is_refused(tmp_path: Path) -> None:
    file = coco_boxes(tmp_path) / "annotations" / "instances_train2017.json"
    values = json.loads(file.read_text())
    values["annotations"][2]["image_id"] = 12_345
    file.write_text(json.dumps(values))
    with pytest.raises(DataError, match="annotation 2 names image 12345"):
        open_splits(tmp_path)


def test_a_folder_without_boxes_says_what_would_do(tmp_path: Path) -> None:
    save(tmp_path / "images" / "a.png", scene(0)[0])
    with pytest.raises(DataError, match=r"no boxes; .*COCO's JSON"):
        open_splits(f"boxes:{tmp_path}")
