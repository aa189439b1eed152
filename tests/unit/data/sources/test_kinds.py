"""Manifests, Parquet, tar shards, IDX, CIFAR, VTAB lists and built-in names."""

import gzip
import io
import json
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from unit.data.pictures import class_folders, encoded, save, smooth

from vitrine.data.auditing.scan import scan
from vitrine.data.decoding.decode import decode
from vitrine.data.sources.builtin import SETS
from vitrine.data.sources.opening import open_kind, open_source, open_splits
from vitrine.errors import DataError

pyarrow = pytest.importorskip("pyarrow")


# --- manifests


def test_a_list_protects_itself_and_not_the_folder_that_it_lies_in(tmp_path):
    save(tmp_path / "photos" / "0.png")
    save(tmp_path / "photos" / "1.png", seed=1)
    (tmp_path / "notes.txt").write_text("no image, and no part of the list")
    (tmp_path / "list.csv").write_text("path,label\nphotos/0.png,a\nphotos/1.png,b\n")
    splits = open_splits(tmp_path / "list.csv", split_file=tmp_path / "runs" / "split.csv", val_fraction=0.5)
    assert splits["train"].path(0).is_file()
    report = scan(open_kind(tmp_path / "list.csv"), is_cached=False)
    assert report.unused.counts == {} and report.num_images == 2


def test_a_csv_manifest_gives_paths_labels_and_splits(tmp_path):
    for number in range(4):
        save(tmp_path / "pics" / f"{number}.png", seed=number)
    (tmp_path / "list.csv").write_text(
        "path,label,split\npics/0.png,dog,train\npics/1.png,cat,train\npics/2.png,dog,validation\npics/3.png,cat,test\n"
    )
    splits = open_splits(tmp_path / "list.csv")
    assert {name: len(source) for name, source in splits.items()} == {"train": 2, "val": 1, "test": 1}
    assert splits["train"].classes == ("cat", "dog")
    example = splits["val"].read(0)
    assert example.name == "pics/2.png" and example.label == 1
    assert decode(example.data).shape == (12, 16, 3)


def test_several_labels_make_a_multi_label_set(tmp_path):
    for number in range(3):
        save(tmp_path / f"{number}.png", seed=number)
    (tmp_path / "a.csv").write_text("path,labels\n0.png,sea;sun\n1.png,\n2.png,sun\n")
    rows = [{"path": f"{n}.png", "labels": labels} for n, labels in enumerate([["sea", "sun"], [], ["sun"]])]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    for name in ("a.csv", "a.jsonl"):
        source = open_source(tmp_path / name)
        assert source.is_multi_label and source.classes == ("sea", "sun")
        assert [source.label(i) for i in range(3)] == [(0, 1), (), (1,)]
        assert source.labels.tolist() == [[0, 1], [-1, -1], [1, -1]]


def test_numbered_classes_keep_the_order_of_their_numbers(tmp_path):
    lines = ["path,label"]
    for number in range(12):
        save(tmp_path / f"{number}.png", seed=number)
        lines.append(f"{number}.png,{number}")
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert open_source(tmp_path / "a.csv").labels.tolist() == list(range(12))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("where,label\nx.png,a\n", r"line 2 .*no path; .*file_name"),
        ("path,kind\n0.png,a\n", r"line 2 .*no label; .*category"),
        ("path,label\n0.png,\n", r"line 2 .*an empty label"),
        ("path,label\nx/0.png,a\n", r"names x/0\.png, .*must be relative"),
        ("path,label\n", r"a\.csv has no rows"),
    ],
)
def test_a_bad_manifest_is_named_by_line_and_reason(tmp_path, text, message):
    save(tmp_path / "0.png")
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        open_source(tmp_path / "a.csv")


def test_a_line_that_is_not_json_is_named(tmp_path):
    save(tmp_path / "0.png")
    (tmp_path / "a.jsonl").write_text('{"path": "0.png", "label": "a"}\n{"path": \n')
    with pytest.raises(DataError, match=r"line 2 .*a\.jsonl .*not JSON"):
        open_source(tmp_path / "a.jsonl")


