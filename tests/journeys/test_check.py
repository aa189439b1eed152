"""`vitrine check` from the command line: what it says, writes and exits with."""

import csv
import json
import os

import pytest
from pictures import altered, class_folders, photo, save
from PIL import Image
from rich.cells import cell_len

from vitrine.data.decoding import file_kind

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def vitrine(command_line):
    return command_line("check")


@pytest.fixture
def photos(tmp_path):
    return class_folders(tmp_path / "photos")


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_clean_set_passes_strictly_and_leaves_a_dated_report(vitrine, photos, tmp_path):
    before = snapshot(photos)
    code, out, _ = vitrine("check", photos, "--strict")
    assert code == 0
    assert "12 images" in out and "No problems found" in out
    (folder,) = (tmp_path / "work" / "runs").iterdir()
    assert f"Wrote runs/{folder.name}/report.html" in out and f"Wrote runs/{folder.name}/issues.csv" in out
    assert f"Next: vitrine finetune {photos}" in out
    assert rows_of(folder / "issues.csv") == []
    assert snapshot(photos) == before


BAD = {
    "not an image": ("letter.jpg", lambda tmp: b"Dear Sir", "looks like text"),
    "empty file": ("zero.png", lambda tmp: b"", "0 bytes"),
    "damaged": (
        "cut.jpg",
        lambda tmp: save(tmp / "x.jpg", photo(9, 200, 200)).read_bytes()[:3000],
        "damaged JPEG",
    ),
}


@pytest.mark.parametrize("problem", BAD)
def test_a_bad_file_is_said_by_path_and_reason_and_strict_exits_1(vitrine, photos, tmp_path, problem):
    name, data, words = BAD[problem]
    (photos / "dog" / name).write_bytes(data(tmp_path))
    for flags, expected in (((), 0), (("--strict",), 1)):
        code, out, _ = vitrine("check", photos, "--out", tmp_path / "out", "--overwrite", *flags)
        assert code == expected
        assert f"{problem}: dog/{name}: " in out and words in out
    (row,) = rows_of(tmp_path / "out" / "issues.csv")
    assert (row["path"], row["problem"]) == (f"dog/{name}", problem) and words in row["detail"]


def test_16_bit_alpha_cmyk_palette_grey_and_turned_images_are_converted_and_said_so(
    vitrine, photos, tmp_path
):
    image = Image.fromarray(photo(50))
    image.convert("CMYK").save(photos / "cat" / "c.jpg")
    Image.fromarray(photo(51)).quantize(8).save(photos / "cat" / "p.png")
    Image.fromarray(photo(52)).convert("L").save(photos / "cat" / "g.png")
    Image.fromarray(photo(53)).convert("RGBA").save(photos / "cat" / "a.png")
    Image.fromarray(photo(54)[:, :, 0].astype("uint16") * 257).save(photos / "cat" / "d.png")
    exif = Image.Exif()
    exif[0x0112] = 8
    Image.fromarray(photo(55)).save(photos / "cat" / "t.jpg", exif=exif)
    code, out, _ = vitrine("check", photos, "--strict", "--out", tmp_path / "out")
    assert code == 0
    for words in (
        "EXIF orientation: 1",
        "scaled to 8 bits: 1",
        "alpha composited on white: 1",
        "CMYK converted to RGB: 1",
    ):
        assert words in out


def test_an_empty_class_folder_and_a_class_missing_from_val_are_said_with_the_counts(vitrine, tmp_path):
    root = tmp_path / "set"
    class_folders(root / "train", classes=("cat", "dog", "emu"))
    class_folders(root / "val", classes=("cat", "dog"), first=5000)
    (root / "train" / "yak").mkdir()
    code, out, _ = vitrine("check", root, "--strict", "--out", tmp_path / "out")
    assert code == 1
    assert "empty class: yak: " in out
    assert "missing class: val/emu: " in out and "(6 in train, 0" in out
    table = [line.split() for line in out.splitlines() if line.startswith("  ")]
    assert ["class", "train", "val"] in table and ["emu", "6", "0"] in table and ["yak", "0", "0"] in table


def test_a_wrong_path_is_refused_with_the_nearest(vitrine, photos, tmp_path):
    code, out, err = vitrine("check", tmp_path / "fotos")
    assert code == 2 and out == ""
    assert f"no such folder {tmp_path}/fotos; did you mean {photos}?" in err
    assert not (tmp_path / "work" / "runs").exists()


def test_a_folder_that_may_not_be_listed_is_named(vitrine, photos, monkeypatch):
    real = os.scandir

    def guarded(folder):
        if str(folder).endswith("dog"):
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(os, "scandir", guarded)
    code, _, err = vitrine("check", photos)
    assert code == 2
    assert f"cannot list the folder {photos}/dog: Permission denied" in err


def test_a_folder_without_images_is_refused(vitrine, tmp_path):
    (tmp_path / "none" / "cat").mkdir(parents=True)
    code, _, err = vitrine("check", tmp_path / "none")
    assert code == 2 and "contains no images" in err


def test_nothing_is_written_into_the_data_set(vitrine, photos):
    before = snapshot(photos)
    code, _, err = vitrine("check", photos, "--out", photos / "report")
    assert code == 2 and "nothing is ever written" in err
    assert snapshot(photos) == before


def test_an_existing_report_is_kept_unless_told_otherwise(vitrine, photos, tmp_path):
    assert vitrine("check", photos, "--out", tmp_path / "out")[0] == 0
    code, _, err = vitrine("check", photos, "--out", tmp_path / "out")
    assert code == 2 and "--overwrite" in err


