import numpy as np
import pytest
from pictures import altered, photo
from PIL import Image

from vitrine.data.auditing import near_duplicates as neighbours
from vitrine.data.auditing.fingerprints import (
    aligned_similarity,
    colour_cells,
    colour_difference,
    finely_aligned_similarity,
    grey_thumbnail,
)
from vitrine.data.auditing.near_duplicates import feature_pairs, near_pairs
from vitrine.errors import ConfigError


def thumbnails(pictures) -> np.ndarray:
    return np.stack([grey_thumbnail(picture) for picture in pictures])


@pytest.fixture(scope="module")
def photos() -> list[np.ndarray]:
    return [photo(seed, 32, 32) for seed in range(60)]


def as_set(pairs) -> set[tuple[int, int]]:
    return set(zip(pairs.queries.tolist(), pairs.others.tolist(), strict=True))


@pytest.mark.parametrize(("down", "right"), [(0, 0), (2, 2), (-2, 1), (0, -2)])
def test_every_moved_brightened_recompressed_copy_is_found_and_nothing_else(photos, down, right):
    copies = thumbnails(altered(picture, down=down, right=right) for picture in photos[:20])
    assert as_set(near_pairs(copies, thumbnails(photos))) == {(index, index) for index in range(20)}


def test_copies_of_larger_pictures_are_found_after_resizing_and_cropping():
    pictures = [photo(seed, 200, 300) for seed in range(12)]
    copies = [altered(picture, down=4, right=-6)[5:, 7:][::2, ::2] for picture in pictures]
    assert as_set(near_pairs(thumbnails(copies), thumbnails(pictures))) == {(i, i) for i in range(12)}


def test_copies_moved_by_half_a_pixel_of_the_thumbnail_are_found_at_half_pixels_only():
    rng = np.random.default_rng(0)
    noise = [Image.fromarray(rng.integers(0, 256, (18, 18, 3), dtype=np.uint8)) for _ in range(6)]
    pictures = [np.asarray(image.resize((320, 320), Image.Resampling.BICUBIC)) for image in noise]
    first = thumbnails(pictures)
    copies = thumbnails(altered(picture, down=5, right=-5) for picture in pictures)  # 320 / 32 = 10 pixels
    assert (aligned_similarity(first, copies)[1] < neighbours.LEAST_DETAIL).all()
    assert (finely_aligned_similarity(first, copies)[1] > 0.95).all()
    assert as_set(near_pairs(copies, first)) == {(index, index) for index in range(6)}


def test_within_one_set_each_pair_comes_once_the_earlier_image_first(photos):
    both = thumbnails([*photos[:10], *(altered(picture) for picture in photos[:10])])
    assert as_set(near_pairs(both)) == {(index, index + 10) for index in range(10)}


def test_blocks_do_not_change_what_is_found(photos, monkeypatch):
    both = thumbnails([*photos[:10], *(altered(picture) for picture in photos[:10])])
    whole = near_pairs(both)
    for name, size in (("_QUERY_BLOCK", 3), ("_BASE_BLOCK", 7), ("_PAIR_BLOCK", 2)):
        monkeypatch.setattr(neighbours, name, size)
    parts = near_pairs(both)
    assert as_set(parts) == as_set(whole)
    np.testing.assert_allclose(np.sort(parts.similarity), np.sort(whole.similarity), atol=1e-5)


def test_mirrored_copies_are_found_only_when_asked_for(photos):
    mirrored = thumbnails(picture[:, ::-1] for picture in photos[:8])
    assert len(near_pairs(mirrored, thumbnails(photos))) == 0
    found = near_pairs(mirrored, thumbnails(photos), is_mirrored=True)
    assert as_set(found) == {(index, index) for index in range(8)}


def test_many_equal_images_stay_within_the_candidates_of_each_query(monkeypatch):
    monkeypatch.setattr(neighbours, "MOST_CANDIDATES", 4)
    monkeypatch.setattr(neighbours, "_BASE_BLOCK", 50)
    same = np.repeat(thumbnails([photo(0, 32, 32)]), 120, axis=0)
    found = near_pairs(same)
    # All but the last four have four or more later images to be paired with.
    assert np.bincount(found.queries, minlength=120).tolist() == [4] * 116 + [3, 2, 1, 0]


def test_nothing_is_found_in_nothing():
    nothing = np.zeros((0, 32, 32), np.uint8)
    assert len(near_pairs(nothing)) == len(near_pairs(nothing, nothing)) == 0
    assert len(near_pairs(thumbnails([photo(0)]), nothing)) == 0


def test_feature_pairs_equal_the_written_out_cosines():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(50, 8)).astype(np.float32)
    queries = base[:20] + rng.normal(scale=0.2, size=(20, 8)).astype(np.float32)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, base)]
    wanted = {(int(q), int(b)) for q, b in np.argwhere(unit[0] @ unit[1].T >= 0.9)}
    assert wanted and as_set(feature_pairs(queries, base, least=0.9)) == wanted


def test_features_of_different_width_are_refused():
    with pytest.raises(ConfigError, match=r"\(3, 4\) and \(3, 5\)"):
        feature_pairs(np.zeros((3, 4), np.float32), np.zeros((3, 5), np.float32))


COLOURS = [(220, 30, 30), (240, 150, 20), (40, 180, 60), (40, 80, 220), (150, 60, 200), (20, 190, 190)]


def discs() -> list[np.ndarray]:
    """48 discs in six colours on white, at places and of sizes that repeat from colour to colour."""
    rows, columns = np.mgrid[0:64, 0:64]
    pictures = []
    for colour in COLOURS:
        for number in range(8):
            inside = (rows - 24 - 2 * number) ** 2 + (columns - 40 + 2 * number) ** 2 < (10 + number) ** 2
            pixels = np.full((64, 64, 3), 245, dtype=np.uint8)
            pixels[inside] = colour
            pictures.append(pixels)
    return pictures


def test_discs_of_different_colours_are_no_copies_of_each_other():
    pictures = discs()
    colours = np.stack([colour_cells(picture) for picture in pictures])
    in_grey = near_pairs(thumbnails(pictures))
    in_colour = near_pairs(thumbnails(pictures), colours=colours)

    def other_colours(pairs):
        return sum(a // 8 != b // 8 for a, b in as_set(pairs))

    assert other_colours(in_grey) > 20
    assert other_colours(in_colour) == 0


def test_no_pairs_have_no_colours_to_compare():
    nothing = np.zeros((0, 4, 4, 2), dtype=np.int8)
    assert colour_difference(nothing, nothing).shape == (0,)


def test_colours_do_not_hide_brightened_shifted_or_grey_copies(photos):
    copies = [altered(picture) for picture in photos]
    grey = [np.repeat(grey_thumbnail(picture)[..., None], 3, axis=2) for picture in photos]
    own = np.stack([colour_cells(picture) for picture in photos])
    for others in (copies, grey):
        difference = colour_difference(np.stack([colour_cells(picture) for picture in others]), own)
        assert (difference < neighbours.MOST_COLOUR_DIFFERENCE).all()
