"""The training recipes of ViT's descendants on ImageNet-1k, one for each published model, with its accuracy.

All but DeiT III share DeiT's recipe (arXiv:2012.12877): AdamW, cosine, 300 epochs, mixup and cutmix, RandAugment,
erasing, stochastic depth. None was trained here. Differences from the authors' code: RandAugment here has a
fixed strength (theirs varies by 0.5 of a level); the last ten epochs at the lowest rate, which timm adds after the
cosine, are omitted.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from vitrine.data.augmenting.augment import Augment
from vitrine.objectives import LabelsObjective
from vitrine.recipes.recipe import Recipe, Views
from vitrine.training.config import TrainingConfig

IMAGES = 1_281_167  # of ImageNet-1k
AREA = (0.08, 1.0)
LOWEST_RATE = 1e-5
AUGMENT = Augment(num_operations=2, magnitude=9, erase=0.25, mixup=0.8, cutmix=1.0, label_smoothing=0.1)

# Top-1 on ImageNet at 224 px by the authors, and the rate of stochastic depth.
PVT = {"PVT-Tiny": (75.1, 0.1), "PVT-Small": (79.8, 0.1), "PVT-Medium": (81.2, 0.3), "PVT-Large": (81.7, 0.3)}
PVT_V2 = {
    "PVT-v2-B0": (70.5, 0.1),
    "PVT-v2-B1": (78.7, 0.1),
    "PVT-v2-B2": (82.0, 0.1),
    "PVT-v2-B2-Li": (82.1, 0.1),
    "PVT-v2-B3": (83.1, 0.3),
    "PVT-v2-B4": (83.6, 0.3),
    "PVT-v2-B5": (83.8, 0.3),
}
# The README gives no rates of stochastic depth for PCPVTs; those of PVTs of the same depth are used.
PCPVT = {"PCPVT-Small": (81.2, 0.1), "PCPVT-Base": (82.7, 0.3), "PCPVT-Large": (83.1, 0.3)}
TNT = {"TNT-S": 81.5, "TNT-B": 82.9}
# Accuracy, weight decay and learning rate for batches of 512 (the rate is not scaled with the batch).
T2T = {
    "T2T-ViT-7": (71.7, 0.03, 1e-3),
    "T2T-ViT-10": (75.2, 0.03, 1e-3),
    "T2T-ViT-12": (76.5, 0.03, 1e-3),
    "T2T-ViT-14": (81.5, 0.05, 5e-4),
    "T2T-ViT-19": (81.9, 0.065, 5e-4),
    "T2T-ViT-24": (82.3, 0.065, 5e-4),
    "T2T-ViT_t-14": (81.7, 0.05, 5e-4),
    "T2T-ViT_t-19": (82.4, 0.065, 5e-4),
    "T2T-ViT_t-24": (82.6, 0.065, 5e-4),
}
# With five PEGs, from the figures of the authors' README.
CPVT = {
    "CPVT-Ti-5PEG": 73.4, "CPVT-S-5PEG": 80.5, "CPVT-B-5PEG": 82.3, "CPVT-Ti-GAP-5PEG": 74.9, "CPVT-S-GAP-5PEG": 81.5,
}  # fmt: skip
# Accuracy, pixels of the first 800 epochs, rate, stochastic depth.
DEIT3 = {
    "DeiT-III-S/16": (81.4, 224, 4e-3, 0.05),
    "DeiT-III-B/16": (83.8, 192, 3e-3, 0.2),
    "DeiT-III-L/16": (84.9, 192, 3e-3, 0.45),
    "DeiT-III-H/14": (85.2, 154, 3e-3, 0.6),  # 160 in their command; patches of 14 pixels tile 154
}
# Stochastic depth when fine-tuned at 224 px.
DEIT3_TUNED = {"DeiT-III-B/16": 0.2, "DeiT-III-L/16": 0.45, "DeiT-III-H/14": 0.55}


def like_deit(
    model: str, *, accuracy: float, depth_rate: float, paper: str, batch_size: int = 1024, **changes: Any
) -> Recipe:
    """Train as DeiT: 300 epochs of AdamW with 5 epochs of warm-up; `changes` override its training settings."""
    warmup_epochs = changes.pop("warmup_epochs", 5)
    values: dict[str, Any] = {
        "optimizer": "adamw", "lr": 1e-3, "batch_size": batch_size, "decay": "cosine", "end_lr": LOWEST_RATE,
        "weight_decay": 0.05, "clip_norm": None, "warmup_steps": steps_of(warmup_epochs, batch_size), **changes,
    }  # fmt: skip
    return Recipe(
        name=f"imagenet-{slug(model)}",
        claim=f"{accuracy:.1f} % top-1 on ImageNet at 224 px by the authors ({paper}); unmeasured here",
        model=model,
        model_options={"stochastic_depth": depth_rate},
        size=224,
        views=Views(area=AREA),
        augment=AUGMENT,
        epochs=300,
        training=TrainingConfig(**values),
    )


def t2t(model: str) -> Recipe:
    """T2T-ViT: batches of 512, warm-up of 10 epochs, averaged weights (.99996)."""
    accuracy, decay, rate = T2T[model]
    return like_deit(
        model, accuracy=accuracy, depth_rate=0.1, paper="arXiv:2101.11986", batch_size=512, lr=rate,
        weight_decay=decay, warmup_epochs=10, average_decay=0.99996,
    )  # fmt: skip


def cpvt(model: str) -> Recipe:
    """CPVT: DeiT's recipe with batches of 2048; DeiT's rate, 5e-4 for 512 images, is scaled with them."""
    return repeated(
        like_deit(
            model, accuracy=CPVT[model], depth_rate=0.1, paper="arXiv:2102.10882", batch_size=2048, lr=2e-3
        )
    )


def pvt(model: str) -> Recipe:
    """PVT v1 and v2: DeiT's recipe with repeated augmentation; the deeper ones clip gradients at norm 1."""
    accuracy, rate = (PVT | PVT_V2)[model]
    paper = "arXiv:2106.13797" if model in PVT_V2 else "arXiv:2102.12122"
    clip = 1.0 if rate > 0.1 else None
    recipe = like_deit(model, accuracy=accuracy, depth_rate=rate, paper=paper, clip_norm=clip)
    return repeated(recipe)


