"""Interpolate between the start of a run and its end: weights between the closed form and the trained network.

Fine-tuning forgets some of what the network knew, and a mean of both sets of weights is often better than either
(arXiv:2109.01903). It is one network, so it costs nothing later. Held-out images decide how far to go.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrine.checkpoints import load
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.source import Source
from vitrine.evaluation.outputs import Outputs, run_model
from vitrine.evaluation.temperature import calibrated_loss
from vitrine.models import Model, ModelConfig, build
from vitrine.runtime.processes import Processes
from vitrine.runtime.progress import quiet

# Shares of the trained weights that are tried between the closed form (0) and the end (1).
SHARES = (0.25, 0.5, 0.75)
Weights = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Place:
    """One share of the trained weights: its model, and the outputs on the held-out images."""

    share: float
    model: Model
    outputs: Outputs
    loss: float


def between(first: Weights, last: Weights, share: float) -> dict[str, Tensor]:
    """Return the weights at this share between the first (0) and the last (1)."""
    return {
        name: torch.lerp(value, last[name], share) if value.is_floating_point() else last[name]
        for name, value in first.items()
    }


def best_place(
    first: Weights,
    last: Weights,
    known: Mapping[float, Outputs],
    *,
    config: ModelConfig,
    source: Source,
    preprocess: Preprocess,
    workers: int,
    processes: Processes,
) -> Place:
    """Evaluate the shares on held-out images and return the best, those with `known` outputs included."""
    targets = torch.from_numpy(source.targets(np.arange(len(source))))
    places = []
    for share in (*known, *SHARES):
        model = with_weights(config, between(first, last, share))
        outputs = known.get(share)
        if outputs is None:
            with quiet():
                outputs = run_model(
                    model.to(processes.device), source, preprocess=preprocess, num_workers=workers,
                    device=processes.device,
                )  # fmt: skip
        loss = calibrated_loss(outputs.rows, targets)
        places.append(Place(share=share, model=model.cpu(), outputs=outputs, loss=loss))
    return min(places, key=lambda place: place.loss)


def with_weights(config: ModelConfig, weights: Weights) -> Model:
    """Build a model with these weights."""
    model = build(config)
    model.load_state_dict(dict(weights))
    return model.eval()


def saved_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights of a saved model."""
    with quiet():
        return load(folder).model.state_dict()
