"""What objectives of masks, boxes and objects share: pictures without the planes behind them, and COCO's score."""

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitrine.data.loading.loader import Batch
from vitrine.models.dense.config import DenseConfig
from vitrine.objectives.objective import RunContext, Validation, augmented


def augmented_pictures(batch: Batch, context: RunContext) -> Tensor:
    """Return the normalised pictures of a batch (B, C, H, W), without the planes of their labels behind them."""
    pictures = replace(batch, images=batch.images[:, : context.preprocess.channels])
    nothing = torch.zeros(len(batch), dtype=torch.int64, device=batch.images.device)
    pixels, _ = augmented(pictures, nothing, context, num_classes=1)
    return context.preprocess.normalise(pixels)


def object_evaluation(context: RunContext, validation: Validation) -> Callable[[nn.Module], dict[str, float]]:
    """Return the function that computes COCO's metrics on the validation pictures, each at its own size."""
    config = context.model.config
    assert isinstance(config, DenseConfig)
    return functools.partial(validation.object_scores, config=config)
