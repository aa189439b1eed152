"""Supervised pre-training as in Table 3 of the paper, and its successors (AugReg, the small recipe)."""

from collections.abc import Callable

from vitrine.data.augmenting.augment import Augment
from vitrine.objectives import LabelsObjective
from vitrine.recipes.recipe import Recipe
from vitrine.training.config import TrainingConfig

BATCH = 4096
WARMUP = 10_000
# The authors' I21k and JFT runs use the sigmoid loss with this bias, and a hidden layer in the head.
SIGMOID_HEAD_BIAS = -10.0
LINEAR_END = 1e-5

# Table 3, JFT: base learning rate and epochs by model.
JFT = {
    "ViT-B/16": (8e-4, 7),
    "ViT-B/32": (8e-4, 7),
    "ViT-L/32": (6e-4, 7),
    "ViT-L/16": (4e-4, 14),
    "ViT-H/14": (3e-4, 14),
    "BiT-R50x1": (1e-3, 7),
    "BiT-R50x2": (1e-3, 7),
    "BiT-R101x1": (8e-4, 7),
    "BiT-R152x1": (6e-4, 7),
    "BiT-R152x2": (6e-4, 7),
    "R50+ViT-B/16": (8e-4, 7),
    "R50+ViT-B/32": (8e-4, 7),
    "R50+ViT-L/32": (2e-4, 7),
    "R50+ViT-L/16": (4e-4, 14),
}
I21K = {"ViT-B/16": 90, "ViT-B/32": 90, "ViT-L/16": 90, "ViT-L/32": 90}
# Accuracy of the authors on ImageNet at 224 px.
IMAGENET = {"ViT-B/16": 74.79, "ViT-B/32": 69.19, "ViT-L/16": 72.59, "ViT-L/32": 66.90}
REPRESENTATION = {"B": 768, "L": 1024, "H": 1280}


def jft_like(model: str) -> Recipe:
    """Pre-train as on JFT-300M: sigmoid loss, linear decay, weight decay .1, no dropout.

    Expected with JFT's 303 M images: Tables 2 and 5 of the paper. Unmeasured here: the data is not public.
    """
    rate, epochs = JFT[model]
    return Recipe(
        name=f"jft-{slug(model)}",
        claim="Tables 2 and 5 of the paper, on JFT-300M; unmeasured here",
        model=model,
        model_options=large_data_head(model),
        size=224,
        objective=LabelsObjective(loss="sigmoid"),
        epochs=epochs,
        training=TrainingConfig(
            optimizer="adamw", lr=rate, batch_size=BATCH, warmup_steps=WARMUP, decay="linear", end_lr=LINEAR_END,
            weight_decay=0.1, clip_norm=None,
        ),
    )  # fmt: skip


def i21k_like(model: str) -> Recipe:
    """Pre-train as on ImageNet-21k: as on JFT, but with dropout .1 and weight decay .03.

    Expected: Table 5 of the paper. Unmeasured here.
    """
    return Recipe(
        name=f"i21k-{slug(model)}",
        claim="Table 5 of the paper, on ImageNet-21k; unmeasured here",
        model=model,
        model_options={**large_data_head(model), "dropout": 0.1},
        size=224,
        objective=LabelsObjective(loss="sigmoid"),
        epochs=I21K[model],
        training=TrainingConfig(
            optimizer="adamw", lr=1e-3, batch_size=BATCH, warmup_steps=WARMUP, decay="linear", end_lr=LINEAR_END,
            weight_decay=0.03, clip_norm=None,
        ),
    )  # fmt: skip


