from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from unit.data.pictures import smooth

from vitrine.data.augmenting.augment import Augment, augment, erase, rand_augment, soft_labels
from vitrine.data.augmenting.randaugment import OPERATIONS, apply_operation
from vitrine.data.loading.order import Rows, training_rows
from vitrine.data.randomness import uniforms
from vitrine.errors import ConfigError


def batch(count: int, size: int = 16) -> torch.Tensor:
    pictures = [torch.from_numpy(smooth(size, size, seed=n).copy()).permute(2, 0, 1) for n in range(count)]
    return torch.stack(pictures)


def applied(name: str, image: np.ndarray, *, level: float, sign: float = 1.0, **more) -> np.ndarray:
    planes = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float()
    found = apply_operation(
        name, planes, level=level, signs=torch.tensor([sign]), places=torch.tensor([[0.5, 0.5]]), **more
    )
    return found[0].permute(1, 2, 0).numpy()


@pytest.mark.parametrize(
    ("name", "level", "sign", "reference", "tolerance"),
    [
        ("autocontrast", 1, 1, ImageOps.autocontrast, 1),
        ("equalise", 1, 1, ImageOps.equalize, 0),
        ("invert", 1, 1, ImageOps.invert, 0),
        ("posterise", 1, 1, lambda i: ImageOps.posterize(i, 4), 0),
        ("solarise", 0.5, 1, lambda i: ImageOps.solarize(i, 128), 0),
        ("brightness", 1, 1, lambda i: ImageEnhance.Brightness(i).enhance(1.9), 1),
        ("colour", 1, -1, lambda i: ImageEnhance.Color(i).enhance(0.1), 2),
        ("contrast", 1, 1, lambda i: ImageEnhance.Contrast(i).enhance(1.9), 2),
        ("sharpness", 1, 1, lambda i: ImageEnhance.Sharpness(i).enhance(1.9), 2),
    ],
)
def test_each_operation_equals_pillows(name, level, sign, reference, tolerance):
    # Pillow rounds to whole levels in between, ours only at the end: one or two levels.
    image = smooth(24, 31, seed=4)
    expected = np.asarray(reference(Image.fromarray(image))).astype(float)
    found = applied(name, image, level=level, sign=sign)
    assert np.abs(np.floor(found + 0.5) - expected).max() <= tolerance


@pytest.mark.parametrize(
    ("name", "sign", "matrix"),
    [
        ("shear_x", 1, (1, 0.3, 0, 0, 1, 0)),
        ("shear_y", -1, (1, 0, 0, -0.3, 1, 0)),
        ("translate_x", 1, (1, 0, 10, 0, 1, 0)),
        ("translate_y", -1, (1, 0, 0, 0, 1, -10)),
    ],
)
def test_geometry_equals_pillows_affine_transform_about_the_centre(name, sign, matrix):
    image = smooth(33, 33, seed=2)
    level = 1.0 if name.startswith("shear") else 10 / 33 * 3.31
    a, b, c, d, e, f = matrix
    centre = 16.5
    about = (a, b, c + centre - a * centre - b * centre, d, e, f + centre - d * centre - e * centre)
    expected = Image.fromarray(image).transform((33, 33), Image.Transform.AFFINE, about, fillcolor=(128,) * 3)
    # Nearest neighbours may fall on either side where the sample lies between two pixels.
    found = np.rint(applied(name, image, level=level, sign=sign))
    is_equal = (np.abs(found - np.asarray(expected)).max(axis=2) <= 1).mean()
    assert is_equal > 0.93


def test_rotation_turns_the_way_pillow_does():
    image = smooth(33, 33, seed=2)
    expected = np.asarray(Image.fromarray(image).rotate(30, fillcolor=(128,) * 3))
    found = np.rint(applied("rotate", image, level=1.0))
    assert (np.abs(found - expected).max(axis=2) <= 1).mean() > 0.93


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - {"autocontrast", "equalise", "invert"}))
def test_no_magnitude_changes_nothing(name):
    image = smooth(16, 16)
    assert np.abs(applied(name, image, level=0) - image).max() < 1e-3


def rows_of(step: int = 0, *, batch_size: int = 8, rank: int = 0, world_size: int = 1) -> Rows:
    return training_rows(step, length=100, batch_size=batch_size, seed=0, rank=rank, world_size=world_size)


HOW = Augment(
    num_operations=2, magnitude=10, jitter=0.3, erase=0.5, mixup=0.5, cutmix=1.0, label_smoothing=0.1
)


def test_what_happens_to_an_image_does_not_depend_on_the_number_of_processes():
    images, labels = batch(8), torch.arange(8) % 3
    whole = augment(images, labels, rows_of(), config=HOW, num_classes=3, seed=5)
    parts = [
        augment(
            images[2 * r : 2 * r + 2],
            labels[2 * r : 2 * r + 2],
            rows_of(rank=r, world_size=4),
            config=HOW,
            num_classes=3,
            seed=5,
        )
        for r in range(4)
    ]
    # Sums over different batch shapes may differ in the last bit.
    torch.testing.assert_close(torch.cat([part[0] for part in parts]), whole[0])
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), whole[1])
    other = augment(images, labels, rows_of(1), config=HOW, num_classes=3, seed=5)
    assert not torch.allclose(other[0], whole[0])


