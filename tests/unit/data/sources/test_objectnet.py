"""ObjectNet's folder: its mappings, its objects, and the red border that no model may see."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.objectnet import NAMES, OBJECTS, noise, overlap, with_border, write_mappings, write_pictures

from vitrine.data.sources import objectnet
from vitrine.data.sources.objectnet import FILES, ObjectNet
from vitrine.data.sources.opening import list_splits, open_source, open_splits
from vitrine.errors import DataError, ImageError, MissingDataError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_mappings(tmp_path)
    write_pictures(tmp_path, OBJECTS[0], noise(2, seed=0))
    write_pictures(tmp_path, OBJECTS[200], noise(1, seed=1))
    return tmp_path


def opened(address: str | Path) -> ObjectNet:
    source = open_source(address, split="test", allow_empty_class=True)
    assert isinstance(source, ObjectNet)
    return source


def test_the_red_border_is_cropped_and_every_pixel_inside_is_kept(root: Path) -> None:
    source = opened(root)
    for index, inner in enumerate(noise(2, seed=0)):
        stored = np.asarray(Image.open(root / "images" / source.name(index)))
        assert (stored[0] == (255, 0, 0)).all()
        assert (source.read(index).data == inner).all()


def test_a_picture_without_room_for_its_border_is_named(root: Path) -> None:
    Image.fromarray(with_border(np.zeros((0, 9, 3), dtype=np.uint8))).save(root / "images/object_000/8.png")
    source = opened(root)
    index = [source.name(row) for row in range(len(source))].index("object_000/8.png")
    with pytest.raises(ImageError, match=r"object_000/8\.png"):
        source.read(index)


@pytest.mark.parametrize("form", ["{root}", "objectnet:{root}", "ObjectNet:{root}"])
def test_the_folder_is_recognised_by_its_mappings_or_named(root: Path, form: str) -> None:
    source = opened(form.format(root=root))
    assert [source.label(row) for row in range(len(source))] == [0, 0, 200]
    assert source.classes == OBJECTS


def test_the_folder_that_the_archive_unpacks_to_is_found(tmp_path: Path) -> None:
    write_mappings(tmp_path / "objectnet-1.0")
    write_pictures(tmp_path / "objectnet-1.0", OBJECTS[3], noise(1, seed=0))
    assert len(opened(tmp_path)) == 1


def test_imagenet_classes_are_numbered_in_standard_order_whatever_the_order_of_the_lines(root: Path) -> None:
    mappings = opened(root).mappings
    assert mappings.imagenet_classes == NAMES
    assert mappings.accepted == overlap()


def test_there_is_only_a_test_split_as_the_licence_forbids_training(root: Path) -> None:
    assert list_splits(root) == ("test",)
    assert "train" not in open_splits(root)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_mapping_file_is_named(root: Path, file: str) -> None:
    (root / "mappings" / file).unlink()
    with pytest.raises(MissingDataError, match=file):
        opened(root)


@pytest.mark.parametrize(
    ("file", "content", "word"),
    [
        ("folder_to_objectnet_label.json", "[1, 2]", "folder_to_objectnet_label"),
        ("objectnet_to_imagenet_1k.json", '{"Object 000": "a unicorn"}', "unicorn"),
        ("pytorch_to_imagenet_2012_id.json", '{"0": 0}', "1,000 classes"),
        ("pytorch_to_imagenet_2012_id.json", json.dumps({str(k): 7 for k in range(1000)}), "another line"),
        ("imagenet_to_label_2012_v2", "tench\ngoldfish\n", "1,000 classes"),
        ("folder_to_objectnet_label.json", '{"object_000": "Object 000"}', "313"),
        ("objectnet_to_imagenet_1k.json", "{", "not a JSON file"),
    ],
)
def test_a_mapping_file_of_another_kind_is_refused(root: Path, file: str, content: str, word: str) -> None:
    (root / "mappings" / file).write_text(content)
    with pytest.raises(DataError, match=word):
        opened(f"objectnet:{root}")


def test_a_folder_that_the_mapping_does_not_name_is_skipped_with_a_notice(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "images" / "holiday").mkdir()
    Image.fromarray(noise(1, seed=0)[0]).save(root / "images" / "holiday" / "1.png")
    notices: list[str] = []
    monkeypatch.setattr(objectnet, "notice", notices.append)
    assert len(opened(root)) == 3
    assert len(notices) == 1
    assert "holiday" in notices[0]


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    write_mappings(tmp_path)
    (tmp_path / "images").mkdir()
    with pytest.raises(DataError, match="no images"):
        opened(tmp_path)
