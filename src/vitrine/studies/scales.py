"""The scales of studies, from seconds on a laptop to the paper's own sizes, and the models of each scale.

Small scales read images of 16 or 32 pixels as 16 or 64 patches of 4 pixels, crop and flip them, and use no further
augmentation: a comparison needs equal conditions, not the highest accuracy.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from vitrine.data.augmenting.augment import Augment
from vitrine.errors import ConfigError
from vitrine.models.axial_resnet_config import AxialResNetConfig
from vitrine.models.bit_config import BiTConfig
from vitrine.models.config import ViTConfig
from vitrine.models.stem_configs import ResNetStemConfig
from vitrine.models.variants import configure
from vitrine.recipes import Recipe
from vitrine.recipes.recipe import Views
from vitrine.spelling import nearest
from vitrine.training.config import TrainingConfig

# Checkpoints half-way, and in long runs every thousand steps: in a run of seconds, more would cost too much time.
CHECKPOINTS, MOST_STEPS_APART = 2, 1000
PAPER_SIZE = 224
# Channels of the root of small ResNets and hybrids; group norm has 32 groups.
SMALL_WIDTH = 32


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Sizes that all studies of a scale share; the base model is ViT-B/16 at scale `paper`."""

    name: str
    words: str
    """Part of the hash that says which results are comparable: do not change it."""
    image_size: int
    patch_size: int
    width: int
    depth: int
    num_heads: int
    batch_size: int
    steps: int
    """Steps of a run from scratch."""
    finetune_steps: int
    lr: float
    weight_decay: float
    warmup: float = 0.1
    """Fraction of the steps."""
    sgd_lr: float = 0.03
    dropout: float = 0.0
    finetune_batch: int = 512
    crop: Any = "padded"
    compiles: bool | None = False
    """Compiling a model takes longer than a short run of it."""
    graphs: bool = True
    """Whether steps are replayed as CUDA graphs: kernels of small models finish before the next is launched."""
    length: float = 1.0
    """How many times as long runs are as this scale's own; `steps` and `finetune_steps` include it."""

    @property
    def is_paper(self) -> bool:
        """Whether models, sizes and schedules are the paper's."""
        return self.name == "paper"


SCALES = {
    scale.name: scale
    for scale in (
        Scale(
            name="tiny", words="seconds on a laptop; shows that it runs, proves nothing", image_size=16,
            patch_size=4, width=32, depth=2, num_heads=2, batch_size=32, steps=16, finetune_steps=8, lr=2e-3,
            weight_decay=0.05, finetune_batch=32,
        ),
        Scale(
            name="little", words="tens of runs in ten minutes on one data-centre GPU", image_size=32, patch_size=4,
            width=128, depth=6, num_heads=4, batch_size=512, steps=400, finetune_steps=150, lr=2e-3,
            weight_decay=0.05,
        ),
        Scale(
            name="small", words="a minute or two a study on one data-centre GPU", image_size=32, patch_size=4,
            width=192, depth=6, num_heads=3, batch_size=512, steps=800, finetune_steps=300, lr=1e-3,
            weight_decay=0.05,
        ),
        Scale(
            name="medium", words="about an hour a study on one data-centre GPU", image_size=32, patch_size=4,
            width=256, depth=8, num_heads=4, batch_size=512, steps=10_000, finetune_steps=2000, lr=1e-3,
            weight_decay=0.05, compiles=None,
        ),
        Scale(
            name="paper", words="the paper's models and schedules on ImageNet; weeks on many devices",
            image_size=PAPER_SIZE, patch_size=16, width=768, depth=12, num_heads=12, batch_size=4096,
            # 300 epochs of ImageNet's 1 281 167 images (Table 3).
            steps=93_835, finetune_steps=20_000, lr=3e-3, weight_decay=0.3, warmup=10_000 / 93_835, dropout=0.1,
            crop="inception", compiles=None, graphs=False,
        ),
    )
}  # fmt: skip


def find_scale(name: str, *, steps: float = 1.0) -> Scale:
    """Return the scale called `name`, every run `steps` times as long."""
    if name not in SCALES:
        close = nearest(name, SCALES)
        raise ConfigError(
            f"no scale is called {name!r}; nearest: {close[0]}", option="scale", suggestions=close
        )
    if steps <= 0:
        raise ConfigError(f"must be a factor above 0, got {steps:g}", option="steps")
    scale = SCALES[name]
    return dataclasses.replace(
        scale,
        length=steps,
        steps=max(round(scale.steps * steps), 2),
        finetune_steps=max(round(scale.finetune_steps * steps), 2),
    )


def vit(scale: Scale, *, num_classes: int | None, size: int = 0, **options: Any) -> ViTConfig:
    """Return the base ViT of a scale with some options changed; the MLP is four times as wide by default."""
    width = options.pop("width", scale.width)
    patch = options.pop("patch_size", scale.patch_size)
    values: dict[str, Any] = {
        "width": width,
        "depth": scale.depth,
        "num_heads": scale.num_heads,
        "mlp_width": 4 * width,
        "dropout": scale.dropout,
        **options,
    }
    side = size or scale.image_size
    return ViTConfig(image_size=(side, side), patch_size=(patch, patch), num_classes=num_classes, **values)


