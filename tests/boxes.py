"""A model in the layout of the one in the box, with weights that have learned nothing."""

from pathlib import Path

import torch

import vitrine
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.models import create_model

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


# Two narrow layers: a test that fine-tunes writes every weight about ten times.
SMALL = {"width": 48, "depth": 2, "num_heads": 3, "mlp_width": 96}


def untrained_box(
    folder: Path, *, image_size: int = 224, num_classes: int = 200, published: bool = False
) -> Path:
    """Save a small ViT, or the published ViT-Ti/16, in half precision with names for its classes.

    The head answers something.
    """
    torch.manual_seed(0)
    shape = {} if published else SMALL
    model = create_model("ViT-Ti/16", num_classes=num_classes, image_size=image_size, **shape)
    assert model.head is not None
    torch.nn.init.normal_(model.head.weight, std=0.02)
    names = [f"thing {number}" for number in range(num_classes)]
    preprocess = Preprocess(
        size=(image_size, image_size), rule="shorter", crop_fraction=0.875, interpolation="bicubic",
        mean=IMAGENET_MEAN, std=IMAGENET_STD,
    )  # fmt: skip
    return vitrine.save(model.half(), folder, preprocess=preprocess, classes=names)