def imagenet_like(model: str) -> Recipe:
    """Pre-train as on ImageNet: 300 epochs, cosine, weight decay .3, dropout .1, clipping at norm 1.

    Expected on ImageNet at 224 px (the authors): B/32 69.19, B/16 74.79, L/32 66.90, L/16 72.59. Unmeasured here.
    """
    return Recipe(
        name=f"imagenet-{slug(model)}",
        claim=f"{IMAGENET[model]:.2f} % on ImageNet at 224 px by the authors; unmeasured here",
        model=model,
        model_options={"dropout": 0.1},
        size=224,
        epochs=300,
        training=TrainingConfig(
            optimizer="adamw", lr=3e-3, batch_size=BATCH, warmup_steps=WARMUP, decay="cosine", weight_decay=0.3,
            clip_norm=1.0,
        ),
    )  # fmt: skip


def small_imagenet() -> Recipe:
    """ViT-S/16 on ImageNet-1k in 90 epochs, plain and strong (arXiv:2205.01580).

    Expected: 76.5 % top-1 (its authors). Unmeasured here.
    """
    return Recipe(
        name="imagenet-vit-s16-strong",
        claim="76.5 % top-1 after 90 epochs by its authors (arXiv:2205.01580); unmeasured here",
        model="ViT-S/16",
        model_options={"positions": "sincos_2d", "pooling": "average"},
        size=224,
        epochs=90,
        augment=Augment(num_operations=2, magnitude=10, mixup=0.2),
        training=TrainingConfig(
            # Their weight decay of 1e-4 is not multiplied by the rate: .1 times a rate of 1e-3.
            optimizer="adamw", lr=1e-3, batch_size=1024, warmup_steps=10_000, decay="cosine", weight_decay=0.1,
            clip_norm=1.0,
        ),
    )  # fmt: skip


def augreg(
    model: str, *, mixup: float, magnitude: float, regularisation: float, weight_decay: float
) -> Recipe:
    """One cell of the AugReg grid (arXiv:2106.10270) on I21k-like data; unmeasured here.

    mixup 0, .2, .5, .8; RandAugment of two operations at 0, 10, 15, 20; dropout and stochastic depth 0 or .1.
    """
    return Recipe(
        name=f"augreg-{slug(model)}",
        claim="AugReg (arXiv:2106.10270); unmeasured here",
        model=model,
        model_options={
            "head_bias": SIGMOID_HEAD_BIAS, "dropout": regularisation, "stochastic_depth": regularisation,
        },
        size=224,
        objective=LabelsObjective(loss="sigmoid"),
        epochs=300,
        augment=Augment(num_operations=2 if magnitude else 0, magnitude=magnitude, mixup=mixup),
        training=TrainingConfig(
            optimizer="adamw", lr=1e-3, batch_size=BATCH, warmup_steps=WARMUP, decay="cosine",
            weight_decay=weight_decay, clip_norm=1.0,
        ),
    )  # fmt: skip


def augreg_medium() -> Recipe:
    """AugReg's middle of the grid for ViT-B/16: mixup .5, RandAugment 2 x 15, dropout .1, decay .03."""
    return augreg("ViT-B/16", mixup=0.5, magnitude=15, regularisation=0.1, weight_decay=0.03)


def large_data_head(model: str) -> dict[str, object]:
    """Head of the sigmoid runs: bias -10 and, in a ViT, a hidden layer as wide as the model."""
    options: dict[str, object] = {"head_bias": SIGMOID_HEAD_BIAS}
    if "ViT" in model:
        options["representation_width"] = REPRESENTATION[model.split("ViT-")[1][0]]
    return options


def slug(model: str) -> str:
    """Write a model's name so that a shell needs no quotes."""
    return model.lower().replace("+", "-").replace("/", "")


def _named(make: Callable[[str], Recipe], model: str) -> Callable[[], Recipe]:
    return lambda: make(model)


PRE_TRAINING: dict[str, Callable[[], Recipe]] = {
    **{f"jft-{slug(model)}": _named(jft_like, model) for model in JFT},
    **{f"i21k-{slug(model)}": _named(i21k_like, model) for model in I21K},
    **{f"imagenet-{slug(model)}": _named(imagenet_like, model) for model in IMAGENET},
    "imagenet-vit-s16-strong": small_imagenet,
    "augreg-vit-b16": augreg_medium,
}
