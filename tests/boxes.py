"""A model in the layout of the one in the box, with weights that have learned nothing."""

from pathlib import Path

import torch

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import create_model

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def untrained_box(folder: Path, *, image_size: int = 224, num_classes: int = 200) -> Path:
    """Save a ViT-Ti/16 in half precision with names for its classes; the head answers something."""
    torch.manual_seed(0)
    model = create_model("ViT-Ti/16", num_classes=num_classes, image_size=image_size)
    assert model.head is not None
    torch.nn.init.normal_(model.head.weight, std=0.02)
    names = [f"thing {number}" for number in range(num_classes)]
    preprocess = Preprocess(
        size=(image_size, image_size), rule="shorter", crop_fraction=0.875, interpolation="bicubic",
        mean=IMAGENET_MEAN, std=IMAGENET_STD,
    )  # fmt: skip
    return vitrine.save(model.half(), folder, preprocess=preprocess, classes=names)
