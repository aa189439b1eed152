"""Class folders, the seeded split, and bad input, each with its message."""

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.data.pictures import class_folders, save

from vitrine.data.sources import folder_walk
from vitrine.data.sources.file_list import Strings
from vitrine.data.sources.generated import GeneratedSource
from vitrine.data.sources.labels import match_classes
from vitrine.data.sources.opening import list_splits, open_source, open_splits
from vitrine.data.sources.source import NO_LABEL, Subset
from vitrine.data.sources.splitting import duplicate_groups, held_out_split, stored_split
from vitrine.errors import ConfigError, DataError, MissingDataError
from vitrine.runtime.progress import listening
from vitrine.spelling import printable


class Heard:
    def __init__(self):
        self.remarks = []

    def start(self, what, total): ...
    def advance(self, steps): ...
    def finish(self): ...
    def notice(self, text, advice=()):
        self.remarks.append(text)


def tree(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_an_archive_unpacked_into_a_folder_of_its_own_is_read_one_folder_deeper(tmp_path):
    class_folders(tmp_path / "photos" / "photos", {"cat": 3, "dog": 3})
    save(tmp_path / "photos" / "__MACOSX" / "photos" / "cat.png")  # what macOS puts into archives is no class
    heard = Heard()
    with listening(heard):
        assert list_splits(tmp_path / "photos") == ()
        source = open_source(tmp_path / "photos")
    assert source.classes == ("cat", "dog") and source.name(0) == "cat/00.png" and source.path(0).is_file()
    assert source.root == tmp_path / "photos"  # nothing is written beside the inner folder either
    [said] = heard.remarks
    assert said.startswith(str(tmp_path / "photos")) and "one folder, photos;" in said


def test_a_single_class_with_images_of_its_own_stays_a_class(tmp_path):
    class_folders(tmp_path / "cat", {"2024": 2, "2025": 2})
    save(tmp_path / "cat" / "now.png", seed=9)
    assert open_source(tmp_path).classes == ("cat",)


def test_an_archive_is_to_be_unpacked(tmp_path):
    (tmp_path / "photos.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"photos\.zip .*archive; unpack it"):
        open_source(tmp_path / "photos.zip")


@given(st.lists(st.text(max_size=20), max_size=30))
@settings(deadline=None)
def test_strings_keep_every_text(items):
    packed = Strings(items)
    assert list(packed) == items
    assert packed[1:3] == items[1:3]
    if items:
        assert packed[-1] == items[-1]
    with pytest.raises(IndexError):
        packed[len(items)]


@pytest.mark.parametrize("val", ["val", "valid", "validation"])
def test_split_folders_share_one_class_map_sorted_by_name(tmp_path, val):
    class_folders(tmp_path / "train", {"zebra": 3, "Ant": 2, "bee": 2})
    class_folders(tmp_path / val, {"zebra": 1, "bee": 1})  # no Ant: labels must not shift
    class_folders(tmp_path / "test", {"bee": 1})
    splits = open_splits(tmp_path)
    assert list(splits) == ["train", "val", "test"]
    for source in splits.values():
        assert source.classes == ("Ant", "bee", "zebra")
        for index in range(len(source)):
            assert source.classes[source.label(index)] == source.name(index).split("/")[1]
    assert splits["val"].labels.tolist() == [1, 2]
    assert list_splits(tmp_path) == ("train", "val", "test")


def test_a_source_reads_bytes_labels_and_names_and_survives_pickling(tmp_path):
    class_folders(tmp_path, {"a": 2, "b": 1})
    source = open_source(tmp_path)
    copy = pickle.loads(pickle.dumps(source))
    for index in range(3):
        example = copy.read(index)
        assert example.data == (tmp_path / example.name).read_bytes()
        assert example.label == source.labels[index]
        assert source.size(index) == len(example.data)
        assert source.path(index) == tmp_path / example.name
    assert [example.name for example in source] == ["a/00.png", "a/01.png", "b/00.png"]


def test_the_fingerprint_follows_the_set_and_not_its_place(tmp_path):
    class_folders(tmp_path / "x", {"a": 2, "b": 1})
    class_folders(tmp_path / "y", {"a": 2, "b": 1})
    before = open_source(tmp_path / "x").fingerprint()
    assert before == open_source(tmp_path / "y").fingerprint()
    save(tmp_path / "x" / "b" / "99.png", seed=5)
    assert open_source(tmp_path / "x").fingerprint() != before


def test_a_flat_set_is_split_by_seed_with_the_same_share_of_each_class(tmp_path):
    class_folders(tmp_path, {"a": 20, "b": 40, "c": 1, "d": 2})
    splits = open_splits(tmp_path, val_fraction=0.1)
    assert splits["val"].counts().tolist() == [2, 4, 0, 1]
    assert splits["train"].counts().tolist() == [18, 36, 1, 1]
    names = {name: {source.name(i) for i in range(len(source))} for name, source in splits.items()}
    assert not names["train"] & names["val"]
    assert len(names["train"] | names["val"]) == 63
    again = open_source(tmp_path, split="val", val_fraction=0.1)
    assert {again.name(i) for i in range(len(again))} == names["val"]
    other = open_source(tmp_path, split="val", val_fraction=0.1, seed=1)
    assert {other.name(i) for i in range(len(other))} != names["val"]


def test_exact_duplicates_stay_on_one_side_even_under_two_labels(tmp_path):
    class_folders(tmp_path, {"a": 12, "b": 12})
    for number in range(12):
        data = (tmp_path / "a" / f"{number:02d}.png").read_bytes()
        (tmp_path / "a" / f"copy{number}.png").write_bytes(data)
        (tmp_path / "b" / f"copy{number}.png").write_bytes(data)
    source = open_source(tmp_path)
    groups = duplicate_groups(source)
    assert len(np.unique(groups)) == 24
    for seed in range(5):
        split = held_out_split(source, seed=seed, val_fraction=0.25)
        assert not set(groups[split["train"]]) & set(groups[split["val"]])
        assert len(split["val"]) >= 6


def test_no_fraction_holds_nothing_out_and_nonsense_is_refused(tmp_path):
    class_folders(tmp_path, {"a": 4, "b": 4})
    assert list(open_splits(tmp_path, val_fraction=0)) == ["train"]
    with pytest.raises(ConfigError, match=r"fraction.* 0 and 1,.*1\.5"):
        open_splits(tmp_path, val_fraction=1.5)


def test_the_split_is_stored_where_asked_and_read_back(tmp_path):
    data = class_folders(tmp_path / "set", {"a": 10, "b": 10})
    before = tree(data)
    place = tmp_path / "run" / "split.csv"
    first = open_splits(data, split_file=place, seed=3)
    assert place.read_text().splitlines()[0] == "path,label,split"
    second = open_splits(data, split_file=place, seed=99)  # the stored split wins over the seed
    assert [s.indices.tolist() for s in first.values()] == [s.indices.tolist() for s in second.values()]
    assert tree(data) == before


def test_a_split_of_a_set_that_is_one_file_may_be_stored_beside_it(tmp_path):
    """`vitrine finetune photos.parquet` in the folder of that file writes to ./runs."""
    source = GeneratedSource(count=20, size=8)
    source.root = tmp_path / "photos.parquet"
    source.root.touch()
    place = tmp_path / "runs" / "first" / "split.csv"
    parts = stored_split(source, place)
    assert place.is_file()
    assert sum(map(len, parts.values())) == 20


def test_a_file_that_is_no_split_is_told(tmp_path):
    data = class_folders(tmp_path / "data", {"a": 4, "b": 4})
    for text, got in (("", "an empty file"), ("name,part\nx,train\n", "name, part")):
        (tmp_path / "split.csv").write_text(text)
        with pytest.raises(DataError, match=f"split.csv .*path and split, got {got}$"):
            open_splits(data, split_file=tmp_path / "split.csv")


def test_a_stored_split_of_changed_data_is_refused(tmp_path):
    data = class_folders(tmp_path / "set", {"a": 10, "b": 10})
    place = tmp_path / "split.csv"
    open_splits(data, split_file=place)
    save(data / "a" / "new.png", seed=77)
    with pytest.raises(DataError, match=r"^a/new\.png .*split\.csv: .*has changed"):
        open_splits(data, split_file=place)
    (data / "a" / "new.png").unlink()
    (data / "a" / "00.png").unlink()
    with pytest.raises(DataError, match=r"split\.csv names a/00\.png, .*no longer"):
        open_splits(data, split_file=place)


def test_nothing_is_written_into_the_data_set(tmp_path):
    data = class_folders(tmp_path / "set", {"a": 10, "b": 10})
    (tmp_path / "link").symlink_to(data)
    for place in (data / "split.csv", data / "a" / "split.csv", tmp_path / "link" / "split.csv"):
        with pytest.raises(ConfigError, match=f"split.csv .*inside .*{data}"):
            open_splits(data, split_file=place)


def test_a_class_with_images_in_validation_alone_is_refused_with_advice(tmp_path):
    class_folders(tmp_path / "train", {"ant": 2, "bee": 0, "cat": 3})
    class_folders(tmp_path / "val", {"ant": 1, "bee": 1})
    with pytest.raises(DataError) as caught:
        open_splits(tmp_path)
    assert re.match("train .*of bee;", caught.value.problem)
    option, verb = caught.value.advice
    assert option.option == "allow_empty_class" and (verb.verb, verb.arguments) == ("check", (str(tmp_path),))
    assert open_splits(tmp_path, allow_empty_class=True)["train"].counts().tolist() == [2, 0, 3]


def test_an_empty_class_folder_is_skipped_with_a_notice(tmp_path):
    class_folders(tmp_path, {"ant": 12, "bee": 0, "cat": 12})
    heard = Heard()
    with listening(heard):
        splits = open_splits(tmp_path)
    assert splits["train"].classes == splits["val"].classes == ("ant", "cat")
    assert splits["val"].counts().tolist() == [1, 1] and set(splits["train"].labels) == {0, 1}
    assert len(heard.remarks) == 1 and "bee" in heard.remarks[0]
    assert open_source(tmp_path).classes == ("ant", "cat")
    assert open_source(tmp_path, allow_empty_class=True).counts().tolist() == [12, 0, 12]


def test_a_wrong_path_is_answered_with_the_nearest_one(tmp_path):
    class_folders(tmp_path / "photos", {"a": 1})
    with pytest.raises(MissingDataError, match=rf"^no such folder {tmp_path}/fotos;") as refused:
        open_source(tmp_path / "fotos")
    assert refused.value.suggestions == (str(tmp_path / "photos"),)
    with pytest.raises(MissingDataError, match=r"no such folder .*/phots;") as refused:
        open_source(tmp_path / "phots" / "deeper")
    assert refused.value.suggestions == (str(tmp_path / "photos"),)
    with pytest.raises(DataError, match=r"^no such folder .*/nothing-like-it$"):
        open_source(tmp_path / "nothing-like-it")
    with pytest.raises(DataError, match=r"no such file .*list\.csv"):
        open_source(tmp_path / "list.csv")


def test_a_wrong_split_is_answered_with_those_there_are(tmp_path):
    class_folders(tmp_path / "train", {"a": 5})
    with pytest.raises(DataError, match=f"{tmp_path} .*tset, only train, val$"):
        open_source(tmp_path, split="tset")


def test_folders_without_images_or_classes_say_so(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty contains no images"):
        open_source(tmp_path / "empty")
    save(tmp_path / "loose" / "a.png")
    with pytest.raises(DataError, match=r"loose.*1 image.*class folders"):
        open_source(tmp_path / "loose")
    (tmp_path / "words.doc").write_text("x")
    with pytest.raises(DataError, match=r"words\.doc is not.*pass a folder"):
        open_source(tmp_path / "words.doc")


def test_two_folders_for_one_split_are_refused(tmp_path):
    for name in ("train", "val", "valid"):
        class_folders(tmp_path / name, {"a": 1})
    with pytest.raises(DataError, match=r"val and valid .*rename one"):
        open_source(tmp_path)


def test_hidden_files_and_other_files_are_passed_over_and_inner_folders_read(tmp_path):
    class_folders(tmp_path, {"a": 1, "b": 1})
    (tmp_path / "a" / "readme.txt").write_text("x")
    (tmp_path / "a" / ".hidden.png").write_bytes(b"")
    (tmp_path / ".git").mkdir()
    save(tmp_path / "a" / "deep" / "er" / "X.PNG", seed=9)
    source = open_source(tmp_path)
    assert source.classes == ("a", "b")
    assert [source.name(i) for i in range(3)] == ["a/00.png", "a/deep/er/X.PNG", "b/00.png"]


def test_a_link_loop_is_not_followed_and_said(tmp_path):
    class_folders(tmp_path, {"a": 1, "b": 1})
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "self.png").symlink_to(tmp_path / "a" / "self.png")
    heard = Heard()
    with listening(heard):
        source = open_source(tmp_path)
    assert [source.name(i) for i in range(len(source))] == ["a/00.png", "a/self.png", "b/00.png"]
    [remark] = heard.remarks
    assert remark.startswith(f"{tmp_path}/a/loop ") and "not followed" in remark
    with pytest.raises(DataError, match=r"self\.png: Too many levels"):
        source.read(1)


@pytest.mark.parametrize("place", ["a/up", "up", "a/deep/top"])
def test_a_link_to_a_folder_above_the_photos_is_not_followed(tmp_path, place):
    class_folders(tmp_path / "set", {"a": 2, "b": 1})
    (tmp_path / "set" / place).parent.mkdir(exist_ok=True)
    (tmp_path / "set" / place).symlink_to(tmp_path if place.endswith("top") else tmp_path / "set")
    source = open_source(tmp_path / "set")
    assert len(source) == 3 and source.classes == ("a", "b")


def test_linked_folders_are_followed(tmp_path):
    class_folders(tmp_path / "elsewhere", {"x": 2})
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a").symlink_to(tmp_path / "elsewhere" / "x")
    assert len(open_source(tmp_path / "set")) == 2


def test_an_unreadable_folder_is_named(tmp_path, monkeypatch):
    class_folders(tmp_path, {"a": 1, "b": 1})
    real = os.scandir

    def refuse(path):  # root may read anything, so the refusal is played
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(folder_walk.os, "scandir", refuse)
    with pytest.raises(DataError, match=r"cannot list .*/b: Permission denied$"):
        open_source(tmp_path)


def test_a_broken_link_and_a_vanished_file_are_named(tmp_path):
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(MissingDataError, match=r"gone .*broken link .*nowhere"):
        open_source(tmp_path / "gone")
    class_folders(tmp_path / "set", {"a": 1})
    source = open_source(tmp_path / "set")
    (tmp_path / "set" / "a" / "00.png").unlink()
    with pytest.raises(MissingDataError, match=r"00\.png: No such file"):
        source.read(0)


def test_names_in_any_script_and_of_any_bytes_are_read(tmp_path):
    names = ["猫", "кошка", "קאָץ", "a b'c\"d", "🐈"]
    class_folders(tmp_path, dict.fromkeys(names, 1))
    odd = os.fsdecode(os.fsencode(str(tmp_path / "猫")) + b"/\xff\xfe.png")
    Path(odd).write_bytes((tmp_path / "猫" / "00.png").read_bytes())
    source = open_source(tmp_path)
    assert source.classes == tuple(sorted(names))
    read = list(source)
    assert len(read) == 6
    assert any(printable(example.name) == "猫/\\xff\\xfe.png" for example in read)
    source.fingerprint()
    open_splits(tmp_path, split_file=tmp_path.parent / "split-any.csv")
    open_splits(tmp_path, split_file=tmp_path.parent / "split-any.csv")


def test_without_labels_every_image_below_a_folder_is_read(tmp_path):
    save(tmp_path / "a.png")
    save(tmp_path / "x" / "y" / "b.png")
    source = open_source(tmp_path, is_labelled=False)
    assert len(source) == 2 and not source.is_labelled and (source.labels == NO_LABEL).all()
    with pytest.raises(DataError, match="is not a folder"):
        open_source(tmp_path / "a.png", is_labelled=False)


def test_labels_are_matched_to_another_class_list_by_name(tmp_path):
    class_folders(tmp_path, {"bee": 1, "cat": 1})
    source = open_source(tmp_path, classes=["ant", "bee", "cat", "dog"])
    assert source.classes == ("ant", "bee", "cat", "dog")
    assert [example.label for example in source] == [1, 2]
    with pytest.raises(DataError, match=r"label cat, .* 2 classes;") as refused:
        open_source(tmp_path, classes=["bee", "cats"])
    assert refused.value.suggestions == ("cats",)


def test_a_part_of_a_part_is_a_part_of_the_whole(tmp_path):
    class_folders(tmp_path, {"a": 4, "b": 4})
    source = open_source(tmp_path)
    part = Subset(Subset(source, [7, 1, 4]), [2, 0])
    assert part.source is source
    assert [part.name(i) for i in range(2)] == [source.name(4), source.name(7)]
    assert match_classes(part, ["b", "a"]).read(0).label == 0


def test_a_class_called_test_is_a_class_where_there_is_no_train(tmp_path):
    class_folders(tmp_path, {"test": 2, "exam": 2})
    assert open_source(tmp_path).classes == ("exam", "test")


def test_a_hundred_thousand_files_take_less_than_two_hundred_bytes_each():
    names = Strings(f"train/class_{i % 1000:04d}/picture_{i:08d}.jpg" for i in range(100_000))
    # The labels take 4 bytes more.
    assert (names.nbytes + 4 * len(names)) / len(names) < 200
