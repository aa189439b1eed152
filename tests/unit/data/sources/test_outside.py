"""Lists from elsewhere (manifests, shards.json, VTAB's lists, splits) cannot name files outside their folder."""

import json
from pathlib import Path

import pytest
from box_scenes import coco_boxes
from pictures import class_folders, photo, save

from vitrine.data.sources.opening import open_source, open_splits
from vitrine.data.sources.shard_writing import write_shards
from vitrine.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a picture in it, and one beside it."""
    (tmp_path / "data" / "a").mkdir(parents=True)
    save(tmp_path / "data" / "in.png", photo(0))
    save(tmp_path / "secret.png", photo(1))
    return tmp_path / "data"


def outside_names(folder: Path) -> list[str]:
    return ["../secret.png", str(folder.parent / "secret.png"), "a/../../secret.png"]


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("kind", ["list.csv", "list.jsonl", "metadata.csv", "train800.txt"])
def test_a_name_that_leaves_the_folder_is_refused_unless_asked_for(
    folder: Path, kind: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VITRINE_ALLOW_OUTSIDE", raising=False)
    names = ["in.png", outside_names(folder)[number]]
    if kind.endswith("jsonl"):
        text = "".join(json.dumps({"path": name, "label": str(row)}) + "\n" for row, name in enumerate(names))
    elif kind.endswith("csv"):
        text = "file_name,label\n" + "".join(f"{name},{row}\n" for row, name in enumerate(names))
    else:
        text = "".join(f"{name} {row}\n" for row, name in enumerate(names))
    (folder / kind).write_text(text)
    address = folder if kind in ("metadata.csv", "train800.txt") else folder / kind
    with pytest.raises(DataError, match="outside its folder"):
        open_source(address)
    monkeypatch.setenv("VITRINE_ALLOW_OUTSIDE", "1")
    assert len(open_source(address)) == 2


def test_absolute_names_inside_the_folder_are_read(folder: Path) -> None:
    (folder / "list.csv").write_text(f"path,label\n{folder / 'in.png'},a\n")
    assert open_source(folder / "list.csv").read(0).data


def test_annotations_of_boxes_cannot_name_pictures_outside_the_folder(tmp_path: Path) -> None:
    file = coco_boxes(tmp_path) / "annotations" / "instances_val2017.json"
    save(tmp_path / "secret.png", photo(1))
    values = json.loads(file.read_text())
    values["images"][0]["file_name"] = str(tmp_path / "secret.png")
    file.write_text(json.dumps(values))
    with pytest.raises(DataError, match="outside its folder"):
        open_splits(file)


@pytest.mark.parametrize("field", ["name", "index"])
def test_shards_outside_the_folder_of_their_listing_are_refused(tmp_path: Path, field: str) -> None:
    class_folders(tmp_path / "photos", each=3)
    write_shards(open_splits(tmp_path / "photos", val_fraction=0), tmp_path / "shards")
    file = tmp_path / "shards" / "shards.json"
    listing = json.loads(file.read_text())
    listing["splits"]["train"][0][field] = "../elsewhere.tar"
    file.write_text(json.dumps(listing))
    with pytest.raises(DataError, match="outside its folder"):
        open_source(tmp_path / "shards")


def test_a_split_file_cannot_add_files_to_a_data_set(tmp_path: Path) -> None:
    class_folders(tmp_path / "photos", each=3)
    split = tmp_path / "split.csv"
    open_splits(tmp_path / "photos", val_fraction=0.5, split_file=split)
    split.write_text(split.read_text() + "../../secret.png,cat,train\n")
    with pytest.raises(DataError, match="secret"):
        open_splits(tmp_path / "photos", val_fraction=0.5, split_file=split)


def test_shards_on_the_web_are_not_read_where_the_user_forbids_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="HF_HUB_OFFLINE"):
        open_source("http://127.0.0.1:9/shards")
