import json
import tarfile
import tempfile

import numpy as np
import pytest
from unit.data.pictures import class_folders
from unit.data.web import serving

from vitrine.commands.shard import shard
from vitrine.data.decoding.decode import decode
from vitrine.data.sources import shard_writing as sharding
from vitrine.data.sources.generated import GeneratedSource
from vitrine.data.sources.opening import open_source, open_splits
from vitrine.data.sources.shard_writing import verify_shards, write_shards
from vitrine.errors import ConfigError, DataError


@pytest.fixture
def photos(tmp_path):
    class_folders(tmp_path / "set" / "train", {"ант": 6, "bee": 5})
    class_folders(tmp_path / "set" / "test", {"bee": 2})
    return tmp_path / "set"


def same(first, second) -> bool:
    return len(first) == len(second) and all(a == b for a, b in zip(first, second, strict=True))


def test_shards_hold_the_same_examples_as_the_folder(photos, tmp_path):
    result = shard(str(photos), tmp_path / "out", shard_megabytes=1)
    assert result.images == {"train": 11, "test": 2}
    before, after = open_splits(photos, val_fraction=0), open_splits(tmp_path / "out", val_fraction=0)
    assert list(after) == list(before)
    for split in before:
        assert after[split].classes == before[split].classes
        assert same(before[split], after[split])
    assert verify_shards(tmp_path / "out") == []


def test_a_set_larger_than_a_shard_is_cut_at_the_size_asked(photos, tmp_path):
    written = write_shards(open_splits(photos, val_fraction=0), tmp_path / "out", shard_bytes=10_000)
    assert len(written["train"]) > 2
    assert all(item.bytes < 30_000 for item in written["train"])
    assert same(open_source(photos, split="test"), open_source(tmp_path / "out", split="test"))


def test_shards_are_plain_webdataset_tars(photos, tmp_path):
    shard(str(photos), tmp_path / "out")
    with tarfile.open(tmp_path / "out" / "train-00000.tar") as tar:
        names = tar.getnames()
        assert names[:4] == ["000000000.png", "000000000.cls", "000000001.png", "000000001.cls"]
        assert tar.extractfile("000000000.cls").read() == b"0"  # bee comes before ант
    (tmp_path / "out" / "shards.json").unlink()  # as other people's shards: by their headers
    assert open_source(tmp_path / "out", split="test").classes == ("bee", "ант")


def test_raw_pixels_are_stored_without_loss(tmp_path):
    source = GeneratedSource(count=5, size=20)
    write_shards({"all": source}, tmp_path / "out")
    again = open_source(tmp_path / "out", allow_empty_class=True)
    for index in range(5):
        assert np.array_equal(decode(again.read(index).data), source.read(index).data)


def test_classes_whose_names_are_no_utf_8_survive(tmp_path):
    class_folders(tmp_path / "set" / "train", {"caf\udce9": 4, "dog": 4})
    class_folders(tmp_path / "set" / "test", {"dog": 2})
    write_shards(open_splits(tmp_path / "set", val_fraction=0), tmp_path / "out")
    assert open_splits(tmp_path / "out", val_fraction=0)["train"].classes == ("caf\udce9", "dog")
    (tmp_path / "out" / "shards.json").unlink()  # as other people's shards: by their headers
    assert open_source(tmp_path / "out").classes == ("caf\udce9", "dog")


def test_several_labels_survive(tmp_path):
    source = GeneratedSource(count=4, size=16, label="shape,colour")
    write_shards({"train": source}, tmp_path / "out")
    again = open_source(tmp_path / "out", split="train", val_fraction=0, allow_empty_class=True)
    assert np.array_equal(again.labels, source.labels)


def test_an_interrupted_run_goes_on_and_gives_the_same_bytes(photos, tmp_path, monkeypatch):
    splits = open_splits(photos, val_fraction=0)
    whole = write_shards(splits, tmp_path / "whole", shard_bytes=10_000)
    real, calls = sharding._write_tar, []

    def breaking(file, source, **options):
        calls.append(options)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(file, source, **options)

    monkeypatch.setattr(sharding, "_write_tar", breaking)
    with pytest.raises(KeyboardInterrupt):
        write_shards(splits, tmp_path / "out", shard_bytes=10_000)
    assert not (tmp_path / "out" / "shards.json").exists()
    assert not list((tmp_path / "out").glob(".train*"))
    calls.clear()
    calls.extend([None] * 10)
    again = write_shards(splits, tmp_path / "out", shard_bytes=10_000)
    assert again == whole
    written = len(calls) - 10
    assert written == sum(len(shards) for shards in whole.values()) - 2