def resnet(scale: Scale, *, num_classes: int, level: int = 0) -> BiTConfig:
    """Return a BiT ResNet of a scale, `level` 0 to 2 in order of cost."""
    if scale.is_paper:
        config = configure(("BiT-R50x1", "BiT-R101x1", "BiT-R152x2")[level], num_classes=num_classes)
        assert isinstance(config, BiTConfig)
        return config
    units, width = (
        ((1, 1, 1, 1), SMALL_WIDTH),
        ((2, 2, 2, 2), SMALL_WIDTH),
        ((1, 1, 1, 1), 2 * SMALL_WIDTH),
    )[level]
    return BiTConfig(
        image_size=(scale.image_size, scale.image_size), units=units, width=width, root="3x3",
        num_classes=num_classes,
    )  # fmt: skip


def hybrid(scale: Scale, *, num_classes: int, **options: Any) -> ViTConfig:
    """Return a hybrid with the grid of the base ViT: root and first stages of the smallest ResNet of the scale.

    Both have a 3x3 root that keeps the size of the image, stages of one unit, and as many channels. At scale `paper`
    it is the paper's: a ResNet-50 with its stage 4 moved to stage 3.
    """
    stem = ResNetStemConfig(units=(1, 1, 1), width=SMALL_WIDTH, root="3x3")
    if scale.is_paper:
        stem = ResNetStemConfig(units=(3, 4, 9))
    patch = scale.patch_size // stem.stride
    return vit(scale, num_classes=num_classes, patch_size=patch, stem=stem, **options)


def axial(scale: Scale, *, num_classes: int) -> ViTConfig:
    """Return the axial ViT of a scale (appendix D.6): each block becomes one for rows and one for columns."""
    options: dict[str, Any] = {"attention": "axial", "pooling": "average", "depth": 2 * scale.depth}
    return vit(scale, num_classes=num_classes, **options)


def axial_resnet(scale: Scale, *, num_classes: int) -> AxialResNetConfig:
    """Return the AxialResNet of a scale (appendix D.6): units and widths of its smallest ResNet."""
    if scale.is_paper:
        config = configure("AxialResNet-50", num_classes=num_classes)
        assert isinstance(config, AxialResNetConfig)
        return config
    return AxialResNetConfig(
        image_size=(scale.image_size, scale.image_size), units=(1, 1, 1, 1), width=SMALL_WIDTH, root="3x3",
        num_classes=num_classes,
    )  # fmt: skip


def from_scratch(scale: Scale, *, seed: int, name: str, **changes: Any) -> Recipe:
    """Return the recipe of a run from scratch: AdamW, cosine, clipping; Table 3's on ImageNet at scale `paper`."""
    smoothing = changes.pop("label_smoothing", 0.0)
    steps = changes.pop("total_steps", scale.steps)
    values: dict[str, Any] = {
        "total_steps": steps,
        "batch_size": scale.batch_size,
        "optimizer": "adamw",
        "lr": scale.lr,
        "weight_decay": scale.weight_decay,
        "warmup_steps": round(scale.warmup * steps),
        **quiet(scale, steps),
        **changes,
    }
    return Recipe(
        name=name,
        claim="one run of a study",
        size=scale.image_size,
        views=Views(crop=scale.crop),
        augment=Augment(label_smoothing=smoothing),
        training=TrainingConfig(seed=seed, **values),
    )


def fine_tuning(scale: Scale, *, seed: int, name: str, size: int = 0, **changes: Any) -> Recipe:
    """Return the recipe of a fine-tuning run: Table 4's SGD with momentum, cosine, clipping, no weight decay."""
    steps = changes.pop("total_steps", scale.finetune_steps)
    values: dict[str, Any] = {
        "total_steps": steps,
        "batch_size": scale.finetune_batch,
        "optimizer": "sgd",
        "lr": scale.sgd_lr,
        # The authors' 500 of 20 000 steps at scale `paper`, the same fraction at other scales.
        "warmup_steps": round(steps / 40) if scale.is_paper else round(scale.warmup * steps),
        **quiet(scale, steps),
        **changes,
    }
    return Recipe(
        name=name,
        claim="one run of a study",
        size=size or scale.image_size,
        views=Views(crop=scale.crop),
        training=TrainingConfig(seed=seed, **values),
    )


def quiet(scale: Scale, steps: int) -> dict[str, Any]:
    """Return how often a run of a study logs and saves: rarely, because many runs share one device."""
    apart = min(max(steps // CHECKPOINTS, 1), MOST_STEPS_APART)
    return {
        "log_every": apart,
        "checkpoint_every": apart,
        "compile": scale.compiles,
        "graphs": scale.graphs,
    }
