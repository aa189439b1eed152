import base64
import io
import re
from pathlib import Path

import pytest
from pictures import altered, class_folders, photo, save
from PIL import Image

from vitrine.data.auditing.overlap import find_overlap
from vitrine.data.auditing.scan import scan
from vitrine.data.sources.opening import open_kind, open_source
from vitrine.reports import data_pages
from vitrine.reports.data_pages import render_overlap, render_scan
from vitrine.reports.pages import thumbnail


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def splits(tmp_path):
    root = tmp_path / "set"
    class_folders(root / "train", classes=("<b>cat</b>", "dog"))
    class_folders(root / "val", classes=("dog",), first=5000)
    whole = save(tmp_path / "whole.jpg", photo(1, 300, 400)).read_bytes()
    (root / "train" / "dog" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "train" / "dog" / "<script>.png").write_bytes(b"")
    save(root / "val" / "dog" / "leak.jpg", altered(photo(1002)))
    return open_kind(str(root))


def test_the_page_shows_bad_files_pairs_classes_and_samples(splits):
    page = render_scan(scan(splits), splits)
    for words in ("Files that cannot be read", "Leaks between splits", "Other problems", "Samples"):
        assert words in page
    assert "train/dog/cut.jpg" in page and "val/dog/leak.jpg" in page
    assert page.count("<img") >= 2 + 1 + 12  # the pair, what is left of the cut file, samples


def test_a_class_without_images_has_a_row_in_the_table_and_no_empty_samples(tmp_path):
    root = class_folders(tmp_path / "one", classes=("dog", "owl"))
    (root / "nobody").mkdir()
    splits = open_kind(str(root))
    page = render_scan(scan(splits), splits)
    assert "<td>nobody</td>" in page and "<h3>owl</h3>" in page and "<h3>nobody</h3>" not in page


def test_every_table_of_every_page_scrolls_on_a_narrow_screen_instead_of_widening_it():
    templates = sorted((Path(data_pages.__file__).parent / "templates").glob("*.j2"))
    assert len(templates) > 10
    for template in templates:
        text = template.read_text()
        tables = [text[: found.start()].rstrip() for found in re.finditer("<table", text)]
        assert all(re.search(r'<div class="scroll[^>]*>$', before) for before in tables), template.name


def test_every_kind_of_problem_is_shown_somewhere_on_the_page(tmp_path):
    root = class_folders(tmp_path / "one", classes=("dog",))
    splits = open_kind(str(root))
    page = render_scan(report := scan(splits), splits)
    assert report.problems == {"single class": 1}
    assert "all images are of dog" in page


def test_names_from_the_data_set_cannot_inject_markup(splits):
    page = render_scan(scan(splits), splits)
    assert "<script>" not in page and "<b>cat</b>" not in page
    assert "&lt;script&gt;.png" in page and "&lt;b&gt;cat&lt;/b&gt;" in page


def test_the_page_loads_nothing_from_elsewhere_and_knows_dark(splits):
    page = render_scan(scan(splits), splits)
    assert set(re.findall(r'(?:src|href)="([a-z]+):', page)) == {"data"}
    assert "url(" not in page and "@import" not in page
    assert "prefers-color-scheme: dark" in page


def test_a_page_shows_no_more_pictures_than_its_limits(tmp_path, monkeypatch):
    root = class_folders(tmp_path / "set", each=12)
    for number in range(9):
        (root / "cat" / f"bad{number}.png").write_bytes(b"")
        (root / "dog" / f"copy{number}.png").write_bytes((root / "dog" / f"{number}.png").read_bytes())
    for name in ("MOST_BAD", "MOST_PAIRS", "MOST_SAMPLES_A_CLASS"):
        monkeypatch.setattr(data_pages, name, 3)
    splits = open_kind(str(root))
    page = render_scan(scan(splits), splits)
    assert page.count("<img") == 3 * 2 + 2 * 3
    assert page.count("no picture") == 3
    assert "The first 3 of 9" in page and "the first 3 are shown" in page


def test_a_picture_is_small_and_a_cut_jpeg_shows_what_is_left(tmp_path):
    pytest.importorskip("simplejpeg")
    data = save(tmp_path / "set" / "a" / "large.jpg", photo(1, 600, 900)).read_bytes()
    (tmp_path / "set" / "a" / "rest.jpg").write_bytes(data[: len(data) // 2])
    (tmp_path / "set" / "a" / "zero.jpg").write_bytes(b"")
    source = open_source(tmp_path / "set")
    for index in (0, 1):
        kind, _, text = thumbnail(source, index).partition(",")
        assert kind == "data:image/jpeg;base64"
        assert max(Image.open(io.BytesIO(base64.b64decode(text))).size) == 112
    assert thumbnail(source, 2) is None


def test_the_page_of_pairs_shows_the_doubtful_ones_first(tmp_path):
    train = class_folders(tmp_path / "train")
    save(train / "cat" / "near.jpg", altered(photo(5000)))
    test = class_folders(tmp_path / "test", first=5000)
    (train / "dog" / "same.png").write_bytes((test / "dog" / "3.png").read_bytes())
    sources = open_source(train), {"test": open_source(test)}
    page = render_overlap(find_overlap(*sources), *sources)
    assert "2 of 14 training images" in page
    assert page.index("cat/near.jpg") < page.index("dog/same.png")


def test_unlabelled_images_have_a_page_too(tmp_path):
    for seed in range(3):
        save(tmp_path / "loose" / f"{seed}.png", photo(seed))
    splits = {"all": open_source(tmp_path / "loose", is_labelled=False)}
    page = render_scan(scan(splits), splits)
    assert "No problems found" in page and page.count("<img") == 3
