"""FlexiViT's patch sizes in training: one per step, by seed and step alone."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from vitrine.errors import ConfigError
from vitrine.models import ViT, create_model
from vitrine.recipes.recipe import Recipe, Views
from vitrine.runs.task import with_patch_sizes

RECIPE = Recipe(name="flexi", views=Views(patch_sizes=(4, 8, 16)))


def sides_of(model: ViT, recipe: Recipe) -> list[int]:
    prepare = with_patch_sizes(lambda batch: (), model, recipe)
    sides = []
    for step in range(20):
        prepare(cast(Any, SimpleNamespace(rows=SimpleNamespace(step=step))))
        assert model.trained_patch is not None
        sides.append(model.trained_patch[0])
    return sides


def vit(**options: Any) -> ViT:
    model = create_model(
        "ViT", image_size=32, patch_size=8, width=16, depth=1, num_heads=2, mlp_width=16, **options
    )
    assert isinstance(model, ViT)
    return model


def test_every_step_draws_the_same_size_again_and_all_sizes_occur() -> None:
    model = vit()
    sides = sides_of(model, RECIPE)
    assert sides == sides_of(model, RECIPE) and set(sides) == {4, 8, 16}
    other = dataclasses.replace(RECIPE, training=dataclasses.replace(RECIPE.training, seed=1))
    assert sides != sides_of(model, other)


def test_training_uses_the_drawn_size_and_evaluation_the_models_own() -> None:
    model = vit()
    model.trained_patch = (4, 4)
    images = torch.randn(1, 3, 32, 32)
    assert model.train().embed_patches(images)[1] == (8, 8)
    assert model.eval().embed_patches(images)[1] == (4, 4)
    model.train().embed(images).square().sum().backward()
    gradient = model.patch_projection.weight.grad
    assert gradient is not None and gradient.shape == (16, 3, 8, 8) and gradient.abs().sum() > 0


def test_sizes_that_do_not_tile_and_models_without_patches_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"stride 12,.* 32;.*24 and 36"):
        sides_of(vit(), dataclasses.replace(RECIPE, views=Views(patch_sizes=(12,))))
    with pytest.raises(ConfigError, match="need a plain ViT"):
        with_patch_sizes(lambda batch: (), create_model("PVT-Tiny", image_size=32), RECIPE)