def test_hugging_face_metadata_is_read_in_the_root_and_in_split_folders(tmp_path):
    for split, count in (("train", 3), ("test", 1)):
        lines = ["file_name,label"]
        for number in range(count):
            save(tmp_path / split / f"{number}.png", seed=number)
            lines.append(f"{number}.png,{'ab'[number % 2]}")
        (tmp_path / split / "metadata.csv").write_text("\n".join(lines))
    splits = open_splits(tmp_path, val_fraction=0)
    assert {name: len(source) for name, source in splits.items()} == {"train": 3, "test": 1}
    assert splits["test"].read(0).name == "test/0.png"
    flat = tmp_path / "flat"
    save(flat / "0.png")
    (flat / "metadata.jsonl").write_text('{"file_name": "0.png", "label": "x"}\n')
    assert open_source(flat).classes == ("x",)


# --- Parquet


def parquet(path: Path, labels: list, *, names: list[str] | None = None, column="image", nulls=()) -> Path:
    import pyarrow.parquet

    rows = [
        None if n in nulls else {"bytes": encoded(smooth(8, 9, seed=n)), "path": f"{n}.png"}
        for n in range(len(labels))
    ]
    table = pyarrow.table({column: rows, "label": labels})
    if names:
        features = {column: {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path, row_group_size=3)
    return path


def test_parquet_in_the_hugging_face_schema_is_read_with_its_class_names(tmp_path):
    parquet(tmp_path / "data" / "train-00000-of-00002.parquet", [0, 1, 1, 0], names=["no", "yes"])
    parquet(tmp_path / "data" / "train-00001-of-00002.parquet", [1, 1], names=["no", "yes"])
    parquet(tmp_path / "data" / "test-00000-of-00001.parquet", [1], names=["no", "yes"])
    splits = open_splits(tmp_path, val_fraction=0)
    train = pickle.loads(pickle.dumps(splits["train"]))
    assert train.classes == ("no", "yes") and train.labels.tolist() == [0, 1, 1, 0, 1, 1]
    for index, seed in enumerate([0, 1, 2, 3, 0, 1]):
        assert np.array_equal(decode(train.read(index).data), smooth(8, 9, seed=seed))
    assert train.name(5) == "train-00001-of-00002.parquet:1"
    assert len(splits["test"]) == 1


def test_parquet_labels_may_be_words_and_the_image_column_img(tmp_path):
    source = open_source(parquet(tmp_path / "a.parquet", ["b", "a"], column="img"))
    assert source.classes == ("a", "b") and source.labels.tolist() == [1, 0]


def test_a_null_image_is_named_when_read_and_a_null_label_when_opened(tmp_path):
    source = open_source(parquet(tmp_path / "a.parquet", [0, 1, 0, 1, 1], names=["x", "y"], nulls=[4]))
    source.read(3)
    with pytest.raises(DataError, match=r"^a\.parquet:4 .*no image: .*null"):
        source.read(4)
    with pytest.raises(DataError, match=r"row 1.*b\.parquet.*no label:.*null"):
        open_source(parquet(tmp_path / "b.parquet", [0, None], names=["x"]))


def test_a_parquet_label_outside_the_class_list_is_named(tmp_path):
    with pytest.raises(DataError, match=r"label 7,.*2 classes;.*x, y"):
        open_source(parquet(tmp_path / "a.parquet", [0, 7], names=["x", "y"]))


def test_a_parquet_without_labels_or_that_is_none_says_so(tmp_path):
    with pytest.raises(DataError, match="column fine, only image, label"):
        open_source(f"{parquet(tmp_path / 'a.parquet', [0])}?label=fine")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match=r"b\.parquet cannot .*Parquet"):
        open_source(tmp_path / "b.parquet")


# --- tar shards