def test_loose_images_are_checked_without_labels(vitrine, tmp_path):
    for seed in range(3):
        save(tmp_path / "loose" / f"{seed}.png", photo(seed))
    save(tmp_path / "loose" / "copy.jpg", altered(photo(1)))
    code, out, err = vitrine("check", tmp_path / "loose", "--out", tmp_path / "out")
    assert code == 0 and "without labels" in err
    assert "4 images" in out and "1 near duplicate" in out


def test_loose_images_with_a_table_beside_them_are_checked_with_its_labels(vitrine, tmp_path):
    names = [save(tmp_path / "loose" / f"{seed}.png", photo(seed)).name for seed in range(4)]
    rows = "".join(f"{name};{'ab'[number % 2]}\n" for number, name in enumerate(names))
    table = tmp_path / "loose" / "labels.csv"
    table.write_text("filename;category\n" + rows)
    code, out, err = vitrine("check", tmp_path / "loose", "--out", tmp_path / "out")
    assert code == 0 and f"Labels are read from {table}" in err
    assert ["a", "2"] in [line.split() for line in out.splitlines()] and "not an image" not in out


def test_json_holds_the_same_for_machines(vitrine, photos, tmp_path):
    (photos / "cat" / "zero.png").write_bytes(b"")
    code, out, _ = vitrine("check", photos, "--json", "--strict", "--out", tmp_path / "out")
    result = json.loads(out)
    assert code == 1
    assert result["problems"] == {"empty file": 1} and result["num_set_aside"] == 1
    assert result["issues"][0]["path"] == "cat/zero.png"
    assert result["counts"] == {"all": {"cat": 7, "dog": 6}}


def test_a_typo_in_an_option_is_refused(vitrine, photos, tmp_path):
    code, _, err = vitrine("check", photos, "--stric")
    assert code == 2 and "--strict" in err
    assert not (tmp_path / "work" / "runs").exists()


def test_names_in_any_script_and_broken_bytes_are_shown(vitrine, tmp_path):
    root = class_folders(tmp_path / "set", classes=("кошка", "犬"))
    with open(os.fsencode(root) + b"/\xe7\x8a\xac/caf\xe9.png", "wb"):  # noqa: PTH123 (not UTF-8)
        pass
    code, out, _ = vitrine("check", root, "--strict", "--out", tmp_path / "out")
    assert code == 1
    assert "кошка" in out and r"犬/caf\xe9.png" in out
    assert r"caf\xe9.png" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_a_folder_of_a_single_class_is_named_as_a_problem(vitrine, tmp_path):
    folders = class_folders(tmp_path / "alone", classes=("cat",))
    code, out, _ = vitrine("check", folders)
    assert code == 0
    assert "single class: cat: " in out


def test_photos_of_phones_are_skipped_with_advice_where_heic_cannot_be_read(
    vitrine, photos, tmp_path, monkeypatch
):
    monkeypatch.setattr(file_kind, "pillow_heif", None)
    (photos / "cat" / "IMG_1.HEIC").write_bytes(b"....ftypheic")
    (photos / "cat" / "notes.txt").write_text("mine")
    code, out, _ = vitrine("check", photos, "--out", tmp_path / "out")
    assert code == 0 and "1 .heic (cat/IMG_1.HEIC)," in out and "1 .txt (cat/notes.txt)" in out
    assert "vitrine[heic]" in out.replace("\n", " ")
    assert "vitrine[heic]" in (tmp_path / "out" / "report.html").read_text()
    phone = tmp_path / "phone" / "dog"
    phone.mkdir(parents=True)
    (phone / "IMG_1.HEIC").write_bytes(b"....ftypheic")
    code, _, err = vitrine("check", phone.parent)
    assert code == 2 and "1 .heic, install pillow-heif" in err and str(phone.parent) in err


def test_what_comes_next_is_what_training_would_refuse_to_begin_without(vitrine, photos, tmp_path):
    (photos / "owl").mkdir()
    out = vitrine("check", photos)[1]
    assert f"Next: vitrine finetune {photos}" in out
    out = vitrine("check", photos / "cat")[1]
    assert "Next: put" in out and "then: vitrine finetune" in out


def test_numbers_stand_below_each_other_beside_names_of_wide_characters(vitrine, tmp_path):
    class_folders(tmp_path / "photos")
    (tmp_path / "photos" / "cat").rename(tmp_path / "photos" / "阿比西尼亚猫")
    table = [line for line in vitrine("check", tmp_path / "photos")[1].splitlines() if line.endswith("  6")]
    assert len(table) == 2 and len({cell_len(line) for line in table}) == 1


def test_escape_sequences_in_names_never_reach_the_terminal(vitrine, tmp_path):
    root = class_folders(tmp_path / "photos", classes=("ca\x1b[31mt", "do\x9bg"))
    (root / "ca\x1b[31mt" / "x\x1b]0;title\x07.jpg").write_bytes(b"no picture")
    (root / "ca\x1b[31mt" / "two\nlines.jpg").write_bytes(b"no picture")
    code, out, err = vitrine("check", root, "--out", tmp_path / "out")
    assert code == 0 and "\\x1b]0;title\\x07.jpg" in out
    assert not any((ord(letter) < 32 and letter != "\n") or 127 <= ord(letter) < 160 for letter in out + err)
    assert "lines.jpg" not in [line.split(":")[0].strip() for line in out.splitlines()]
    code, out, err = vitrine("check", tmp_path / "no\x1b[2Jsuch")
    assert code == 2 and "\x1b" not in out + err


def test_a_check_started_inside_the_photos_writes_beside_them(vitrine, photos, monkeypatch):
    monkeypatch.chdir(photos)
    before = snapshot(photos)
    code, out, _ = vitrine("check", ".")
    assert code == 0 and "Wrote ../runs/" in out
    assert snapshot(photos) == before and list((photos.parent / "runs").glob("*-check/report.html"))
