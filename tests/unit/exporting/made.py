"""Small models whose every parameter matters: nothing is zero, as a fresh head would be."""

from typing import Any

import pytest
import torch
from unit.models.small import VIT, small_model

from vitrine.checkpoints import Loaded, Record
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.exporting.exported import Export, Kind
from vitrine.jobs.export_targets import ExportWish, plan_wish
from vitrine.models import Model, create_model

DINOV2: dict[str, Any] = {**VIT, "num_classes": None, "layer_scale": 0.1, "gelu": "erf", "mlp_width": 64}
CLASSES = ("ant", "bee", "cat", "dög", "e, e")


def filled(kind: str) -> Model:
    """Make a small model of a kind of tests/unit/models/small.py and fill what begins as zeros."""
    torch.manual_seed(0)
    model = (create_model(**DINOV2) if kind == "DINOv2 without a head" else small_model(kind)).eval()
    for name, parameter in model.named_parameters():
        # The last gain of a ResNet's unit begins as zero, which would hide the unit.
        if ("norm" not in name or name.endswith("norm_3.weight")) and parameter.detach().std() < 1e-3:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def loaded(kind: str) -> Loaded:
    """Make the same with preprocessing and class names, as `load` returns it."""
    model = filled(kind)
    channels = (0.5,) * model.config.channels
    preprocess = Preprocess(size=model.config.image_size, mean=channels, std=channels)
    classes = CLASSES if model.config.num_classes else None
    record = Record(config=model.config, preprocess=preprocess, classes=classes)
    return Loaded(model=model, preprocess=preprocess, classes=classes, record=record)


def plan(found: Loaded, *, to: Kind, calibration: torch.Tensor | None = None, **options: Any) -> Export:
    """Plan an export of a model, without the pages of a web export."""
    wish = ExportWish(to=to, calibrate=() if calibration is None else ("photos",), **options)
    return plan_wish(found, wish, facts=lambda: pytest.fail("no page"), calibration=lambda: calibration)