def webdataset(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            facts = tarfile.TarInfo(name)
            facts.size = len(data)
            tar.addfile(facts, io.BytesIO(data))
    return path


def members(labels: list[str]) -> list[tuple[str, bytes]]:
    found = []
    for number, label in enumerate(labels):
        key = f"part/{number:04d}"
        found += [(f"{key}.png", encoded(smooth(8, 9, seed=number))), (f"{key}.cls", label.encode())]
    return found


def test_other_peoples_shards_are_indexed_by_their_headers(tmp_path):
    webdataset(tmp_path / "train-000.tar", members(["1", "0", "2"]))
    webdataset(tmp_path / "train-001.tar", members(["2", "10"]))
    source = pickle.loads(pickle.dumps(open_source(tmp_path)))
    assert source.classes == ("0", "1", "2", "10") and source.labels.tolist() == [1, 0, 2, 2, 3]
    for index, seed in enumerate([0, 1, 2, 0, 1]):
        assert np.array_equal(decode(source.read(index).data), smooth(8, 9, seed=seed))


def test_json_labels_and_a_class_list_are_understood(tmp_path):
    pictures = [(f"{n}.jpg", encoded(smooth(8, 9), "JPEG")) for n in range(2)]
    labels = [("0.json", b'{"label": "cat"}'), ("1.json", b'{"label": "dog"}')]
    assert open_source(webdataset(tmp_path / "a.tar", pictures + labels)).classes == ("cat", "dog")
    other = tmp_path / "b"
    other.mkdir()
    webdataset(other / "x.tar", members(["1", "0"]))
    (other / "classes.txt").write_text("bee\nant\n")
    assert open_source(other).classes == ("bee", "ant")


@pytest.mark.parametrize("lost", [700, 3000, 12_000])
def test_a_tar_cut_short_is_named(tmp_path, lost):
    path = webdataset(tmp_path / "train.tar", members(["a"] * 20))
    # Tar pads to 10,240 bytes after its end mark: cut into the members.
    whole = path.read_bytes().rstrip(b"\0")
    path.write_bytes(whole[: len(whole) - lost])
    with pytest.raises(DataError, match=r"train\.tar is truncated"):
        open_source(path)


def test_a_tar_image_without_a_label_or_with_a_wrong_one_is_named(tmp_path):
    with pytest.raises(DataError, match=r"^part/0000\.png .*a\.tar has no label"):
        open_source(webdataset(tmp_path / "a.tar", members(["x"])[:1]))
    folder = tmp_path / "f"
    folder.mkdir()
    webdataset(folder / "b.tar", members(["5"]))
    (folder / "classes.txt").write_text("one\ntwo\n")
    with pytest.raises(DataError, match=r"^part/0000\.png.*label 5,.*2 classes"):
        open_source(folder)
    (tmp_path / "c.tar").write_text("no tar at all" * 100)
    with pytest.raises(DataError, match=r"c\.tar .*not a tar"):
        open_source(tmp_path / "c.tar")


# --- IDX, CIFAR


def idx(path: Path, array: np.ndarray) -> None:
    data = (
        struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    )
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_idx_files_are_read_plain_and_packed(tmp_path, packed):
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    for prefix in ("train", "t10k"):
        idx(tmp_path / f"{prefix}-images-idx3-ubyte{packed}", images)
        idx(tmp_path / f"{prefix}-labels-idx1-ubyte{packed}", np.array([3, 1, 4, 1, 9], dtype=np.uint8))
    splits = open_splits(tmp_path, val_fraction=0, allow_empty_class=True)
    assert list(splits) == ["train", "test"] and splits["train"].labels.tolist() == [3, 1, 4, 1, 9]
    assert np.array_equal(decode(splits["test"].read(2).data, channels=1)[:, :, 0], images[2])


def test_an_idx_file_that_lies_about_its_size_is_refused(tmp_path):
    idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(5, dtype=np.uint8))
    lie = struct.pack(">HBBIII", 0, 8, 3, 5, 28, 28) + b"\0" * 100
    (tmp_path / "train-images-idx3-ubyte").write_bytes(lie)
    with pytest.raises(DataError, match=r"idx3-ubyte.*3920 bytes.*100$"):
        open_source(tmp_path)
    bomb = struct.pack(">HBBIII", 0, 8, 3, 1, 2, 2) + b"\0" * 10**7
    (tmp_path / "train-images-idx3-ubyte").unlink()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(bomb))
    with pytest.raises(DataError, match=r"idx3-ubyte\.gz.*4 bytes.*5$"):
        open_source(tmp_path)


def test_images_without_labels_or_with_too_few_are_refused(tmp_path):
    idx(tmp_path / "train-images-idx3-ubyte", np.zeros((5, 4, 4), dtype=np.uint8))
    with pytest.raises(DataError) as refused:
        open_source(tmp_path)
    assert "train-labels-idx1-ubyte" in str(refused.value)
    idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(4, dtype=np.uint8))
    with pytest.raises(DataError) as refused:
        open_source(tmp_path)
    assert "5 images" in str(refused.value) and "4 labels" in str(refused.value)


@pytest.mark.parametrize("start", [b"\0\0\x0d\x03", b"\1\0\x08\x03", b"\0\0\x08\x09", b"\0\0"])
def test_a_file_that_is_no_idx_of_bytes_is_refused_by_name(tmp_path, start):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(start)
    idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(5, dtype=np.uint8))
    with pytest.raises(DataError) as refused:
        open_source(tmp_path)
    assert "train-images-idx3-ubyte" in str(refused.value)


