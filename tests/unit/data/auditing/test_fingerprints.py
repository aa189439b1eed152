import numpy as np
import pytest
from pictures import altered, photo

from vitrine.data.auditing.fingerprints import (
    WINDOW,
    aligned_similarity,
    content_hash,
    descriptors,
    grey_thumbnail,
    shifted_descriptors,
)


def thumbnails(*pictures: np.ndarray) -> np.ndarray:
    return np.stack([grey_thumbnail(picture) for picture in pictures])


def test_content_hash_tells_bytes_and_shapes_apart():
    assert content_hash(b"a") == content_hash(b"a") != content_hash(b"b")
    flat = np.zeros((2, 8, 1), np.uint8)
    assert content_hash(flat) != content_hash(flat.reshape(8, 2, 1))
    assert len(content_hash(b"")) == 16


@pytest.mark.parametrize("shape", [(32, 32, 3), (32, 32, 1), (200, 10, 3), (1, 1, 3), (33, 64, 1)])
def test_a_thumbnail_of_any_picture_is_32_by_32_grey(shape):
    made = grey_thumbnail(np.full(shape, 77, np.uint8))
    assert made.shape == (32, 32) and made.dtype == np.uint8
    assert abs(int(made.mean()) - 77) <= 1  # rounding of the luma weights


def test_descriptors_do_not_change_with_brightness_or_contrast():
    picture = thumbnails(photo(0, 32, 32)).astype(np.float64)
    dimmer = np.rint(picture * 0.5 + 40).astype(np.uint8)
    cosine = float((descriptors(picture.astype(np.uint8)) * descriptors(dimmer)).sum())
    assert cosine > 0.999  # only the rounding to whole numbers differs


def test_a_flat_picture_is_similar_to_nothing():
    flat = np.full((1, 32, 32), 128, np.uint8)
    assert not descriptors(flat).any()
    grey, detail = aligned_similarity(flat, flat)
    assert grey[0] == detail[0] == 0


def test_descriptors_have_length_one():
    found = descriptors(thumbnails(*(photo(seed) for seed in range(5))))
    assert found.shape == (5, 63)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_a_shifted_view_is_the_descriptor_of_the_shifted_picture():
    wide = grey_thumbnail(photo(1, 32, 32))
    moved = np.roll(wide, (2, -2), axis=(0, 1))  # its window at the centre is the original's, 2 up and right
    views = shifted_descriptors(wide[None])
    assert len(views) == 9
    best = max(float((view * descriptors(moved[None])).sum()) for view in views)
    assert best == pytest.approx(1, abs=1e-5)


def test_aligned_similarity_equals_the_written_out_correlation():
    first, second = thumbnails(photo(2, 32, 32)), thumbnails(altered(photo(2, 32, 32), down=2, right=1))
    grey, detail = aligned_similarity(first, second)
    window = second[0, 2:30, 2:30].astype(float)
    best = (-1.0, -1.0)
    for top in range(5):
        for left in range(5):
            other = first[0, top : top + WINDOW, left : left + WINDOW].astype(float)
            plain = [x - x.mean() for x in (window, other)]
            fine = [x - x.mean(0) - x.mean(1)[:, None] + x.mean() for x in (window, other)]
            correlation = [(a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()) for a, b in (plain, fine)]
            best = max(best, (correlation[1], correlation[0]))
    assert (detail[0], grey[0]) == pytest.approx(best, abs=1e-4)  # single against double precision


def test_two_skies_agree_in_grey_but_not_in_detail():
    rows = np.linspace(60, 220, 32)[:, None] * np.ones(32)
    rng = np.random.default_rng(0)
    first, second = (np.clip(rows + rng.normal(0, 6, (32, 32)), 0, 255).astype(np.uint8)[None] for _ in "ab")
    grey, detail = aligned_similarity(first, second)
    assert grey[0] > 0.95 and detail[0] < 0.5
