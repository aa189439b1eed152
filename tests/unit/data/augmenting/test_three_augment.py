"""3-Augment against Pillow, and repeated augmentation."""

import numpy as np
import torch
from PIL import Image, ImageOps

from vitrine.data.augmenting.augment import Augment, augment
from vitrine.data.augmenting.three_augment import blurred, three_augment
from vitrine.data.loading.order import Rows, training_rows

PICTURE = np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8)
IMAGES = torch.from_numpy(PICTURE).permute(2, 0, 1)[None].float()


def changed(choice: float, amount: float = 0.5) -> torch.Tensor:
    return three_augment(IMAGES, torch.tensor([[choice, amount]]))[0]


def test_the_first_third_is_grey_as_pillow_makes_it() -> None:
    grey = np.asarray(Image.fromarray(PICTURE).convert("L"), dtype=np.float32)
    assert (changed(0.1) - torch.from_numpy(grey)).abs().max() <= 1  # Pillow rounds to whole numbers


def test_the_second_third_is_solarised_as_pillow_does() -> None:
    solarised = np.asarray(ImageOps.solarize(Image.fromarray(PICTURE)), dtype=np.float32)
    assert torch.equal(changed(0.5), torch.from_numpy(solarised).permute(2, 0, 1))


def test_the_last_third_is_blurred_by_a_gaussian_of_a_deviation_from_0_1_to_2() -> None:
    deviation = 0.1 + 1.9 * 0.5
    place = torch.arange(12.0)
    column = torch.exp(-((place - 4) ** 2) / (2 * deviation**2))
    place = torch.arange(10.0)
    row = torch.exp(-((place - 7) ** 2) / (2 * deviation**2))
    expected = (IMAGES[0] * (column / column.sum())[:, None] * (row / row.sum())).sum(dim=(1, 2))
    torch.testing.assert_close(changed(0.9)[:, 4, 7], expected)
    assert torch.allclose(blurred(IMAGES, torch.tensor([1e-3])), IMAGES)


def test_each_image_of_a_batch_gets_one_change_from_its_place_in_the_stream() -> None:
    images = IMAGES.byte().expand(64, -1, -1, -1)
    rows = Rows(0, np.zeros(64, int), np.zeros(64, int), np.arange(64))
    labels = torch.zeros(64, dtype=torch.long)
    config = Augment(three_augment=True)
    pixels, _ = augment(images, labels, rows, config=config, num_classes=2, seed=0)
    again, _ = augment(images, labels, rows, config=config, num_classes=2, seed=0)
    assert torch.equal(pixels, again)
    is_grey = (pixels[:, 0] == pixels[:, 1]).all(dim=(1, 2))
    is_solarised = (pixels == changed(0.5)).all(dim=(1, 2, 3))
    assert 10 < is_grey.sum() < 34 and 10 < is_solarised.sum() < 34
    ended, _ = augment(
        images,
        labels,
        rows,
        config=Augment(three_augment=True, until=0.5),
        num_classes=2,
        seed=0,
        progress=0.6,
    )
    assert torch.equal(ended, images.float())


def test_repeats_show_each_image_of_a_batch_several_times_with_other_draws() -> None:
    rows = training_rows(5, length=100, batch_size=24, seed=0, repeats=3)
    values, counts = np.unique(rows.indices, return_counts=True)
    assert len(values) == 8 and set(counts) == {3}
    assert len(set(zip(rows.epochs.tolist(), rows.positions.tolist(), strict=True))) == 24
    assert (rows.indices[0::2] != rows.indices[1::2]).all()  # pairs that mixup mixes
    halves = [
        training_rows(5, length=100, batch_size=24, seed=0, repeats=3, rank=r, world_size=2) for r in (0, 1)
    ]
    assert np.concatenate([half.indices for half in halves]).tolist() == rows.indices.tolist()


def test_three_repeats_see_every_image_once_in_as_many_steps_as_three_epochs() -> None:
    seen = np.concatenate(
        [training_rows(s, length=16, batch_size=6, seed=0, repeats=3).indices for s in range(8)]
    )
    assert sorted(set(seen.tolist())) == list(range(16))
    plain = training_rows(7, length=16, batch_size=6, seed=0)
    assert (
        plain.indices.tolist()
        == training_rows(7, length=16, batch_size=6, seed=0, repeats=1).indices.tolist()
    )
