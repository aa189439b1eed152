"""The patch embedding of a fresh model, whitened by some of the training images."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from vitrine.data.loading.loader import Loader
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.source import Source, Subset
from vitrine.errors import ConfigError
from vitrine.models import ViT
from vitrine.models.whitening import whiten_patches
from vitrine.recipes.recipe import Recipe
from vitrine.runs.records import StartingModel
from vitrine.runtime.devices import seeded

# Images that the covariance is computed of: at 32 px and patches of 4, 131,072 patches for 48 x 48 numbers.
MOST_IMAGES = 2048
BATCH_SIZE = 64


def with_whitened_patches(
    start: StartingModel, train: Source, recipe: Recipe, *, workers: int
) -> StartingModel:
    """Fill the patch embedding of a fresh model from the training patches, if the recipe asks for it."""
    if not recipe.whitens_patches:
        return start
    if not isinstance(start.model, ViT) or start.preprocess.max_patches is not None:
        raise ConfigError("whitens_patches needs a ViT and images of one size")
    with seeded(recipe.training.seed):
        whiten_patches(
            start.model, images_of(train, start.preprocess, seed=recipe.training.seed, workers=workers)
        )
    return start


def images_of(train: Source, preprocess: Preprocess, *, seed: int, workers: int) -> Iterator[Tensor]:
    """Yield normalised training images (B, C, height, width), drawn by the seed, as evaluation sees them."""
    if len(train) > MOST_IMAGES:
        chosen = np.random.default_rng(seed).choice(len(train), MOST_IMAGES, replace=False)
        train = Subset(train, np.sort(chosen))
    with Loader(train, preprocess, batch_size=BATCH_SIZE, num_workers=workers) as loader:
        for batch in loader.evaluation_batches():
            yield preprocess.normalise(batch.images)
