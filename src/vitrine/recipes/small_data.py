"""Small data from scratch, on one machine."""

from collections.abc import Callable

from vitrine.data.augmenting.augment import Augment
from vitrine.recipes.recipe import Recipe, Views
from vitrine.training.config import TrainingConfig

SMALL_VIT = {
    "width": 128,
    "depth": 4,
    "num_heads": 4,
    "mlp_width": 256,
    "patch_size": 8,
    "pooling": "average",
    "positions": "sincos_2d",
}


def demo() -> Recipe:
    """A ViT of 0.6 M parameters on generated pictures of 32 px, for a demonstration on two cores.

    Expected: see docs/experiments.md, "Demo".
    """
    return Recipe(
        name="demo",
        claim="see docs/experiments.md, Demo",
        model="ViT",
        model_options=SMALL_VIT,
        size=32,
        views=Views(crop="padded"),
        training=TrainingConfig(
            optimizer="adamw", lr=2e-3, batch_size=128, total_steps=250, warmup_steps=40, weight_decay=0.05,
            log_every=20, checkpoint_every=200,
        ),
    )  # fmt: skip


def from_scratch() -> Recipe:
    """A plain ViT from scratch on tens of thousands of small images: the default of `vitrine pretrain`.

    Average pooling, fixed positions, RandAugment, mixup and cutmix, long schedule. Unmeasured.
    """
    return Recipe(
        name="from-scratch",
        claim="unmeasured",
        model="ViT-Ti/16",
        model_options={"pooling": "average", "positions": "sincos_2d", "stochastic_depth": 0.1},
        views=Views(area=(0.25, 1.0)),
        augment=Augment(num_operations=2, magnitude=10, mixup=0.2, cutmix=1.0, label_smoothing=0.1),
        epochs=100,
        training=TrainingConfig(
            optimizer="adamw", lr=1e-3, batch_size=256, warmup_steps=500, weight_decay=0.1, average_decay=0.999,
        ),
    )  # fmt: skip


def cifar10() -> Recipe:
    """A plain ViT of 6,352,138 parameters from scratch on CIFAR-10, for seven and a half minutes on one H200.

    Measured: 96.15 % top-1 (mean of three seeds); docs/experiments.md, "CIFAR-10".
    """
    return Recipe(
        name="cifar10",
        claim="96.15 % on the test images (three seeds, 7.5 minutes each on an H200); docs/experiments.md, CIFAR-10",
        model="ViT",
        model_options={
            "width": 256, "depth": 8, "num_heads": 4, "mlp_width": 1024, "patch_size": 4, "pooling": "average",
            "positions": "learned_1d", "stochastic_depth": 0.1, "qk_norm": True,
        },
        size=32,
        views=Views(crop="padded"),
        # Mixup and cutmix already hide parts of the images: no erasing, and mild operations.
        augment=Augment(
            num_operations=2, magnitude=6, mixup=0.2, cutmix=1.0, label_smoothing=0.1, until=0.9
        ),
        epochs=600,
        training=TrainingConfig(
            optimizer="muon", lr=1e-3, batch_size=1024, warmup_steps=500, weight_decay=0.1, average_decay=0.999,
            log_every=200, checkpoint_every=5000, compile=True, graphs=True,
        ),
    )  # fmt: skip


SMALL_DATA: dict[str, Callable[[], Recipe]] = {"demo": demo, "from-scratch": from_scratch, "cifar10": cifar10}
