"""Pictures that a user names: files, folders, patterns, lists, tables, standard input."""

import io
import sys
from pathlib import Path

import pytest
from pictures import photo, save

from vitrine.data.sources import picture_paths
from vitrine.data.sources.picture_paths import is_data_set, is_picture, names_pictures, open_pictures
from vitrine.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        save(tmp_path / "inbox" / f"{number}.png", photo(number))
    (tmp_path / "inbox" / "notes.txt").write_text("no picture\n")
    return tmp_path


def named(*places: object) -> list[str]:
    source, _ = open_pictures([str(place) for place in places])
    return [] if source is None else [Path(source.name(index)).name for index in range(len(source))]


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_folder_gives_its_pictures_in_order_and_no_other_file(folder: Path) -> None:
    source, folders = open_pictures([str(folder / "inbox")])
    assert source is not None and folders == [folder / "inbox"]
    assert named(folder / "inbox") == ["0.png", "1.png", "2.png"]
    assert not source.is_labelled


def test_other_files_and_hidden_photos_of_a_folder_are_counted_and_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder / "inbox" / ".hidden.png", photo(4))
    notices: list[str] = []
    monkeypatch.setattr(picture_paths, "notice", notices.append)
    assert named(folder / "inbox") == ["0.png", "1.png", "2.png"]
    [notice] = notices
    assert notice.startswith(str(folder / "inbox"))
    assert "1 hidden (.hidden.png)" in notice and "1 .txt (notes.txt)" in notice


def test_a_picture_that_is_named_twice_comes_once_where_it_was_named_first(folder: Path) -> None:
    assert named(folder / "inbox" / "2.png", folder / "inbox") == ["2.png", "0.png", "1.png"]


def test_a_pattern_gives_what_it_matches(folder: Path) -> None:
    assert named(folder / "inbox" / "[01].png") == ["0.png", "1.png"]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(folder: Path) -> None:
    save(folder / "[0].png", photo(5))
    assert named(folder / "[0].png") == ["[0].png"]


def test_a_pattern_that_matches_nothing_and_an_empty_folder_give_no_source(folder: Path) -> None:
    (folder / "empty").mkdir()
    assert open_pictures([str(folder / "*.jpg")]) == (None, [])
    assert open_pictures([str(folder / "empty")]) == (None, [folder / "empty"])


def test_a_missing_file_is_refused(folder: Path) -> None:
    with pytest.raises(DataError) as refused:
        open_pictures([str(folder / "inbox" / "3.png")])
    assert "3.png" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.txt", "inbox/1.png\n\ninbox/0.png\n"),
        ("table.csv", "path,score\ninbox/1.png,3\ninbox/0.png,4\n"),
        ("table.jsonl", '{"path": "inbox/1.png"}\n{"path": "inbox/0.png"}\n'),
    ],
)
def test_a_list_or_table_names_paths_relative_to_itself(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    assert named(folder / name) == ["1.png", "0.png"]


def test_a_list_keeps_missing_files_so_that_each_gets_its_error(folder: Path) -> None:
    (folder / "list.txt").write_text("inbox/0.png\ninbox/gone.png\n")
    assert named(folder / "list.txt") == ["0.png", "gone.png"]


def test_a_list_written_for_another_folder_is_refused(folder: Path) -> None:
    (folder / "list.txt").write_text("elsewhere/0.png\n")
    with pytest.raises(DataError) as refused:
        open_pictures([str(folder / "list.txt")])
    assert "elsewhere/0.png" in str(refused.value)


@pytest.mark.parametrize("separator", [b"\n", b"\r\n", b"\0"])
def test_standard_input_may_be_paths(folder: Path, monkeypatch: pytest.MonkeyPatch, separator: bytes) -> None:
    paths = [str(folder / "inbox" / f"{number}.png").encode() for number in (2, 0)]
    pipe(monkeypatch, separator.join([*paths, b""]))
    assert named("-") == ["2.png", "0.png"]


def test_standard_input_may_be_one_picture_next_to_named_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, (folder / "inbox" / "1.png").read_bytes())
    source, _ = open_pictures(["-", str(folder / "inbox" / "0.png")])
    assert source is not None
    assert [Path(source.name(index)).name for index in range(2)] == ["-", "0.png"]


def test_a_damaged_picture_on_standard_input_is_no_list_of_paths(folder: Path) -> None:
    whole = (folder / "inbox" / "1.png").read_bytes()
    assert is_picture(whole) and is_picture(whole[:40]) and is_picture(b"\x89\x01\x02")
    assert not is_picture(b"inbox/1.png\ninbox/2.png\n")


def test_an_address_is_a_data_set_unless_a_file_has_that_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert is_data_set("generated:shapes?count=4")
    assert not is_data_set("https://example.org/cat.jpg") and not is_data_set("inbox")
    save(folder / "a:b.png", photo(1))
    assert not is_data_set("a:b.png")
    source, folders = open_pictures(["generated:shapes?count=4&size=16"])
    assert source is not None and len(source) >= 4 and folders == []


def test_words_that_can_only_mean_pictures_are_recognised(folder: Path) -> None:
    assert all(map(names_pictures, ["-", "cat.JPG", "list.csv", "https://example.org/cat.png"]))
    assert names_pictures(str(folder / "inbox" / "*.png"))
    assert not names_pictures("inbox") and not names_pictures(str(folder / "*.jpgx"))
