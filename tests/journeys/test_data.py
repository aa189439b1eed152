"""The data room from the command line."""

import json

import pytest
from journeys.commandline import inside
from unit.data.pictures import class_folders


def test_a_folder_becomes_shards_and_says_what_to_do_next(tmp_path):
    class_folders(tmp_path / "photos", {"ant": 3, "bee": 3})
    done = inside("shard", str(tmp_path / "photos"), str(tmp_path / "shards"))
    assert done.returncode == 0, done.stderr
    assert "6 images in 1 shard" in done.stdout and "Next: vitrine check" in done.stdout
    again = inside("shard", str(tmp_path / "photos"), str(tmp_path / "shards"), "--json")
    assert json.loads(again.stdout)["images"] == {"all": 6}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("photo", "no such folder {root}/photo; did you mean {root}/photos?"),
        ("photos/ant/00.png", "is not a data set; pass a folder"),
        ("empty", "empty contains no images"),
    ],
)
def test_a_wrong_path_is_one_sentence_and_exit_code_two(tmp_path, given, message):
    class_folders(tmp_path / "photos", {"ant": 1})
    (tmp_path / "empty").mkdir()
    done = inside("shard", str(tmp_path / given), str(tmp_path / "out"))
    assert done.returncode == 2
    assert message.format(root=tmp_path) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