def test_nothing_asked_is_nothing_done():
    images, labels = batch(4), torch.tensor([0, 1, 2, 1])
    pixels, targets = augment(images, labels, rows_of(batch_size=4), config=Augment(), num_classes=3, seed=0)
    assert torch.equal(pixels, images.float()) and torch.equal(targets, torch.eye(3)[labels])


def test_after_its_share_of_the_run_nothing_is_left_but_smoothing():
    images, labels = batch(4), torch.tensor([0, 1, 2, 0])
    how = replace(HOW, label_smoothing=0.1, until=0.9)
    rows = rows_of(batch_size=4)
    before = augment(images, labels, rows, config=how, num_classes=3, seed=0, progress=0.89)
    after = augment(images, labels, rows, config=how, num_classes=3, seed=0, progress=0.9)
    always = augment(
        images, labels, rows, config=replace(how, until=1.0), num_classes=3, seed=0, progress=0.89
    )
    assert torch.equal(after[0], images.float())
    assert torch.equal(after[1], soft_labels(labels, num_classes=3, smoothing=0.1))
    assert all(torch.equal(one, other) for one, other in zip(before, always, strict=True))
    assert not torch.equal(before[0], after[0])


def test_mixup_mixes_neighbours_by_the_share_that_the_labels_say():
    images = torch.zeros(8, 3, 4, 4, dtype=torch.uint8)
    images[1::2] = 200
    labels = torch.tensor([0, 1] * 4)
    pixels, targets = augment(images, labels, rows_of(), config=Augment(mixup=1.0), num_classes=2, seed=1)
    torch.testing.assert_close(pixels[:, 0, 0, 0], 200 * targets[:, 1])
    torch.testing.assert_close(targets.sum(1), torch.ones(8))
    assert len(torch.unique(targets[:, 0])) == 8


def test_cutmix_labels_are_the_share_of_pixels():
    images = torch.zeros(16, 3, 20, 20, dtype=torch.uint8)
    images[1::2] = 100
    labels = torch.tensor([0, 1] * 8)
    pixels, targets = augment(
        images, labels, rows_of(batch_size=16), config=Augment(cutmix=1.0), num_classes=2, seed=1
    )
    assert set(pixels.unique().tolist()) == {0.0, 100.0}
    torch.testing.assert_close(pixels.mean(dim=(1, 2, 3)) / 100, targets[:, 1])


def test_mixing_an_odd_number_of_images_is_refused():
    with pytest.raises(ConfigError, match=r"mixup .*even .*got 3"):
        augment(
            batch(3),
            torch.zeros(3, dtype=torch.long),
            rows_of(batch_size=3),
            config=Augment(mixup=1),
            num_classes=2,
            seed=0,
        )


def test_erasing_covers_two_to_thirty_three_percent_of_some_images():
    images = torch.full((400, 1, 50, 50), -1.0)
    own = uniforms(0, stream="augment", epochs=0, positions=np.arange(400), count=6)
    share = (erase(images, own, probability=0.25) >= 0).float().mean(dim=(1, 2, 3))
    hit = share[share > 0]
    assert 70 < len(hit) < 130
    assert hit.min() > 0.01 and hit.max() < 0.36


def test_smoothed_labels_sum_to_one_and_multi_labels_stay():
    targets = soft_labels(torch.tensor([2]), num_classes=4, smoothing=0.2)
    torch.testing.assert_close(targets, torch.tensor([[0.05, 0.05, 0.85, 0.05]]))
    several = torch.tensor([[1.0, 0, 1.0]])
    assert torch.equal(soft_labels(several, num_classes=3, smoothing=0.2), several)


@pytest.mark.parametrize("values", [{"num_operations": 9}, {"erase": 2}, {"mixup": -1}, {"magnitude": 99}])
def test_nonsense_is_refused_at_birth(values):
    with pytest.raises(ConfigError):
        Augment(**values)


def test_every_operation_on_all_images_equals_each_on_those_that_drew_it():
    from vitrine.data.augmenting.augment import apply_to_all, apply_to_chosen

    images = batch(64).float()
    numbers = uniforms(3, stream="augment", epochs=0, positions=np.arange(64), count=4)
    choice = (numbers[:, 0] * len(OPERATIONS)).astype(np.int64)
    assert len(np.unique(choice)) > 12
    sorted_out = apply_to_chosen(images, choice, numbers, level=0.9)
    together = apply_to_all(images, choice, numbers, level=0.9)
    torch.testing.assert_close(together, sorted_out, rtol=0, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("side", [32, 128])  # every operation on all, and each on those that drew it
def test_randaugment_on_cuda_is_that_of_the_cpu(side):
    images = batch(64, side).float()
    numbers = uniforms(3, stream="augment", epochs=0, positions=np.arange(64), count=8)
    on_cpu = rand_augment(images, numbers, num_operations=2, magnitude=9)
    on_cuda = rand_augment(images.cuda(), numbers, num_operations=2, magnitude=9).cpu()
    # Turned images take the nearest pixel, and a point between two may fall to either.
    assert (on_cuda - on_cpu).abs().mean() < 0.5
