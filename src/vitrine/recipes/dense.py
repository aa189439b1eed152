"""Learning masks and boxes on a trained ViT: the defaults of `vitrine finetune` for data that has them."""

import dataclasses
from collections.abc import Callable

from vitrine.data.augmenting.augment import Augment
from vitrine.objectives.detection import DetectionObjective
from vitrine.objectives.instance_segmentation import InstanceObjective
from vitrine.objectives.mask_classification import MaskClassificationObjective
from vitrine.objectives.segmentation import SegmentationObjective
from vitrine.objectives.set_detection import SetDetectionObjective
from vitrine.recipes.recipe import Recipe
from vitrine.training.config import TrainingConfig

# A multiple of the patches of 14, 16 and 32 pixels.
WINDOW = 448


def masks() -> Recipe:
    """A linear head on frozen tokens: the default for data with masks, fast and robust.

    AdamW at 1e-3, as in DINOv3's evaluation of features. Claim: docs/experiments.md, "Masks".
    """
    return Recipe(
        name="masks",
        claim="81.4 % mean IoU on VOC 2012 with DINOv2 ViT-S/14, 83.2 % with four blocks; docs/experiments.md, Masks",
        size=WINDOW,
        objective=SegmentationObjective(decoder="linear"),
        augment=Augment(jitter=0.2),
        epochs=20,
        fewest_steps=250,
        training=TrainingConfig(
            optimizer="adamw", lr=1e-3, batch_size=16, warmup_steps=100, decay="cosine", weight_decay=1e-3,
            clip_norm=1.0, trains="head", log_every=10,
        ),
    )  # fmt: skip


def segmenter() -> Recipe:
    """Segmenter: the ViT is fine-tuned with a mask transformer on it (arXiv:2105.05633).

    AdamW with layer-wise decay in place of the authors' SGD, as for `photos`. Claim: docs/experiments.md, "Masks".
    """
    return Recipe(
        name="segmenter",
        claim="80.1 % mean IoU on VOC 2012 with DINOv2 ViT-S/14; docs/experiments.md, Masks",
        size=WINDOW,
        objective=SegmentationObjective(decoder="mask-transformer"),
        augment=Augment(jitter=0.2),
        epochs=40,
        fewest_steps=250,
        training=TrainingConfig(
            optimizer="adamw", lr=2e-4, batch_size=16, warmup_steps=200, decay="cosine", weight_decay=0.05,
            clip_norm=1.0, layer_decay=0.8, log_every=10,
        ),
    )  # fmt: skip


def eomt() -> Recipe:
    """EoMT: queries in the last blocks of the ViT, which is fine-tuned (arXiv:2503.19108).

    Settings of the authors for ADE20K, except for one cosine schedule with one warm-up; unmeasured here.
    """
    return Recipe(
        name="eomt",
        claim="unmeasured",
        size=WINDOW,
        objective=MaskClassificationObjective(),
        augment=Augment(jitter=0.2),
        epochs=40,
        fewest_steps=250,
        training=TrainingConfig(
            optimizer="adamw", lr=1e-4, batch_size=16, warmup_steps=500, decay="cosine", weight_decay=0.05,
            clip_norm=1.0, layer_decay=0.8, log_every=10,
        ),
    )  # fmt: skip


def instances() -> Recipe:
    """EoMT for objects: each query learns the mask of one object; the default for data with masks of objects.

    Settings of `eomt`, with the scales of `boxes`. Unmeasured.
    """
    return dataclasses.replace(
        eomt(), name="instances", objective=InstanceObjective(), epochs=50, fewest_steps=500
    )


def boxes() -> Recipe:
    """A dense detector on a simple feature pyramid, with the ViT fine-tuned: the default for data with boxes.

    The first blocks change very little; the new detector learns at a high rate. Steps are recorded as a CUDA graph:
    their many small kernels would wait for the host. Claim: docs/experiments.md, "Boxes".
    """
    return Recipe(
        name="boxes",
        claim="83.9 % AP50 on VOC 2012 with DINOv2 ViT-S/14 after 24 epochs; docs/experiments.md, Boxes",
        size=WINDOW,
        objective=DetectionObjective(),
        augment=Augment(jitter=0.2),
        epochs=30,
        fewest_steps=500,
        training=TrainingConfig(
            optimizer="adamw", lr=5e-4, batch_size=32, warmup_steps=300, decay="cosine", weight_decay=0.05,
            clip_norm=1.0, layer_decay=0.6, graphs=True, log_every=10,
        ),
    )  # fmt: skip


def yolos() -> Recipe:
    """YOLOS: detection tokens beside the patches, each of which learns one object (arXiv:2106.00666).

    The losses are the authors'; rates and length are ours. It needs many more epochs than `boxes`: after 20 epochs of
    VOC 2012 it finds almost nothing. Claim: docs/experiments.md, "Boxes".
    """
    return Recipe(
        name="yolos",
        claim="0.7 % AP50 on VOC 2012 after 20 epochs, too few; docs/experiments.md, Boxes",
        size=WINDOW,
        objective=SetDetectionObjective(),
        augment=Augment(jitter=0.2),
        epochs=100,
        fewest_steps=2000,
        training=TrainingConfig(
            optimizer="adamw", lr=1e-4, batch_size=16, warmup_steps=500, decay="cosine", weight_decay=1e-4,
            clip_norm=0.1, layer_decay=0.9, log_every=10,
        ),
    )  # fmt: skip


DENSE: dict[str, Callable[[], Recipe]] = {
    "masks": masks,
    "segmenter": segmenter,
    "eomt": eomt,
    "instances": instances,
    "boxes": boxes,
    "yolos": yolos,
}