def pcpvt(model: str) -> Recipe:
    """Twins-PCPVT: DeiT's recipe without repeated augmentation, gradients clipped at norm 5."""
    accuracy, rate = PCPVT[model]
    return like_deit(model, accuracy=accuracy, depth_rate=rate, paper="arXiv:2104.13840", clip_norm=5.0)


def tnt(model: str) -> Recipe:
    """TNT: DeiT's recipe with repeated augmentation and averaged weights (.99996)."""
    return repeated(
        like_deit(model, accuracy=TNT[model], depth_rate=0.1, paper="arXiv:2103.00112", average_decay=0.99996)
    )


def deit3(model: str) -> Recipe:
    """DeiT III on ImageNet-1k: 800 epochs of LAMB, binary cross-entropy, 3-Augment, repeated augmentation.

    Models larger than S train at fewer pixels and are then fine-tuned at 224 px by `imagenet-...-224`.
    """
    accuracy, size, rate, depth_rate = DEIT3[model]
    then = "" if size == 224 else f", then `imagenet-{slug(model)}-224`"
    return Recipe(
        name=f"imagenet-{slug(model)}",
        claim=f"{accuracy:.1f} % top-1 on ImageNet at 224 px by the authors (arXiv:2204.07118){then}; "
        "unmeasured here",
        model=model,
        model_options={"stochastic_depth": depth_rate},
        size=size,
        objective=LabelsObjective(loss="binary"),
        views=Views(area=AREA, repeats=3),
        augment=Augment(three_augment=True, jitter=0.3, mixup=0.8, cutmix=1.0),
        epochs=800,
        training=TrainingConfig(
            optimizer="lamb", lr=rate, batch_size=2048, warmup_steps=steps_of(5, 2048), decay="cosine",
            end_lr=LOWEST_RATE, weight_decay=0.05, clip_norm=1.0,
        ),
    )  # fmt: skip


def deit3_tuned(model: str) -> Recipe:
    """DeiT III's second part: 20 epochs at 224 px with AdamW, from the weights of the first."""
    accuracy, *_ = DEIT3[model]
    return Recipe(
        name=f"imagenet-{slug(model)}-224",
        claim=f"{accuracy:.1f} % top-1 on ImageNet at 224 px by the authors (arXiv:2204.07118), from the weights of "
        f"`imagenet-{slug(model)}`; unmeasured here",
        model_options={"stochastic_depth": DEIT3_TUNED[model]},
        size=224,
        views=Views(area=AREA, repeats=3),
        augment=dataclasses.replace(AUGMENT, erase=0.0),
        epochs=20,
        training=TrainingConfig(
            optimizer="adamw", lr=1e-5, batch_size=512, warmup_steps=steps_of(5, 512), decay="cosine",
            end_lr=LOWEST_RATE, weight_decay=0.1, clip_norm=None,
        ),
    )  # fmt: skip


def repeated(recipe: Recipe) -> Recipe:
    """Show each image of a batch three times (repeated augmentation, arXiv:1902.05509)."""
    return dataclasses.replace(recipe, views=dataclasses.replace(recipe.views, repeats=3))


def steps_of(epochs: int, batch_size: int) -> int:
    """Return the steps of a number of epochs of ImageNet-1k."""
    return round(epochs * IMAGES / batch_size)


def slug(model: str) -> str:
    """Write a model's name so that a shell needs no quotes."""
    return model.lower().replace("/", "")


def _named(make: Callable[[str], Recipe], model: str) -> Callable[[], Recipe]:
    return lambda: make(model)


DESCENDANTS: dict[str, Callable[[], Recipe]] = {
    make(model).name: _named(make, model)
    for make, models in (
        (t2t, T2T),
        (cpvt, CPVT),
        (pvt, PVT | PVT_V2),
        (pcpvt, PCPVT),
        (tnt, TNT),
        (deit3, DEIT3),
        (deit3_tuned, DEIT3_TUNED),
    )
    for model in models
}