def cifar_planes(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def test_cifar_binaries_are_read_plane_by_plane(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        labels = np.arange(4, dtype=np.uint8)[:, None] + number % 3
        (folder / f"{name}.bin").write_bytes(np.hstack([labels, cifar_planes(4, number)]).tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(f"k{n}" for n in range(10)))
    splits = open_splits(tmp_path, val_fraction=0, allow_empty_class=True)
    assert len(splits["train"]) == 20 and len(splits["test"]) == 4 and splits["train"].classes[0] == "k0"
    picture = splits["train"].read(5).data  # the second of the second batch
    assert np.array_equal(picture[:, :, 1], cifar_planes(4, 1)[1, 1024:2048].reshape(32, 32))
    assert splits["train"].label(5) == 2
    (folder / "test_batch.bin").write_bytes(b"x" * 5000)
    with pytest.raises(DataError, match=r"test_batch\.bin is truncated: 5000 bytes.*3073"):
        open_splits(tmp_path)


def test_cifars_python_version_is_read_without_running_pickles(tmp_path):
    planes = cifar_planes(3, 0)
    batch = {
        b"data": planes,
        b"fine_labels": [7, 8, 99],
        b"coarse_labels": [0, 0, 1],
        b"filenames": [b"x"] * 3,
    }
    for protocol in (2, 4):
        for name in ("train", "test"):
            (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=protocol))
        (tmp_path / "meta").write_bytes(
            pickle.dumps({b"fine_label_names": [b"n%02d" % n for n in range(100)]})
        )
        splits = open_splits(tmp_path, val_fraction=0, allow_empty_class=True)
        assert splits["train"].labels.tolist() == [7, 8, 99] and splits["train"].classes[8] == "n08"
        assert np.array_equal(splits["train"].read(0).data[:, :, 0], planes[0, :1024].reshape(32, 32))


class _Evil:
    def __reduce__(self):
        return (Path.touch, (Path("/tmp/vitrine-was-here"),))


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(pickle.dumps({b"data": _Evil()}))
    (tmp_path / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"a"] * 100}))
    with pytest.raises(DataError, match=r"refers to .*touch, .*run code"):
        open_splits(tmp_path)
    assert not Path("/tmp/vitrine-was-here").exists()


# --- VTAB lists and built-in names


def test_vtab_lists_are_read_with_their_own_numbers(tmp_path):
    for number in range(12):
        save(tmp_path / "images" / "train" / f"{number:06d}.jpg", seed=number)
    lines = [f"images/train/{n:06d}.jpg {n}" for n in range(12)]
    (tmp_path / "train800.txt").write_text("\n".join(lines[:8]))
    (tmp_path / "val200.txt").write_text("\n".join(lines[8:10]))
    (tmp_path / "train800val200.txt").write_text("\n".join(lines[:10]))
    (tmp_path / "test.txt").write_text("\n".join(lines[10:]))
    splits = open_splits(tmp_path, allow_empty_class=True)
    assert {name: len(s) for name, s in splits.items()} == {"train": 8, "val": 2, "test": 2, "trainval": 10}
    assert splits["test"].labels.tolist() == [10, 11] and len(splits["test"].classes) == 12
    assert len(open_source(tmp_path)) == 12  # trainval is not counted twice
    (tmp_path / "test.txt").write_text("images/train/000000.jpg\n")
    with pytest.raises(DataError, match=r"line 1 .*test\.txt .*'images/train/000000\.jpg'$"):
        open_splits(tmp_path)


def test_pets_are_known_by_their_layout_and_hold_out_a_tenth(tmp_path, monkeypatch):
    breeds = [f"breed_{n:02d}" for n in range(37)]
    for file, numbers in (("trainval.txt", range(10)), ("test.txt", range(10, 12))):
        rows = [f"{breed}_{n} 1 1 1" for breed in breeds for n in numbers]
        (tmp_path / "annotations").mkdir(exist_ok=True)
        (tmp_path / "annotations" / file).write_text("\n".join(rows))
    (tmp_path / "images").mkdir()
    for number, breed in enumerate(breeds):
        for n in range(12):
            (tmp_path / "images" / f"{breed}_{n}.jpg").write_bytes(b"x" * (1 + number * 12 + n))
    for address in (f"pets:{tmp_path}", str(tmp_path)):
        splits = open_splits(address)
        assert {name: len(s) for name, s in splits.items()} == {"train": 333, "val": 37, "test": 74}
        assert splits["train"].classes == tuple(breeds)
    monkeypatch.setenv("VITRINE_DATA", str(tmp_path.parent))
    tmp_path.rename(tmp_path.parent / "pets")
    assert len(open_source("pets", split="test")) == 74


