"""Images of one group stay on one side of a split; likely groups are noticed."""

import io

import numpy as np
import pytest
from pictures import altered, photo, save
from PIL import Image

from vitrine.data.sources.grouping import BURST, STEM, group_images, joined_pairs, likely_grouping, merged
from vitrine.data.sources.opening import open_source, open_splits
from vitrine.errors import ConfigError
from vitrine.runs.run_split import split_groups


def names_by_side(splits) -> dict[str, set[str]]:
    return {side: {source.name(row) for row in range(len(source))} for side, source in splits.items()}


@pytest.fixture
def patients(tmp_path):
    """Eight patients with six images each, in two classes."""
    for patient in range(8):
        for number in range(6):
            folder = tmp_path / "scans" / ("ill" if patient % 2 else "well")
            save(folder / f"patient{patient}_{number}.png", photo(100 * patient + number, 16, 16))
    return tmp_path / "scans"


def test_a_regular_expression_keeps_each_patient_on_one_side(patients):
    splits = open_splits(
        patients, val_fraction=0.25, groups=lambda source: group_images(source, r"(patient\d+)_")
    )
    sides = {
        side: {name.split("/")[1].split("_")[0] for name in names}
        for side, names in names_by_side(splits).items()
    }
    assert sides["train"].isdisjoint(sides["val"])
    assert len(sides["val"]) == 2
    scattered = names_by_side(open_splits(patients, val_fraction=0.25))
    assert {n.split("_")[0] for n in scattered["train"]} & {n.split("_")[0] for n in scattered["val"]}


def test_a_column_of_the_manifest_names_the_groups(patients, tmp_path):
    lines = ["path,label,camera"]
    for number, file in enumerate(sorted(patients.rglob("*.png"))):
        lines.append(f"scans/{file.relative_to(patients)},{file.parent.name},{'abcdef'[number % 6]}")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    source = open_source(tmp_path / "table.csv")
    groups = group_images(source, "camera")
    assert len(np.unique(groups)) == 6
    with pytest.raises(ConfigError) as caught:
        group_images(source, "camra")
    assert caught.value.option == "group"
    assert "camera" in str(caught.value)


@pytest.mark.parametrize("by", ["(", "nothing-like-it"])
def test_an_expression_that_is_wrong_or_matches_nothing_is_refused(patients, by):
    with pytest.raises(ConfigError) as caught:
        group_images(open_source(patients), by)
    assert caught.value.option == "group"


def test_patients_in_file_names_are_noticed_and_breeds_are_not(patients, tmp_path):
    likely = likely_grouping(open_source(patients))
    assert likely is not None and likely[0] == STEM
    assert len(np.unique(group_images(open_source(patients), STEM))) == 8
    for breed in ("beagle", "pug"):
        for number in range(6):
            save(tmp_path / "pets" / breed / f"{breed}_{number}.png", photo(number, 16, 16))
    assert likely_grouping(open_source(tmp_path / "pets")) is None


def test_photos_taken_within_seconds_are_a_burst(tmp_path):
    for number in range(12):
        exif = Image.Exif()
        exif.get_ifd(0x8769)[36867] = f"2024:05:01 10:{number // 4 * 10:02d}:{number % 4:02d}"
        buffer = io.BytesIO()
        Image.fromarray(photo(number, 24, 24)).save(buffer, "JPEG", exif=exif)
        path = tmp_path / "shots" / ("a" if number % 2 else "b") / f"{'abcdefghijkl'[number]}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(buffer.getvalue())
    source = open_source(tmp_path / "shots")
    grouping, reason = likely_grouping(source)
    assert grouping == BURST and reason.startswith("12 of 12 photos") and "within 10 s" in reason
    assert np.unique(group_images(source, BURST), return_counts=True)[1].tolist() == [4, 4, 4]


def test_near_duplicates_stay_on_one_side_by_default(tmp_path):
    for number in range(20):
        for label in ("cat", "dog"):
            picture = photo(1000 * (label == "dog") + number, 64, 64)
            name = "abcdefghijklmnopqrst"[number]
            save(tmp_path / "data" / label / f"{name}.png", picture)
            save(tmp_path / "data" / label / f"{name}-copy.jpg", altered(picture))
    splits = open_splits(
        tmp_path / "data",
        val_fraction=0.2,
        groups=lambda source: split_groups(source, None, workers=0),
    )
    stems = {side: {name[:5] for name in names} for side, names in names_by_side(splits).items()}
    assert stems["train"].isdisjoint(stems["val"])
    apart = {side: {n[:5] for n in ns} for side, ns in names_by_side(open_splits(tmp_path / "data")).items()}
    assert apart["train"] & apart["val"]  # without it copies are on both sides


def test_groups_that_share_an_image_become_one():
    assert joined_pairs(5, [(0, 3), (3, 4)]).tolist() == [0, 1, 2, 0, 0]
    joined = merged([np.array([0, 0, 2, 3]), np.array([0, 1, 1, 3])])
    assert joined.tolist() == [0, 0, 0, 3]
