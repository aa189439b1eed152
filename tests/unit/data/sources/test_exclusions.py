import pytest
from pictures import class_folders

from vitrine.data.sources.exclusions import leave_out, read_exclusions, write_exclusions
from vitrine.data.sources.opening import open_source
from vitrine.errors import DataError


@pytest.fixture
def source(tmp_path):
    return open_source(class_folders(tmp_path / "photos", each=3))


def test_what_is_written_is_read_again_in_any_script(tmp_path):
    names = ["a b/猫.jpg", "#odd.png", "трава/ .jpg", "bytes\udcff.png"]
    write_exclusions(names, tmp_path / "exclude.txt")
    assert read_exclusions(tmp_path / "exclude.txt") == set(names)


def test_listed_images_are_left_out_and_the_rest_keep_their_labels(source):
    kept = leave_out(source, ["cat/1.png", "dog/0.png"])
    assert [kept.name(index) for index in range(len(kept))] == [
        "cat/0.png",
        "cat/2.png",
        "dog/1.png",
        "dog/2.png",
    ]
    assert kept.labels.tolist() == [0, 0, 1, 1]


def test_a_list_for_another_set_is_refused_with_a_name_that_would_do(source):
    with pytest.raises(DataError, match=r"elsewhere/1\.png; .*cat/0\.png"):
        leave_out(source, ["elsewhere/1.png"])


def test_an_empty_list_leaves_out_nothing(source):
    assert len(leave_out(source, [])) == len(source)


def test_a_missing_list_is_named_with_the_nearest(tmp_path):
    (tmp_path / "exclude.txt").write_text("")
    with pytest.raises(DataError, match=r"did you mean .*exclude\.txt"):
        read_exclusions(tmp_path / "exclud.txt")


def test_a_name_with_a_line_break_cannot_be_listed(tmp_path):
    with pytest.raises(DataError, match="line break"):
        write_exclusions(["a\nb.png"], tmp_path / "exclude.txt")
