"""Folders of `datasets.save_to_disk`, and compressed shards."""

import json
import pickle
import tarfile
from pathlib import Path

import pyarrow
import pyarrow.ipc
import pytest
from unit.data.pictures import encoded, smooth

from vitrine.data.sources.opening import open_kind, open_splits
from vitrine.errors import DataError

FEATURES = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}


def save_to_disk(
    folder: Path, *, count: int, first: int = 0, name: str = "data-00000-of-00001.arrow"
) -> Path:
    """Write what `datasets.Dataset.save_to_disk` writes, in two record batches."""
    folder.mkdir(parents=True)
    rows = [{"bytes": encoded(smooth(8, 8, seed=first + n)), "path": None} for n in range(count)]
    table = pyarrow.table({"image": rows, "label": [n % 2 for n in range(count)]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})
    file = str(folder / "data-00000-of-00001.arrow")
    with pyarrow.OSFile(file, "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=(count + 1) // 2)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}], "_split": "train"}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    return folder


def test_a_saved_data_set_is_read(tmp_path: Path) -> None:
    [source] = open_kind(save_to_disk(tmp_path / "pets", count=5)).values()
    assert source.classes == ("cat", "dog")
    assert [source.label(index) for index in range(len(source))] == [0, 1, 0, 1, 0]
    for index in (0, 4, 2):
        assert source.read(index).data == encoded(smooth(8, 8, seed=index))
    assert pickle.loads(pickle.dumps(source)).read(3).data == encoded(smooth(8, 8, seed=3))


def test_a_saved_dictionary_of_splits_is_read(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "pets" / "train", count=6)
    save_to_disk(tmp_path / "pets" / "test", count=2, first=50)
    (tmp_path / "pets" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    splits = open_splits(tmp_path / "pets", val_fraction=0)
    assert {name: len(source) for name, source in splits.items()} == {"train": 6, "test": 2}
    assert splits["test"].read(1).data == encoded(smooth(8, 8, seed=51))


def test_a_data_file_outside_the_folder_is_refused(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "pets", count=2, name="../elsewhere.arrow")
    with pytest.raises(DataError, match=r"elsewhere\.arrow"):
        open_kind(folder)


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    folder = save_to_disk(tmp_path / "pets", count=2)
    (folder / "data-00000-of-00001.arrow").write_bytes(b"not arrow at all")
    with pytest.raises(DataError, match="Arrow"):
        open_kind(folder)


@pytest.mark.parametrize("name", ["train-000.tar.gz", "train-000.tgz"])
def test_compressed_shards_are_named_for_what_they_are(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / name, "w:gz"):
        pass
    for place in (tmp_path, tmp_path / name):
        with pytest.raises(DataError, match="compressed tar file"):
            open_kind(place)
