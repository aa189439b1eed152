"""Recipes for the tracks of docs/records.md: a plain ViT from scratch on CIFAR-10, in as little time as possible.

All tracks share one model and one way to train it; a higher mark has more epochs and stronger augmentation. They
differ from `cifar10` in what helped per image seen on a CPU (docs/experiments.md, CIFAR-10 speed records).
"""

from collections.abc import Callable

from vitrine.data.augmenting.augment import Augment
from vitrine.recipes.recipe import Recipe, Views
from vitrine.training.config import TrainingConfig
from vitrine.training.phases import Phase

TRACKS = (94, 95, 96, 97)
CLAIM = "unmeasured on a GPU; docs/records.md says which tracks are measured"

SMALL = {
    "width": 256, "depth": 8, "num_heads": 4, "mlp_width": 1024, "patch_size": 4, "pooling": "average",
    "positions": "sincos_2d", "qk_norm": True, "initialisation": "mimetic",
}  # fmt: skip


def record_recipe(
    mark: int,
    *,
    epochs: float,
    lr: float,
    augment: Augment,
    phases: tuple[Phase, ...],
    stochastic_depth: float,
    **shape: int,
) -> Recipe:
    """Return the recipe of a track; `shape` changes the model's."""
    return Recipe(
        name=f"cifar10-{mark}",
        claim=CLAIM,
        model="ViT",
        model_options={**SMALL, **shape, "stochastic_depth": stochastic_depth},
        size=32,
        views=Views(crop="padded", alternates_flip=True),
        augment=augment,
        whitens_patches=True,
        phases=phases,
        epochs=epochs,
        training=TrainingConfig(
            optimizer="muon", lr=lr, batch_size=1024, warmup_steps=200, weight_decay=0.1, average_decay=0.999,
            decay="linear", evaluates_raw=False, log_every=200, checkpoint_every=100_000, compile=True, graphs=True,
        ),
    )  # fmt: skip


def cifar10_94() -> Recipe:
    """94 %: half of the patches for most of the run, mild augmentation. Unmeasured."""
    return record_recipe(
        94, epochs=110, lr=2e-3, stochastic_depth=0.0,
        augment=Augment(num_operations=1, magnitude=6, cutmix=1.0, label_smoothing=0.1, until=0.8),
        phases=(Phase(until=0.7, patches=0.5), Phase()),
    )  # fmt: skip


def cifar10_95() -> Recipe:
    """95 %: as 94 % for twice the time. Unmeasured."""
    return record_recipe(
        95, epochs=230, lr=2e-3, stochastic_depth=0.05,
        augment=Augment(num_operations=2, magnitude=6, mixup=0.2, cutmix=1.0, label_smoothing=0.1, until=0.85),
        phases=(Phase(until=0.6, patches=0.5), Phase()),
    )  # fmt: skip


def cifar10_96() -> Recipe:
    """96 %: the augmentation of `cifar10`. Unmeasured."""
    return record_recipe(
        96, epochs=480, lr=2e-3, stochastic_depth=0.1,
        augment=Augment(num_operations=2, magnitude=6, mixup=0.2, cutmix=1.0, label_smoothing=0.1, until=0.9),
        phases=(Phase(until=0.5, patches=0.5), Phase()),
    )  # fmt: skip


def cifar10_97() -> Recipe:
    """97 %: a wider model, stronger augmentation, 1,200 epochs. Unmeasured."""
    return record_recipe(
        97, epochs=1200, lr=1e-3, stochastic_depth=0.2, width=384, num_heads=6, mlp_width=1536,
        augment=Augment(num_operations=2, magnitude=9, mixup=0.2, cutmix=1.0, label_smoothing=0.1, until=0.9),
        phases=(Phase(until=0.5, patches=0.5), Phase()),
    )  # fmt: skip


RECORDS: dict[str, Callable[[], Recipe]] = {
    f"cifar10-{mark}": make
    for mark, make in zip(TRACKS, (cifar10_94, cifar10_95, cifar10_96, cifar10_97), strict=True)
}
