"""`vitrine dedup` from the command line: from two folders to a list that leaves the copies out."""

import csv
import json

import numpy as np
import pytest
from pictures import altered, class_folders, photo, save

import vitrine as library
from vitrine.data.sources.exclusions import leave_out, read_exclusions
from vitrine.data.sources.opening import open_source

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def vitrine(command_line):
    return command_line("dedup")


@pytest.fixture
def sets(tmp_path):
    train = class_folders(tmp_path / "train")
    first = class_folders(tmp_path / "first", first=5000)
    for seed in range(8000, 8004):
        save(tmp_path / "loose" / f"{seed}.png", photo(seed))
    (train / "cat" / "same.png").write_bytes((first / "cat" / "2.png").read_bytes())
    save(train / "dog" / "moved.jpg", altered(photo(8001)))
    save(train / "dog" / "mirrored.png", photo(8002)[:, ::-1])
    return train, first, tmp_path / "loose"


def test_copies_of_several_test_sets_are_listed_and_left_out(vitrine, sets, tmp_path):
    train, first, loose = sets
    code, out, _ = vitrine("dedup", train, "--against", first, "--against", loose, "--out", tmp_path / "out")
    assert code == 0
    assert "15 training images" in out and "first (12), loose (4)" in out
    assert "2 training images, 2 pairs" in out and "1 by hash, 1 by" in out
    for name in ("pairs.html", "pairs.csv", "exclude.txt"):
        assert f"Wrote {tmp_path / 'out' / name}" in out
    listed = read_exclusions(tmp_path / "out" / "exclude.txt")
    assert listed == {"cat/same.png", "dog/moved.jpg"}
    assert len(leave_out(open_source(train), listed)) == 13
    with (tmp_path / "out" / "pairs.csv").open(newline="") as file:
        assert [row["test_set"] for row in csv.DictReader(file)] == ["first", "loose"]
    assert (tmp_path / "out" / "pairs.html").read_text().count("<img") == 4


def test_mirrored_copies_are_found_when_asked_for(vitrine, sets, tmp_path):
    train, _, loose = sets
    code, out, _ = vitrine(
        "dedup", train, "--against", loose, "--mirrored", "--json", "--out", tmp_path / "out"
    )
    result = json.loads(out)
    assert code == 0 and result["num_excluded"] == 2
    assert "dog/mirrored.png" in read_exclusions(tmp_path / "out" / "exclude.txt")


def test_with_a_model_its_features_are_compared_too_and_unreadable_files_match_nothing(
    vitrine, sets, tmp_path
):
    train, first, _ = sets
    for folder in (train, first):
        (folder / "cat" / "zero.png").write_bytes(b"")
    save(first / "dog" / "resaved.bmp", photo(1003))  # equal pixels, other bytes
    words = ("--by", "hash", "--model", "ViT-Ti/16", "--least-cosine", "0.999999", "--device", "cpu")
    code, out, _ = vitrine("dedup", train, "--against", first, *words, "--out", tmp_path / "out")
    assert code == 0 and "cannot be read: 2 files" in out
    with (tmp_path / "out" / "pairs.csv").open(newline="") as file:
        rows = [(row["train"], row["test"], row["method"]) for row in csv.DictReader(file)]
    assert rows == [("cat/same.png", "cat/2.png", "hash"), ("dog/3.png", "dog/resaved.bmp", "features")]


def test_one_split_of_a_set_is_compared_with_another(vitrine, tmp_path):
    root = tmp_path / "set"
    class_folders(root / "train")
    class_folders(root / "test", first=5000)
    (root / "test" / "cat" / "leak.png").write_bytes((root / "train" / "cat" / "1.png").read_bytes())
    code, _, _ = vitrine(
        "dedup",
        root,
        "--split",
        "train",
        "--against",
        root,
        "--against-split",
        "test",
        "--out",
        tmp_path / "out",
    )
    assert code == 0
    assert read_exclusions(tmp_path / "out" / "exclude.txt") == {"train/cat/1.png"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--against", "{test}", "--by", "hsah"), "did you mean hash"),
        (("--against", "{test}", "--by", "features"), "needs a model"),
        (("--against", "{test}x"), "no such folder"),
        (("--against", "{test}", "--out", "{train}/out"), "nothing is ever written"),
        (("--against", "{test}", "--out", "{test}/out"), "nothing is ever written"),
        (("--against", "{test}", "--split", "trian"), "has no split trian"),
        ((), "--against"),
    ],
)
def test_mistakes_are_answered_in_a_sentence_with_exit_2(vitrine, sets, options, words):
    train, first, _ = sets
    code, out, err = vitrine("dedup", train, *(word.format(test=first, train=train) for word in options))
    assert code == 2 and out == ""
    assert words in err and "Traceback" not in err


def test_a_device_that_does_not_exist_is_refused_in_one_sentence(vitrine, sets, tmp_path):
    train, first, _ = sets
    words = ("--model", "ViT-Ti/16", "--device", "cudaa", "--out", tmp_path / "out")
    code, _, said = vitrine("dedup", train, "--against", first, *words)
    assert code == 2 and "--device: must be auto, cpu" in said


def test_discs_of_other_colours_are_neither_conflicting_nor_excluded(vitrine, tmp_path):
    """48 different coloured discs once had 26 conflicting labels, and dedup excluded 22 of them."""
    rows, columns = np.mgrid[0:64, 0:64]
    for number, colour in enumerate([(220, 30, 30), (40, 180, 60), (40, 80, 220)]):
        for place in range(4):
            inside = (rows - 24 - 4 * place) ** 2 + (columns - 40 + 4 * place) ** 2 < (12 + place) ** 2
            pixels = np.where(inside[..., None], np.uint8(colour), np.uint8(245)).astype(np.uint8)
            save(tmp_path / "discs" / f"colour-{number}" / f"{place}.png", pixels)
            if number:
                save(tmp_path / "others" / f"colour-{number - 1}" / f"{place}.png", pixels)
    checked = library.check(tmp_path / "discs", out=tmp_path / "check")
    assert "conflicting labels" not in checked.problems
    red = tmp_path / "discs" / "colour-0"
    assert library.dedup(red, against=tmp_path / "others", out=tmp_path / "pairs").num_excluded == 0
