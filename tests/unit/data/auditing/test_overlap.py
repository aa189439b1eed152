import csv

import numpy as np
import pytest
from pictures import altered, class_folders, photo, save

from vitrine.data.auditing.overlap import check_methods, find_overlap, write_pairs
from vitrine.data.sources.exclusions import leave_out
from vitrine.data.sources.opening import open_source
from vitrine.errors import ConfigError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def sets(tmp_path):
    """A training set with one equal and one altered copy of two test images."""
    train = class_folders(tmp_path / "train")
    test = class_folders(tmp_path / "test", first=5000)
    (train / "cat" / "same.png").write_bytes((test / "cat" / "0.png").read_bytes())
    save(train / "dog" / "altered.jpg", altered(photo(6001)))
    (test / "cat" / "broken.jpg").write_bytes(b"")
    return open_source(train), {"test": open_source(test)}


def test_equal_and_altered_copies_are_found_each_by_its_method(sets):
    train, tests = sets
    found = find_overlap(train, tests)
    named = [(pair.method, pair.pair.first.path, pair.pair.second.path) for pair in found.pairs]
    assert named == [("hash", "cat/same.png", "cat/0.png"), ("perceptual", "dog/altered.jpg", "dog/1.png")]
    assert found.by_method == {"hash": 1, "perceptual": 1}
    assert found.excluded == ("cat/same.png", "dog/altered.jpg")
    assert (found.num_train, found.num_test, found.num_unreadable) == (14, {"test": 13}, 1)


def test_by_hash_alone_finds_equal_files_only(sets):
    train, tests = sets
    assert find_overlap(train, tests, by=["hash"]).excluded == ("cat/same.png",)


def test_after_leaving_out_what_is_listed_nothing_is_found(sets):
    train, tests = sets
    clean = leave_out(train, find_overlap(train, tests).excluded)
    assert find_overlap(clean, tests).pairs == ()


def test_features_are_compared_where_they_are_given(sets):
    train, tests = sets
    rng = np.random.default_rng(0)
    features = {"train": rng.normal(size=(14, 16)), "test": rng.normal(size=(13, 16))}
    features = {name: array.astype(np.float32) for name, array in features.items()}
    features["test"][3] = 2 * features["train"][9]
    found = find_overlap(train, tests, by=["features"], features=features)
    assert [(pair.pair.first.index, pair.pair.second.index) for pair in found.pairs] == [(9, 3)]


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (["perceptul"], "did you mean perceptual"),
        (["features"], "needs a model"),
        ([], "hash, perceptual, features"),
    ],
)
def test_methods_that_cannot_be_used_are_refused(by, words):
    with pytest.raises(ConfigError, match=words):
        check_methods(by, has_features=False)


def test_pairs_are_written_one_row_each(sets, tmp_path):
    write_pairs(find_overlap(*sets), tmp_path / "pairs.csv")
    with (tmp_path / "pairs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {
        "train": "cat/same.png",
        "test": "cat/0.png",
        "test_set": "test",
        "method": "hash",
        "similarity": "1.0000",
    }
    assert float(rows[1]["similarity"]) > 0.88
