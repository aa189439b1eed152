import errno
import os

import numpy as np
import pytest
from pictures import class_folders, photo, save

from vitrine.data.auditing import survey as module
from vitrine.data.auditing.survey import survey_images
from vitrine.data.sources.opening import open_source
from vitrine.data.sources.source import Subset
from vitrine.errors import DataError
from vitrine.runtime.cache import cache_folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path):
    class_folders(tmp_path / "photos", each=4)
    (tmp_path / "photos" / "cat" / "zero.jpg").write_bytes(b"")
    return open_source(tmp_path / "photos")


def refuse_to_read(*_args, **_options):
    raise AssertionError("a file was read again")


def test_every_file_is_read_and_those_that_cannot_be_decoded_have_a_reason(source):
    found = survey_images(source)
    assert len(found) == 9
    (bad,) = found.unreadable
    assert source.name(bad) == "cat/zero.jpg" and found.unreadable[bad].problem == "empty file"
    assert found.kind_of[bad] == -1 and not found.thumbnails[bad].any()
    assert (np.delete(found.sizes, bad, axis=0) == (48, 64)).all()
    assert [(kind.format, kind.mode) for kind in found.kinds] == [("PNG", "RGB")]


def test_an_unchanged_set_is_recalled_and_not_read_again(source, monkeypatch):
    first = survey_images(source)
    monkeypatch.setattr(module, "_read_one", refuse_to_read)
    again = survey_images(source)
    for name in ("hashes", "thumbnails", "kind_of", "sizes"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert (again.kinds, again.unreadable) == (first.kinds, first.unreadable)


def test_a_part_of_a_set_loads_the_survey_of_the_whole(source, monkeypatch):
    whole = survey_images(source)
    monkeypatch.setattr(module, "_read_one", refuse_to_read)
    order = [8, 4, 0]
    part = survey_images(Subset(source, order))
    np.testing.assert_array_equal(part.thumbnails, whole.thumbnails[order])
    assert part.unreadable == {1: whole.unreadable[4]}


def test_a_large_part_of_a_set_keeps_its_thumbnails_on_disk(source, monkeypatch):
    whole, indices = survey_images(source), [5, 0, 3, 8]
    in_memory = survey_images(Subset(source, indices))
    monkeypatch.setattr(module, "_MOST_IN_MEMORY", 100)
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 3)
    on_disk = survey_images(Subset(source, indices))
    assert isinstance(on_disk.thumbnails, np.memmap)
    np.testing.assert_array_equal(on_disk.thumbnails, in_memory.thumbnails)
    np.testing.assert_array_equal(on_disk.thumbnails, whole.thumbnails[indices])
    (kept,) = (cache_folder() / "surveys").iterdir()
    assert kept.is_dir(), "nothing of a part is left behind"


def test_a_full_disk_is_told_before_anything_is_read(source, monkeypatch):
    def no_room(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    monkeypatch.setattr(module, "_read_one", lambda *_args: pytest.fail("an image was read"))
    with pytest.raises(DataError, match=r"no space .*0\.0 MB .*VITRINE_CACHE"):
        survey_images(source)


def test_a_file_system_that_promises_no_room_is_written_all_the_same(source, monkeypatch):
    def unknown(*_args):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unknown)
    assert len(survey_images(source)) == 9


def test_a_file_that_changed_at_equal_size_is_read_again(source, tmp_path):
    before = survey_images(source)
    path = tmp_path / "photos" / "cat" / "0.png"
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(1, 1))
    after = survey_images(open_source(tmp_path / "photos"))
    assert bytes(after.hashes[0]) != bytes(before.hashes[0])


@pytest.mark.parametrize("name", ["arrays.npz", "thumbnails.npy", "survey.json"])
@pytest.mark.parametrize("damage", [lambda data: b"nonsense", lambda data: data[:-20], lambda data: b""])
def test_a_damaged_cache_is_read_anew(source, name, damage):
    first = survey_images(source)
    (file,) = cache_folder().rglob(name)
    file.write_bytes(damage(file.read_bytes()))
    np.testing.assert_array_equal(survey_images(source).hashes, first.hashes)


def test_a_second_reader_of_the_same_set_that_gives_up_takes_nothing_from_the_first(source, monkeypatch):
    """Two runs begin at once: the second one's file must not be the first one's."""
    alone = survey_images(source, is_cached=False)
    read_one = module._read_one

    def interrupted(*_args):
        raise KeyboardInterrupt

    def last_of_all_a_second_reader(own, index, lock):
        if index == len(own) - 1:
            monkeypatch.setattr(module, "_read_one", interrupted)
            with pytest.raises(KeyboardInterrupt):
                survey_images(source, num_workers=1)
            monkeypatch.setattr(module, "_read_one", read_one)
        return read_one(own, index, lock)

    monkeypatch.setattr(module, "_read_one", last_of_all_a_second_reader)
    found = survey_images(source, num_workers=1)
    assert alone.thumbnails.any()
    np.testing.assert_array_equal(found.thumbnails, alone.thumbnails)
    np.testing.assert_array_equal(survey_images(source).thumbnails, alone.thumbnails)
    (kept,) = (cache_folder() / "surveys").iterdir()
    assert sorted(file.name for file in kept.iterdir()) == ["arrays.npz", "survey.json", "thumbnails.npy"]


def test_a_cache_that_cannot_be_written_is_done_without(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "file"))
    assert len(survey_images(source)) == 9


def test_nothing_is_written_into_the_data_set(source, tmp_path):
    before = sorted(path.relative_to(tmp_path) for path in (tmp_path / "photos").rglob("*"))
    survey_images(source)
    assert sorted(path.relative_to(tmp_path) for path in (tmp_path / "photos").rglob("*")) == before


def test_the_number_of_workers_does_not_change_the_result(source):
    one, many = (survey_images(source, num_workers=n, is_cached=False) for n in (1, 4))
    np.testing.assert_array_equal(one.thumbnails, many.thumbnails)
    np.testing.assert_array_equal(one.hashes, many.hashes)


def test_a_scaled_jpeg_has_nearly_the_thumbnail_of_its_full_size(tmp_path):
    save(tmp_path / "a" / "large.jpg", photo(3, 400, 600), quality=95)
    save(tmp_path / "b" / "large.png", photo(3, 400, 600))
    thumbnails = survey_images(open_source(tmp_path)).thumbnails.astype(int)
    assert abs(thumbnails[0] - thumbnails[1]).max() <= 6  # of 255: two ways to shrink, one of them lossy
