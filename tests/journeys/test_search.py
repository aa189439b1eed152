"""From pictures to an index: similar pictures, near-duplicates, clusters, and an index brought up to date."""

import csv

import pytest
import torch
from pictures import photo, save
from PIL import Image

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError

from .commandline import refusal

pytest.importorskip("faiss")
pytest.importorskip("pyarrow")
CPU = {"device": "cpu"}


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """Twenty photos, one of them twice with other compression, one damaged, and a model of random weights."""
    desk = tmp_path_factory.mktemp("desk")
    for number in range(20):
        save(desk / "photos" / f"{number:02d}.png", photo(number, 40, 36))
    with Image.open(desk / "photos" / "07.png") as image:
        image.convert("RGB").save(desk / "photos" / "copy.jpg", quality=92)
    (desk / "photos" / "bad.png").write_text("no picture")
    torch.manual_seed(0)
    model = vitrine.create_model(
        "ViT", width=16, depth=1, num_heads=1, mlp_width=16, image_size=16, patch_size=8
    )
    vitrine.save(model, desk / "model", preprocess=Preprocess(size=(16, 16)))
    return desk


@pytest.fixture(scope="module")
def index(desk):
    return vitrine.index(desk / "model", desk / "photos", out=desk / "photos.index", workers=0, **CPU)


def rows_of(folder):
    with (folder / "matches.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_photo_finds_itself_and_its_copy_first(desk, index):
    assert (index.num_pictures, index.num_added, index.num_unreadable) == (21, 21, 1)
    photo = desk / "photos" / "07.png"
    result = vitrine.search(desk / "photos.index", photo, count=3, out=desk / "found", **CPU)
    (group,) = result.groups
    assert [match.path.rpartition("/")[2] for match in group.matches[:2]] == ["07.png", "copy.jpg"]
    assert group.matches[0].cosine == pytest.approx(1, abs=1e-3)
    assert [row["path"] for row in rows_of(desk / "found")] == [match.path for match in group.matches]
    page = (desk / "found" / "search.html").read_text()
    assert page.count("data:image/") == 4 and "copy.jpg" in page


def test_near_duplicates_and_clusters_come_from_the_same_index(desk, index):
    result = vitrine.search(desk / "photos.index", duplicates=0.999, out=desk / "copies", **CPU)
    groups = [{match.path.rpartition("/")[2] for match in group.matches} for group in result.groups]
    assert {"07.png", "copy.jpg"} in groups
    clustered = vitrine.search(desk / "photos.index", clusters=3, out=desk / "clusters", **CPU)
    rows = rows_of(desk / "clusters")
    assert len(rows) == 21 and {row["cluster"] for row in rows} == {"0", "1", "2"}
    sizes = [sum(row["cluster"] == name for row in rows) for name in ("0", "1", "2")]
    assert sizes == sorted(sizes, reverse=True) and [group.total for group in clustered.groups] == sizes
    together = {row["cluster"] for row in rows if row["path"].endswith(("07.png", "copy.jpg"))}
    assert len(together) == 1
    for options in ({}, {"duplicates": 0.9, "clusters": 2}):
        with refusal(ConfigError, "pictures or words", "duplicates and clusters"):
            vitrine.search(desk / "photos.index", **options)


def test_only_new_and_changed_pictures_are_computed_again(desk, monkeypatch):
    photos = desk / "growing"
    for number in range(5):
        save(photos / f"{number}.png", photo(number, 40, 36))
    options = {"out": desk / "growing.index", "workers": 0, **CPU}
    assert vitrine.index(desk / "model", photos, **options).num_added == 5
    same = vitrine.index(desk / "model", photos, **options)
    assert (same.num_added, same.num_removed, same.num_unchanged) == (0, 0, 5)
    save(photos / "5.png", photo(5, 40, 36))
    save(photos / "0.png", photo(50, 40, 36))
    (photos / "1.png").unlink()
    changed = vitrine.index(desk / "model", photos, **options)
    assert (changed.num_added, changed.num_removed, changed.num_unchanged, changed.num_pictures) == (
        2,
        2,
        3,
        5,
    )
    result = vitrine.search(desk / "growing.index", photos / "0.png", count=10, out=desk / "grown", **CPU)
    names = [match.path.rpartition("/")[2] for match in result.groups[0].matches]
    assert names[0] == "0.png" and sorted(names) == ["0.png", "2.png", "3.png", "4.png", "5.png"]
    torch.manual_seed(1)
    other = vitrine.create_model(
        "ViT", width=16, depth=1, num_heads=1, mlp_width=16, image_size=16, patch_size=8
    )
    vitrine.save(other, desk / "other", preprocess=Preprocess(size=(16, 16)))
    with pytest.raises(ConfigError, match="holds vectors of another model"):
        vitrine.index(desk / "other", photos, **options)


def test_the_parts_of_a_large_job_become_an_index_without_computing_anything(desk, monkeypatch):
    vitrine.embed(desk / "model", desk / "photos", out=desk / "parts", part_size=8, workers=0, **CPU)
    built = vitrine.index(desk / "parts", out=desk / "parts.index")
    assert (built.num_pictures, built.num_unreadable) == (21, 1)
    assert vitrine.index(desk / "parts", out=desk / "parts.index").num_added == 0
    name = desk / "photos" / "07.png"
    result = vitrine.search(desk / "parts.index", name, count=2, out=desk / "of-parts", **CPU)
    assert [match.path.rpartition("/")[2] for match in result.groups[0].matches] == ["07.png", "copy.jpg"]
