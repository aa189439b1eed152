"""Small models of masks and boxes with drawn weights, whose answers differ from place to place."""

from pathlib import Path

import torch

import vitrine
from vitrine.models import ViTConfig, build
from vitrine.models.dense.config import (
    DenseConfig,
    DetectorConfig,
    EoMTConfig,
    InstanceEoMTConfig,
    LinearSegmenterConfig,
    SegmenterConfig,
    YolosConfig,
    as_encoder,
)

VIT = as_encoder(
    ViTConfig(image_size=(32, 32), patch_size=(8, 8), width=32, depth=2, num_heads=2, mlp_width=48)
)
CLASSES = ("ground", "green", "blue")
CONFIGS: dict[str, DenseConfig] = {
    "linear": LinearSegmenterConfig(vit=VIT, num_classes=3, layers=(-2, -1)),
    "segmenter": SegmenterConfig(vit=VIT, num_classes=3),
    "eomt": EoMTConfig(vit=VIT, num_classes=3, num_queries=6, num_blocks=1),
    "instances": InstanceEoMTConfig(vit=VIT, num_classes=3, num_queries=6, num_blocks=1),
    "detector": DetectorConfig(vit=VIT, num_classes=3, width=16, num_convs=1),
    "yolos": YolosConfig(vit=VIT, num_classes=3, num_detections=8, has_middle_positions=True),
}


def saved_dense(kind: str, folder: Path) -> Path:
    """Save a model of a kind."""
    torch.manual_seed(3)
    model = build(CONFIGS[kind])
    model.initialise()
    with torch.no_grad():
        if kind == "instances":
            model.decoder.classify.weight.normal_(std=0.5)
        if kind == "detector":
            model.decoder.classify.output.weight.normal_(std=0.4)
            model.decoder.classify.output.bias.fill_(-0.5)
        if kind == "yolos":
            model.decoder.classify.layers[-1].weight.normal_(std=2.0)
            model.decoder.locate.layers[-1].weight.normal_(std=0.5)
    return vitrine.save(model.eval(), folder, classes=CLASSES)


def saved_vit(folder: Path, *, image_size: int, patch_size: int = 8) -> Path:
    """Save a small ViT without a head, as if it were trained."""
    torch.manual_seed(0)
    model = vitrine.create_model(
        "ViT", num_classes=None, image_size=image_size, patch_size=patch_size, width=32, depth=2, num_heads=2,
        mlp_width=64,
    )  # fmt: skip
    return vitrine.save(model, folder)
