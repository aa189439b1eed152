"""Data sets with masks: which folders are recognised, what their values mean, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from masks import mask_folders, scene, voc_folder
from pictures import save

from vitrine.data.sources.opening import open_splits, task_of
from vitrine.data.sources.source import ConcatSource, Subset
from vitrine.errors import DataError, ImageError


def test_pictures_beside_masks_have_a_class_per_pixel_and_the_names_of_the_list(tmp_path: Path) -> None:
    splits = open_splits(mask_folders(tmp_path))
    assert {name: len(source) for name, source in splits.items()} == {"train": 12, "val": 4}
    assert splits["train"].classes == ("ground", "green", "blue")
    assert splits["train"].task == "masks"
    np.testing.assert_array_equal(splits["val"].annotation(1).classes, scene(101)[1])


def test_a_set_without_splits_holds_out_pictures_with_their_masks(tmp_path: Path) -> None:
    for number in range(10):
        pixels, classes = scene(number)
        save(tmp_path / "images" / f"{number}.jpg", pixels)
        save(tmp_path / "masks" / f"{number}_mask.png", classes)
    splits = open_splits(tmp_path, val_fraction=0.2)
    assert (len(splits["train"]), len(splits["val"])) == (8, 2)
    assert isinstance(splits["val"], Subset)
    for index in range(2):
        number = int(Path(splits["val"].name(index)).stem)
        np.testing.assert_array_equal(splits["val"].annotation(index).classes, scene(number)[1])
    assert splits["train"].classes == ("class 0", "class 1", "class 2")


def test_voc_is_read_by_its_lists_with_its_own_classes(tmp_path: Path) -> None:
    splits = open_splits(voc_folder(tmp_path / "VOCdevkit" / "VOC2012"))
    assert {name: len(source) for name, source in splits.items()} == {"train": 3, "val": 2}
    assert splits["train"].classes[:2] == ("background", "aeroplane")
    assert len(splits["train"].classes) == 21
    np.testing.assert_array_equal(splits["train"].annotation(2).classes, scene(2)[1])
    assert open_splits(tmp_path)["val"].name(0) == "JPEGImages/2007_000100.jpg"


def test_ade20k_counts_classes_from_one_and_ignores_zero(tmp_path: Path) -> None:
    rows = [
        "Idx\tRatio\tTrain\tVal\tStuff\tName",
        "1\t0.1\t1\t1\t1\twall",
        "2\t0.1\t1\t1\t1\tbuilding, edifice",
    ]
    (tmp_path / "objectInfo150.txt").write_text("\n".join(rows))
    for split in ("training", "validation"):
        save(tmp_path / "images" / split / "a.jpg", scene(0)[0])
        save(tmp_path / "annotations" / split / "a.png", np.array([[0, 1], [2, 2]], dtype=np.uint8))
    splits = open_splits(tmp_path)
    assert splits["train"].classes == ("wall", "building")
    np.testing.assert_array_equal(splits["val"].annotation(0).classes, [[255, 0], [1, 1]])


def test_trimaps_of_pets_are_masks_only_where_they_are_asked_for(tmp_path: Path) -> None:
    for name in ("Abyssinian_1", "pug_2"):
        save(tmp_path / "images" / f"{name}.jpg", scene(0)[0])
        save(tmp_path / "annotations" / "trimaps" / f"{name}.png", np.array([[1, 2, 3]], dtype=np.uint8))
    (tmp_path / "annotations" / "trainval.txt").write_text("Abyssinian_1 1 1 1\n")
    (tmp_path / "annotations" / "test.txt").write_text("pug_2 2 2 2\n")
    assert task_of(tmp_path) == "classes"
    splits = open_splits(f"masks:{tmp_path}", val_fraction=0)
    assert splits["test"].classes == ("animal", "background")
    np.testing.assert_array_equal(splits["test"].annotation(0).classes, [[0, 1, 255]])


def test_colours_mean_what_the_class_list_says(tmp_path: Path) -> None:
    colours = np.array([[[128, 0, 0], [0, 0, 0]], [[0, 128, 0], [1, 2, 3]]], dtype=np.uint8)
    save(tmp_path / "images" / "a.jpg", scene(0)[0])
    save(tmp_path / "masks" / "a.png", colours)
    listed = ["# label:color_rgb:parts:actions", "background:0,0,0::", "plane:128,0,0::", "bus:0,128,0::"]
    (tmp_path / "labelmap.txt").write_text("\n".join([*listed, "void:1,2,3::"]))
    source = open_splits(tmp_path, val_fraction=0)["train"]
    assert source.classes == ("background", "plane", "bus")
    np.testing.assert_array_equal(source.annotation(0).classes, [[1, 0], [2, 255]])


def test_black_and_white_masks_are_background_and_foreground(tmp_path: Path) -> None:
    save(tmp_path / "images" / "a.jpg", scene(0)[0])
    save(tmp_path / "masks" / "a.png", np.array([[0, 255]], dtype=np.uint8))
    source = open_splits(tmp_path, val_fraction=0)["train"]
    assert source.classes == ("background", "foreground")
    np.testing.assert_array_equal(source.annotation(0).classes, [[0, 1]])


def test_a_value_without_a_class_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    root = mask_folders(tmp_path, train=1, val=1)
    save(root / "masks" / "train" / "000.png", np.full((48, 64), 9, dtype=np.uint8))
    with pytest.raises(ImageError, match=r"^masks/train/000\.png .*value 9, "):
        open_splits(root)["train"].annotation(0)


def test_colours_without_a_list_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "images" / "a.jpg", scene(0)[0])
    save(tmp_path / "masks" / "a.png", scene(0)[0])
    with pytest.raises(DataError, match=r"^masks/a\.png .*in colours; .*classes\.txt"):
        open_splits(tmp_path)


def test_a_folder_of_images_and_other_files_is_not_taken_for_masks(tmp_path: Path) -> None:
    save(tmp_path / "images" / "a.jpg", scene(0)[0])
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "a.xml").write_text("<a/>")
    assert task_of(tmp_path) == "classes"


def test_changed_masks_change_the_fingerprint(tmp_path: Path) -> None:
    root = mask_folders(tmp_path, train=2, val=1)
    before = open_splits(root)["train"].fingerprint()
    save(root / "masks" / "train" / "001.png", np.zeros((48, 64), dtype=np.uint8))
    assert open_splits(root)["train"].fingerprint() != before


def test_joined_and_chosen_sources_keep_masks_with_their_pictures(tmp_path: Path) -> None:
    splits = open_splits(mask_folders(tmp_path, train=3, val=2))
    both = Subset(ConcatSource([splits["train"], splits["val"]]), [4, 0])
    assert both.task == "masks"
    np.testing.assert_array_equal(both.annotation(0).classes, scene(101)[1])
    np.testing.assert_array_equal(both.annotation(1).classes, scene(0)[1])