def test_the_papers_sweep_splits_are_kept_by_name(tmp_path):
    names = ("cifar10", "cifar100", "pets", "flowers", "imagenet")
    assert {name: SETS[name].val_fraction for name in names} == {
        "cifar10": 0.02, "cifar100": 0.02, "pets": 0.1, "flowers": 0.1, "imagenet": 0.01,
    }  # fmt: skip
    class_folders(tmp_path / "train", {f"k{n}": 50 for n in range(10)})
    class_folders(tmp_path / "test", {f"k{n}": 1 for n in range(10)})
    splits = open_splits(f"cifar10:{tmp_path}")
    assert {name: len(s) for name, s in splits.items()} == {"train": 490, "val": 10, "test": 10}


def test_a_built_in_name_that_is_not_there_or_is_another_set_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VITRINE_DATA", raising=False)
    with pytest.raises(DataError, match=r"data/flowers; .*flowers:/path/to/flowers, .*VITRINE_DATA"):
        open_source("flowers")
    class_folders(tmp_path / "x", {"a": 1})
    with pytest.raises(DataError, match=r"1 classes, .*cifar10 has 10"):
        open_source(f"cifar10:{tmp_path / 'x'}")


def test_flowers_lists_are_read_from_matlab_files(tmp_path):
    scipy_io = pytest.importorskip("scipy.io")
    labels = np.arange(306) % 102 + 1
    ids = np.arange(1, 307)
    for is_packed in (True, False):
        scipy_io.savemat(
            tmp_path / "imagelabels.mat", {"labels": labels[None].astype(np.uint8)}, do_compression=is_packed
        )
        scipy_io.savemat(
            tmp_path / "setid.mat",
            {
                "trnid": ids[None, :102],
                "valid": ids[None, 102:204],
                "tstid": ids[None, 204:].astype(np.uint16),
            },
            do_compression=is_packed,
        )
        splits = open_splits(f"flowers:{tmp_path}", val_fraction=0)
        assert {name: len(s) for name, s in splits.items()} == {"train": 204, "test": 102}
        assert splits["test"].name(0) == "jpg/image_00205.jpg"
        assert splits["test"].labels.tolist() == list(range(102))


def test_a_validation_list_with_an_unknown_class_names_the_list_and_the_class(tmp_path):
    tiny = tmp_path / "tiny"
    for n in range(200):
        save(tiny / "train" / f"n{n:04d}" / "images" / "0.jpg", seed=n)
    (tiny / "val" / "images").mkdir(parents=True)
    for row, label in (("val_0.JPEG\tn9999\t0", "n9999"), ("val_0.JPEG", "")):
        (tiny / "val" / "val_annotations.txt").write_text(row)
        with pytest.raises(DataError, match=f"val_annotations.txt .*label {label}, .* 200 classes"):
            open_splits(tiny)


def test_tiny_imagenet_and_imagenet_know_their_validation_lists(tmp_path):
    tiny = tmp_path / "tiny"
    rows = []
    for n in range(200):
        save(tiny / "train" / f"n{n:04d}" / "images" / "0.jpg", seed=n)
        rows.append(f"val_{n}.JPEG\tn{199 - n:04d}\t0\t0\t9\t9")
    (tiny / "val" / "images").mkdir(parents=True)
    (tiny / "val" / "val_annotations.txt").write_text("\n".join(rows))
    splits = open_splits(tiny)
    assert len(splits["train"]) == 200 and splits["val"].labels.tolist() == list(range(199, -1, -1))
    full = tmp_path / "full"
    inner = full / "ILSVRC" / "Data" / "CLS-LOC"
    for n in range(1000):
        folder = inner / "train" / f"n{n:04d}"
        folder.mkdir(parents=True)
        (folder / "a.JPEG").write_bytes(b"x" * (n + 1))
    (inner / "val").mkdir()
    (full / "LOC_val_solution.csv").write_text(
        "ImageId,PredictionString\n"
        "ILSVRC2012_val_00000002,n0007 1 2 3 4\nILSVRC2012_val_00000001,n0999 1 2 3 4\n"
    )
    test = open_source(f"imagenet:{full}", split="test")
    assert test.labels.tolist() == [999, 7]
    assert test.name(0) == "ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000001.JPEG"
