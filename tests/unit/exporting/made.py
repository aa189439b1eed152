"""Small models whose every parameter matters: nothing is zero, as a fresh head would be."""

import torch
from unit.models.small import small_model

from vitrine.checkpoints import Loaded, Record
from vitrine.data.preprocess import Preprocess
from vitrine.models import Model

CLASSES = ("ant", "bee", "cat", "dög", "e, e")


def filled(kind: str) -> Model:
    """Make a small model of a kind of tests/unit/models/small.py and fill what begins as zeros."""
    torch.manual_seed(0)
    model = small_model(kind).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name and parameter.detach().std() < 1e-3:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def loaded(kind: str) -> Loaded:
    """Make the same with preprocessing and class names, as `load` returns it."""
    model = filled(kind)
    channels = (0.5,) * model.config.channels
    preprocess = Preprocess(size=model.config.image_size, mean=channels, std=channels)
    record = Record(config=model.config, preprocess=preprocess, classes=CLASSES)
    return Loaded(model=model, preprocess=preprocess, classes=CLASSES, record=record)
