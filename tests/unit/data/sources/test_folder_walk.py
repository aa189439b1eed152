"""Files of a folder that are no images are counted and named, with how to read the photos among them."""

from pathlib import Path

from pictures import photo, save

from vitrine.data.sources.folder_walk import list_images, photo_advice, skipped_files, skipped_text


def test_files_of_other_kinds_are_counted_by_kind_and_the_first_are_named(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "one.png", photo(0))
    for name in ("a.mp4", "b.mp4", "raw.cr2", "notes.txt"):
        (tmp_path / name).write_bytes(b"\0\1")
    assert list(list_images(tmp_path)) == ["cat/one.png"]
    skipped = skipped_files(tmp_path)
    assert skipped.counts == {".mp4": 2, ".cr2": 1, ".txt": 1}
    assert skipped.names[".mp4"] == ["a.mp4", "b.mp4"]


def test_a_file_that_is_used_after_all_is_not_counted(tmp_path: Path) -> None:
    for name in ("labels.csv", "more.csv", "notes.txt"):
        (tmp_path / name).write_text("text")
    skipped = skipped_files(tmp_path)
    skipped.remove(".csv", "labels.csv")
    assert (skipped.counts[".csv"], skipped.names[".csv"]) == (1, ["more.csv"])
    skipped.remove(".csv", "more.csv")
    skipped.remove(".csv", "never.csv")
    skipped.remove(".txt", "../notes.txt")  # outside the folder: it was not counted
    assert skipped.counts == {".txt": 1}


def test_the_text_names_some_files_and_says_how_photos_and_videos_are_read() -> None:
    text = skipped_text({".txt": 3, ".heic": 1200}, {".txt": ["a.txt", "b.txt"], ".heic": []})
    assert "3 .txt (a.txt, b.txt, ...)" in text
    assert text.count("1,200 .heic") == 2 and "to read 1,200 .heic" in text
    raw, videos = photo_advice({".nef": 2, ".mov": 1, ".txt": 9})
    assert raw.endswith("2 .nef") and "ffmpeg" in videos and "1 .mov" in videos
    assert photo_advice({".txt": 9}) == []


def test_a_link_to_a_folder_above_is_not_followed(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "one.png", photo(0))
    (tmp_path / "cat" / "all").symlink_to(tmp_path)
    assert list(list_images(tmp_path)) == ["cat/one.png"]
