import csv
import re

import numpy as np
import pytest
from pictures import altered, class_folders, photo, save
from PIL import Image

from vitrine.data.auditing.issues import Issue, write_issues
from vitrine.data.auditing.scan import scan, skip_unreadable
from vitrine.data.decoding import file_kind
from vitrine.data.sources.opening import open_kind, open_splits
from vitrine.runtime.progress import listening


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))


class Remarks:
    def __init__(self):
        self.said = []

    def start(self, what, total): ...
    def advance(self, steps): ...
    def finish(self): ...
    def notice(self, text, advice=()):
        self.said.append(text)


def scan_folder(root, **options):
    splits = open_kind(str(root))
    return scan(splits, **options), splits


def issues_of(report, problem):
    return [issue for issue in report.issues if issue.problem == problem]


def test_a_clean_set_has_no_issues(tmp_path):
    class_folders(tmp_path / "set" / "train")
    class_folders(tmp_path / "set" / "val", first=5000)
    report, _ = scan_folder(tmp_path / "set")
    assert report.issues == () and report.problems == {} and report.num_bad == 0
    assert report.counts == {"train": (6, 6), "val": (6, 6)}
    assert (report.smallest, report.median, report.largest) == ((48, 64),) * 3


def bomb_png(height: int, width: int) -> bytes:
    """A PNG whose header claims a size; nothing of that size is in it."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 100))
        + chunk(b"IEND", b"")
    )


def cut_jpeg(tmp_path) -> bytes:
    data = save(tmp_path / "whole.jpg", photo(1, 200, 300), quality=90).read_bytes()
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("name", "data", "problem", "words"),
    [
        ("zero.jpg", lambda _: b"", "empty file", "0 bytes"),
        ("text.jpg", lambda _: b"this is a letter", "not an image", "looks like text"),
        ("page.png", lambda _: b"<html>not found</html>", "not an image", "HTML"),
        ("zeros.png", lambda _: bytes(500), "not an image", "only zero bytes"),
        ("cut.jpg", cut_jpeg, "damaged", "damaged JPEG"),
        ("bomb.png", lambda _: bomb_png(60_000, 60_000), "too large", "3600000000 pixels"),
        ("wide.png", lambda _: bomb_png(10, 100_000), "too large", "10 x 100000"),
        ("картина 猫 😀.png", lambda _: b"", "empty file", "0 bytes"),
    ],
)
def test_a_bad_file_is_named_with_its_reason(tmp_path, name, data, problem, words):
    class_folders(tmp_path / "set")
    (tmp_path / "set" / "cat" / name).write_bytes(data(tmp_path))
    report, splits = scan_folder(tmp_path / "set")
    (issue,) = report.issues
    assert (issue.path, issue.problem) == (f"cat/{name}", problem)
    assert words in issue.detail
    listener = Remarks()
    with listening(listener):
        kept = skip_unreadable(splits, report)
    assert len(kept["all"]) == len(splits["all"]) - 1
    assert all(kept["all"].name(index) != issue.path for index in range(len(kept["all"])))
    [said] = listener.said
    assert "1 of 13 files" in said and said.endswith(f"1 {problem}")


def test_a_link_that_leads_nowhere_is_unreadable(tmp_path):
    class_folders(tmp_path / "set")
    (tmp_path / "set" / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    report, _ = scan_folder(tmp_path / "set")
    (issue,) = report.issues
    assert issue.problem == "unreadable" and "No such file" in issue.detail


def test_a_folder_that_links_back_to_itself_is_listed_once(tmp_path):
    class_folders(tmp_path / "set")
    (tmp_path / "set" / "cat" / "loop").symlink_to(tmp_path / "set" / "cat")
    report, _ = scan_folder(tmp_path / "set")
    assert report.num_images == 12 and report.issues == ()


def test_unusual_kinds_are_converted_and_counted_and_are_no_problem(tmp_path):
    root = class_folders(tmp_path / "set")
    pixels = photo(77)
    Image.fromarray(pixels).convert("CMYK").save(root / "cat" / "cmyk.jpg")
    Image.fromarray(photo(78)).quantize(16).save(root / "cat" / "palette.png")
    Image.fromarray(photo(79)).convert("L").save(root / "cat" / "grey.png")
    Image.fromarray(np.dstack([photo(80), np.full((48, 64), 128, np.uint8)])).save(root / "cat" / "alpha.png")
    Image.fromarray(photo(81)[:, :, 0].astype(np.uint16) * 257).save(root / "cat" / "deep.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(photo(82)).save(root / "cat" / "turned.jpg", exif=exif)
    frames = [Image.fromarray(photo(seed)) for seed in (83, 84)]
    frames[0].save(root / "cat" / "film.webp", save_all=True, append_images=frames[1:])
    report, _ = scan_folder(root)
    assert report.issues == ()
    conversions = {
        "rotated by EXIF orientation": 1,
        "16-bit or deeper, scaled to 8 bits": 1,
        "alpha composited on white": 1,
        "CMYK converted to RGB": 1,
        "palette converted to RGB": 1,
        "grey expanded to RGB": 2,
        "animated, first frame used": 1,
    }
    assert report.converted == conversions


def test_copies_are_told_apart_by_where_they_are_and_what_they_are_called(tmp_path):
    root = tmp_path / "set"
    class_folders(root / "train")
    class_folders(root / "val", first=5000)
    same = (root / "train" / "cat" / "0.png").read_bytes()
    (root / "train" / "cat" / "again.png").write_bytes(same)
    (root / "train" / "dog" / "wrong.png").write_bytes(same)
    save(root / "train" / "dog" / "near.jpg", altered(photo(1001)))
    save(root / "val" / "dog" / "leak.jpg", altered(photo(1002)))
    report, _ = scan_folder(root)
    assert report.problems == {"leak": 1, "conflicting labels": 1, "exact duplicate": 1, "near duplicate": 1}
    (leak,) = issues_of(report, "leak")
    assert leak.path == "val/dog/leak.jpg" and "train/dog/2.png" in leak.detail
    (conflict,) = issues_of(report, "conflicting labels")
    assert conflict.path == "train/dog/wrong.png"
    assert re.search(r"train/cat/0\.png, .*cat, not dog", conflict.detail)
    assert issues_of(report, "exact duplicate")[0].path == "train/cat/again.png"
    near = issues_of(report, "near duplicate")[0]
    assert {near.path, near.detail.split()[-1]} == {"train/dog/near.jpg", "train/dog/1.png"}


def test_near_copies_of_one_photo_are_one_group_and_leaks_are_told_one_by_one(tmp_path):
    root = tmp_path / "set"
    class_folders(root / "train")
    class_folders(root / "val", first=5000)
    for quality in (90, 70, 50):
        save(root / "train" / "dog" / f"again-{quality}.jpg", photo(1001), quality=quality)
    save(root / "val" / "dog" / "leak.jpg", photo(1001), quality=60)
    report, _ = scan_folder(root)
    assert report.problems == {"leak": 4, "near duplicate": 3}  # of four images: not all six pairs of them
    linked = {pair.first.path for pair in report.duplicates} | {
        pair.second.path for pair in report.duplicates
    }
    assert len(linked) == 5


def test_without_near_duplicates_only_equal_files_are_found(tmp_path):
    root = class_folders(tmp_path / "set")
    save(root / "cat" / "near.jpg", altered(photo(1)))
    (root / "cat" / "same.png").write_bytes((root / "cat" / "2.png").read_bytes())
    report, _ = scan_folder(root, is_near=False)
    assert report.problems == {"exact duplicate": 1}


def test_empty_missing_and_tiny_classes_are_named_with_their_counts(tmp_path):
    root = tmp_path / "set"
    class_folders(root / "train", classes=("bird", "cat"))
    class_folders(root / "val", classes=("bird",), first=5000)
    (root / "train" / "empty").mkdir()
    class_folders(root / "train", classes=("rare",), each=2, first=9000)
    class_folders(root / "val", classes=("rare",), each=1, first=9500)
    report, _ = scan_folder(root)
    assert [(issue.path, issue.problem) for issue in report.issues] == [
        ("empty", "empty class"),
        ("val/cat", "missing class"),
        ("rare", "tiny class"),
    ]
    detail = issues_of(report, "missing class")[0].detail
    assert detail.startswith("val ") and "of cat" in detail
    assert re.findall(r"\d+ in \w+", detail) == ["6 in train", "0 in val"]
    assert report.classes == ("bird", "cat", "empty", "rare")


def test_damaged_shards_are_named(tmp_path):
    from vitrine.data.sources.shard_writing import write_shards

    class_folders(tmp_path / "set")
    write_shards(open_kind(str(tmp_path / "set")), tmp_path / "shards")
    report, _ = scan_folder(tmp_path / "shards")
    assert report.issues == () and report.num_images == 12
    (tar,) = (tmp_path / "shards").rglob("*.tar")
    tar.write_bytes(tar.read_bytes()[: tar.stat().st_size // 2])
    report, _ = scan_folder(tmp_path / "shards")
    (issue,) = issues_of(report, "damaged shard")
    assert issue.path.endswith(".tar") and "truncated" in issue.detail
    assert report.num_bad > 0


def test_issues_are_written_as_csv_that_any_reader_takes(tmp_path):
    issues = (Issue("a, b\udcff.jpg", "damaged", 'says "no"'), Issue("猫.png", "empty file", "0 bytes"))
    write_issues(issues, tmp_path / "out" / "issues.csv")
    with (tmp_path / "out" / "issues.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["path", "problem", "detail"],
        ["a, b\\xff.jpg", "damaged", 'says "no"'],
        ["猫.png", "empty file", "0 bytes"],
    ]


def test_pictures_of_extreme_shape_are_named(tmp_path):
    root = class_folders(tmp_path / "set")
    Image.fromarray(photo(1)[:1].repeat(1, axis=0)).resize((2000, 1)).save(root / "cat" / "line.png")
    report, _ = scan_folder(root)
    (issue,) = issues_of(report, "extreme shape")
    assert issue.path == "cat/line.png" and "1 x 2000" in issue.detail
    assert report.num_bad == 0


def test_a_file_that_cannot_be_opened_is_called_unreadable(tmp_path, monkeypatch):
    root = class_folders(tmp_path / "set")
    (root / "cat" / "loop.png").symlink_to(root / "cat" / "loop.png")
    report, _ = scan_folder(root)
    (issue,) = issues_of(report, "unreadable")
    assert issue.path == "cat/loop.png"


def test_files_that_are_not_taken_for_images_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(file_kind, "pillow_heif", None)
    root = class_folders(tmp_path / "set")
    for name in ("a.HEIC", "b.heic", "notes.txt", "README", ".hidden"):
        (root / "cat" / name).write_bytes(b"x")
    report, _ = scan_folder(root)
    assert report.unused.counts == {".heic": 2, ".txt": 1, "no extension": 1, "hidden": 1}
    assert report.unused.names["hidden"] == ("cat/.hidden",) and report.issues == ()


def test_photos_in_no_class_folder_are_counted_and_named(tmp_path):
    root = class_folders(tmp_path / "set")
    save(root / "loose.jpg", photo(90))
    (root / "loose.jpg").rename(root / "loose")
    save(root / "cat" / ".secret.png", photo(91))
    (root / "cat" / "._mac.jpg").write_bytes(b"attributes")
    report, _ = scan_folder(root)
    assert [issue.path for issue in issues_of(report, "unlabelled image")] == ["loose"]
    assert [issue.path for issue in issues_of(report, "hidden image")] == ["cat/.secret.png"]
    assert report.unused.counts["hidden"] == 2


def test_photos_beside_the_splits_are_counted_when_only_training_images_are_scanned(tmp_path):
    root = class_folders(tmp_path / "set")
    save(root / "loose.png", photo(90))
    report = scan(open_splits(root))
    assert report.unused.unlabelled == ("loose.png",)


def test_pictures_of_one_pixel_are_named(tmp_path):
    root = class_folders(tmp_path / "set")
    Image.fromarray(photo(1)).resize((1, 1)).save(root / "cat" / "counter.png")
    report, _ = scan_folder(root)
    (issue,) = issues_of(report, "tiny image")
    assert issue.path == "cat/counter.png" and "1 x 1" in issue.detail


def test_a_photo_is_known_by_its_content_whatever_its_name(tmp_path):
    root = class_folders(tmp_path / "set")
    before, _ = scan_folder(root)
    for number, (kind, name) in enumerate([("jpg", "plain"), ("png", "saved.txt"), ("webp", "photo.old"),
                                           ("gif", "moved.tmp"), ("bmp", "x.data"), ("tif", "y.raw")]):  # fmt: skip
        save(tmp_path / f"photo.{kind}", photo(60 + number)).rename(root / "cat" / name)
    (root / "cat" / "BMnotes").write_text("BM is how this text begins, and P6 is in it")
    report, _ = scan_folder(root)
    assert report.num_images == before.num_images + 6 and report.num_bad == 0
    assert report.unused.counts == {"no extension": 1}


@pytest.mark.parametrize("kind", ["png", "jpg", "gif", "webp", "tif", "bmp"])
def test_no_damage_of_any_kind_stops_the_scan(tmp_path, kind):
    rng = np.random.default_rng(0)
    data = save(tmp_path / f"whole.{kind}", photo(5)).read_bytes()
    (tmp_path / "set" / "a").mkdir(parents=True)
    for number in range(40):
        damaged = bytearray(data)
        for place in rng.integers(0, min(len(damaged), 400 if number % 2 else len(damaged)), 6):
            damaged[place] = rng.integers(256)
        (tmp_path / "set" / "a" / f"{number}.{kind}").write_bytes(
            bytes(damaged[: rng.integers(20, len(data) + 1)])
        )
    report, _ = scan_folder(tmp_path / "set", is_near=False)
    assert report.num_images == 40 and report.num_bad > 10
    assert set(report.problems) <= {
        "not an image",
        "damaged",
        "too large",
        "unreadable",
        "exact duplicate",
        "single class",
        "tiny class",
    }


@pytest.mark.parametrize(("num_owls", "is_reported"), [(2, True), (3, False)])
def test_classes_are_uneven_from_four_times_as_many_images_on(tmp_path, num_owls, is_reported):
    for number in range(8 + num_owls):
        save(tmp_path / "set" / ("dog" if number < 8 else "owl") / f"{number}.png", photo(number))
    report, _ = scan_folder(tmp_path / "set")
    assert bool(issues_of(report, "uneven classes")) == is_reported
