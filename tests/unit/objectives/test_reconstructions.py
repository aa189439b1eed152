"""Pictures of hidden patches: the right patch at the right place, and nothing else changed."""

import pytest
import torch
from unit.objectives.test_masked_autoencoder import SMALL
from unit.objectives.test_masked_patches import pixels, small_vit

from vitrine.models.encoder import cut_patches
from vitrine.objectives.masked_autoencoder import MaskedAutoencoder
from vitrine.objectives.masked_patches import MaskedPatches, MaskedPatchesObjective
from vitrine.objectives.patch_targets import (
    TARGETS,
    Target,
    class_colours,
    normalised_patches,
    patch_pixels,
    patch_targets,
)
from vitrine.objectives.reconstructions import join_patches, painted, reconstructions


def test_joining_undoes_cutting() -> None:
    images = torch.randn(2, 3, 16, 24)
    patches, grid = cut_patches(images, (8, 4))
    assert torch.equal(join_patches(patches, (8, 4), grid), images)


@pytest.mark.parametrize("target", TARGETS)
def test_only_corrupted_patches_differ_from_the_original(target: Target) -> None:
    module = MaskedPatches(small_vit(), MaskedPatchesObjective(target=target))
    images = pixels() / 127.5 - 1
    torch.manual_seed(0)
    found = torch.stack(reconstructions(module, images, pixels()), dim=1)
    assert found.shape == (4, 3, 3, 32, 32) and torch.equal(found[:, 2], pixels().to(torch.uint8))
    torch.manual_seed(0)
    corruption = module.reconstruct(images)[1]
    given, told, original = (cut_patches(found[:, row], (8, 8))[0] for row in range(3))
    hidden = torch.zeros(4, 16, dtype=torch.bool).scatter(1, corruption.positions, True)
    assert torch.equal((told != original).any(dim=2), hidden)
    changed = torch.zeros(4, 16, dtype=torch.bool)
    changed.scatter_(1, corruption.positions, corruption.is_masked | corruption.is_replaced)
    assert torch.equal((given != original).any(dim=2), changed)


def test_a_head_that_is_sure_of_the_right_colours_paints_them() -> None:
    for target, cells in (("mean-color", 1), ("downsized-colors", 16)):
        classes = patch_targets(pixels(), (8, 8), target=target)  # type: ignore[arg-type]
        said = torch.nn.functional.one_hot(classes.reshape(4, 16, cells), 512).float().flatten(2)
        found = painted(said, target, (8, 8), channels=3)  # type: ignore[arg-type]
        again = patch_targets(join_patches(found, (8, 8), (4, 4)), (8, 8), target=target)  # type: ignore[arg-type]
        assert torch.equal(again, classes)
        assert set(found.unique().tolist()) <= set(
            class_colours(torch.arange(512), channels=3).unique().tolist()
        )


def test_an_autoencoder_that_is_right_shows_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    module = MaskedAutoencoder(small_vit(), SMALL)
    right = normalised_patches(patch_pixels(pixels(), (8, 8)))
    monkeypatch.setattr(module.decoder, "forward", lambda tokens, order, grid: right)
    masked, predicted, original = reconstructions(module, pixels() / 127.5 - 1, pixels())
    assert torch.equal(predicted, original)
    grey = (cut_patches(masked, (8, 8))[0] == 128).all(dim=2)  # 127.5, rounded to even
    assert (grey.sum(dim=1) == 12).all()
