"""A kind of data set and a VTAB reader from outside the package: one file, one line of registration."""

import importlib.util
import sys

import numpy as np
import pytest

import vitrine
from vitrine.data.sources import opening
from vitrine.data.sources.in_memory import ArraySource
from vitrine.data.sources.opening import open_source, open_splits, register_source
from vitrine.data.sources.vtab import task_data
from vitrine.data.sources.vtab.tasks import find_task
from vitrine.errors import ConfigError

KIND = '''
"""Stripes: `stripes:40` is forty pictures of lines, upright or lying."""

import numpy as np

from vitrine.data.sources.in_memory import ArraySource


def recognises(address):
    return address.startswith("stripes:")


def open_all(address):
    count = int(address.removeprefix("stripes:"))
    images = np.random.default_rng(0).integers(0, 60, (count, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(count, dtype=np.int32) % 2
    images[labels == 0, ::2] += 180
    images[labels == 1, :, ::2] += 180
    classes = ("lying", "upright")
    return {"all": ArraySource(images, labels=labels, classes=classes, address=address, root=None)}
'''


@pytest.fixture
def stripes(tmp_path, monkeypatch):
    (tmp_path / "stripes.py").write_text(KIND)
    spec = importlib.util.spec_from_file_location("stripes", tmp_path / "stripes.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "stripes", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(opening, "_KINDS", dict(opening._KINDS))
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return module


def test_a_kind_of_data_set_is_registered_from_outside_with_one_line(stripes):
    register_source("stripes", stripes)
    assert len(open_source("stripes:40")) == 40
    assert {name: len(part) for name, part in open_splits("stripes:40").items()} == {"train": 36, "val": 4}


def test_verbs_read_a_registered_kind_as_any_other(stripes, tmp_path):
    register_source("stripes", stripes)
    result = vitrine.check("stripes:20", out=tmp_path / "out")
    assert result.counts == {"all": {"lying": 10, "upright": 10}}


def test_a_name_that_is_taken_is_refused(stripes):
    register_source("stripes", stripes)
    with pytest.raises(ConfigError):
        register_source("stripes", stripes)
    with pytest.raises(ConfigError):
        register_source("parquet", stripes)


def test_a_reader_of_a_vtab_archive_is_registered_from_outside_with_one_line(tmp_path, monkeypatch):
    task = find_task("SVHN")
    monkeypatch.setattr(task_data, "READERS", list(task_data.READERS))

    def open_digits(folder, task):
        if not (folder / "digits.npy").is_file():
            return None
        images = np.load(folder / "digits.npy")
        labels = np.arange(len(images), dtype=np.int32) % 10
        classes = [str(digit) for digit in range(10)]
        return {"all": ArraySource(images, labels=labels, classes=classes, address=str(folder), root=folder)}

    np.save(tmp_path / "digits.npy", np.zeros((200, 8, 8, 3), np.uint8))
    task_data.READERS.append(open_digits)
    opened = task_data.open_task(tmp_path, task, num_train=80, num_val=10)
    assert (len(opened.train), len(opened.val), len(opened.trainval)) == (80, 10, 90)
