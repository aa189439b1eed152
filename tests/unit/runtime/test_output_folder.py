import threading

import pytest

from vitrine.errors import ConfigError, TryOption
from vitrine.runtime.output_folder import is_inside, new_output_folder, removed_if_empty


def test_without_a_name_each_run_has_its_own_dated_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = {new_output_folder(None, verb="check", files=["report.html"]) for _ in range(3)}
    assert len(folders) == 3
    assert all(
        folder.parent.name == "runs" and "check" in folder.name and folder.is_dir() for folder in folders
    )


def test_two_that_start_in_the_same_second_never_share_a_dated_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    together, folders = threading.Barrier(8), []

    def start() -> None:
        together.wait()
        folder = new_output_folder(None, verb="check", files=["issues.csv"])
        (folder / "issues.csv").touch()  # the next in the same second gets another folder, and is not refused
        folders.append(folder)

    for _ in range(5):
        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(folders)) == len(folders) == 40


def test_a_dangling_link_in_the_place_of_runs_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to(tmp_path / "unplugged")
    with pytest.raises(ConfigError, match="cannot create the folder"):
        new_output_folder(None, verb="check", files=[])


def test_a_folder_inside_the_data_set_is_refused_even_through_a_link(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    for out in (tmp_path / "photos", tmp_path / "photos" / "out", tmp_path / "link" / "out"):
        with pytest.raises(ConfigError, match="nothing is ever written") as caught:
            new_output_folder(out, verb="check", files=[], never_in=[tmp_path / "photos"])
        assert caught.value.option == "out"
    assert list((tmp_path / "photos").iterdir()) == []


def test_a_folder_that_holds_results_is_refused_unless_overwriting(tmp_path):
    (tmp_path / "issues.csv").write_text("old")
    with pytest.raises(ConfigError, match=r"already holds issues\.csv") as caught:
        new_output_folder(tmp_path, verb="check", files=["issues.csv"])
    assert caught.value.advice == (TryOption("overwrite", "to replace it", True),)
    assert new_output_folder(tmp_path, verb="check", files=["issues.csv"], is_overwriting=True) == tmp_path


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot create the folder"):
        new_output_folder(tmp_path / "file" / "out", verb="check", files=[])


def test_beside_a_file_is_not_inside_it_but_the_file_itself_is(tmp_path):
    (tmp_path / "train.parquet").write_text("")
    assert not is_inside(tmp_path / "runs", tmp_path / "train.parquet")
    assert is_inside(tmp_path / "train.parquet", tmp_path / "train.parquet")


def test_what_is_interrupted_before_it_wrote_anything_leaves_no_folder(tmp_path):
    for name, is_kept in (("empty", False), ("begun", True)):
        folder = tmp_path / name
        folder.mkdir()
        with pytest.raises(KeyboardInterrupt), removed_if_empty(folder):
            if is_kept:
                (folder / "half.csv").touch()
            raise KeyboardInterrupt
        assert folder.exists() == is_kept


@pytest.mark.parametrize("place", [".", "cat"])
def test_results_go_beside_the_data_set_that_a_command_is_started_in(tmp_path, monkeypatch, place):
    data = tmp_path / "photos"
    (data / "cat").mkdir(parents=True)
    monkeypatch.chdir(data / place)
    folder = new_output_folder(None, verb="check", files=["report.html"], never_in=[data])
    assert folder.is_dir() and folder.resolve().parent == tmp_path / "runs"
    assert not (data / "runs").exists() and not (data / "cat" / "runs").exists()