def test_a_folder_that_is_not_ours_is_refused_without_overwrite(photos, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="out is not empty") as refused:
        shard(str(photos), tmp_path / "out")
    assert refused.value.option == "out" and refused.value.advice[0].option == "overwrite"
    shard(str(photos), tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "x"
    class_folders(photos / "train", {"new": 1})
    with pytest.raises(ConfigError, match="as it is now") as refused:
        shard(str(photos), tmp_path / "out")
    assert refused.value.option == "out"


def test_shards_are_never_written_into_the_data_set(photos):
    with pytest.raises(ConfigError, match="is inside the data set"):
        shard(str(photos), photos / "shards")


def test_shards_are_read_in_place_and_nothing_is_unpacked(photos, tmp_path, monkeypatch):
    out, empty = tmp_path / "out", tmp_path / "empty"
    shard(str(photos), out)
    empty.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(empty))
    before = sorted(tmp_path.rglob("*"))
    source = open_source(str(out))
    assert all(source.read(index) for index in range(len(source)))
    assert sorted(tmp_path.rglob("*")) == before


def test_damage_is_found_and_named(photos, tmp_path):
    out = tmp_path / "out"
    shard(str(photos), out)
    tar = out / "train-00000.tar"
    whole = tar.read_bytes()
    tar.write_bytes(whole[:-4000])
    (problem,) = verify_shards(out)
    assert (problem.path, problem.problem) == ("train-00000.tar", "truncated")
    tar.write_bytes(whole[:5000] + b"!" + whole[5001:])
    (problem,) = verify_shards(out)
    assert (problem.problem, problem.detail) == ("changed", "SHA-256 differs from shards.json")
    tar.unlink()
    (problem,) = verify_shards(out)
    assert problem.problem == "missing"


def test_thousands_of_shards_are_read_with_few_of_them_open(photos, tmp_path, monkeypatch):
    monkeypatch.setattr("vitrine.data.sources.shards._MOST_OPEN", 2)
    splits = open_splits(photos)
    write_shards(splits, tmp_path / "shards", shard_bytes=1)  # one image each
    again = open_splits(tmp_path / "shards")["train"]
    assert len(again.tars) == len(splits["train"]) > 4
    for theirs, ours in zip(splits["train"], again, strict=True):
        assert theirs.data == ours.data
    assert len(again._open) == 2


def test_shards_may_lie_beside_a_set_that_is_one_file(tmp_path):
    (tmp_path / "train.csv").write_text("path,label\na.png,cat\n")
    source = GeneratedSource(count=4, size=8)
    source.root = tmp_path / "train.csv"
    assert write_shards({"train": source}, tmp_path / "shards")


def test_a_cut_shard_is_named_when_it_is_read(photos, tmp_path):
    out = tmp_path / "out"
    shard(str(photos), out)
    source = open_source(out, split="train", val_fraction=0)
    (out / "train-00000.tar").write_bytes((out / "train-00000.tar").read_bytes()[:3000])
    with pytest.raises(DataError, match=r"train-00000\.tar is truncated: .*bytes \d+"):
        source.read(len(source) - 1)


def test_a_listing_or_index_that_is_none_says_so(photos, tmp_path):
    out = tmp_path / "out"
    shard(str(photos), out)
    (out / "train-00000.npz").write_bytes(b"what")
    with pytest.raises(DataError, match=r"train-00000\.npz is not an index"):
        open_source(out)
    (out / "shards.json").write_text(json.dumps({"splits": 3}))
    with pytest.raises(DataError, match=r"shards\.json is not a listing"):
        open_source(out)


def test_shards_are_read_over_http_by_ranges(photos, tmp_path):
    shard(str(photos), tmp_path / "out")
    with serving(tmp_path / "out") as (address, requests):
        far = open_splits(address, val_fraction=0)
        near = open_splits(photos, val_fraction=0)
        assert same(far["test"], near["test"])
        assert far["train"].read(7) == near["train"].read(7)
        tars = [request for request in requests if ".tar" in request.path]
        assert tars and all(request.range for request in tars if request.method == "GET")
        walked = open_source(f"{address}/train-00000.tar")
        assert walked.read(3).data == near["train"].read(3).data


def test_an_address_with_nothing_there_says_so(tmp_path):
    with serving(tmp_path) as (address, _), pytest.raises(DataError, match=f"no file at {address}/"):
        open_source(address)
