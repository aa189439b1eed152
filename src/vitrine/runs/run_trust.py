"""The end of a run: the limits of its model, measured and stored beside the weights.

The features of the training images (a sample of large sets) give the distance of "none of these", those of the
held-out images its threshold, and their probabilities the prediction sets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.checkpoints import Loaded, load
from vitrine.data.sources.source import NO_LABEL, Source, Subset
from vitrine.evaluation.familiarity import fit_familiarity
from vitrine.evaluation.features import extract_features, logits_and_features
from vitrine.evaluation.outputs import Outputs, run_model, this_rank
from vitrine.evaluation.prediction_sets import held_out_scores
from vitrine.evaluation.trust import Trust, write_trust
from vitrine.runtime.progress import quiet

# Training images whose features are read: enough for means and covariances, and fast.
MOST_IMAGES = 4000
LEAST_PER_CLASS = 20
# Held-out images whose scores are kept.
MOST_HELD_OUT = 10_000


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Outputs for training images by models that were fitted without them."""

    logits: Tensor
    """(N, K), calibrated."""
    distances: Tensor | None = None
    """(N,), from the images that the models were fitted on; None to measure them."""


def store_trust(
    model: Path,
    splits: Mapping[str, Source],
    *,
    device: torch.device | str,
    workers: int,
    left_out: LeftOut | None = None,
    seed: int = 0,
) -> Trust:
    """Measure a saved model on its training and validation images, and write trust.safetensors beside it.

    With `left_out` the training images themselves are the held-out ones. Every process must call it; the first one
    writes.
    """
    with quiet():
        loaded = load(model)
    if loaded.model.config.num_classes is None or not splits["train"].is_labelled:
        return Trust()
    loaded.model.to(device)
    train = sampled(splits["train"], most=MOST_IMAGES, least_per_class=LEAST_PER_CLASS, seed=seed)
    rows, labels = training_features(
        loaded, train, device=device, workers=workers, is_whole=train is splits["train"]
    )
    held_out_rows, scores = None, None
    if left_out is not None:
        if not splits["train"].is_multi_label:
            own = torch.from_numpy(splits["train"].labels.astype(np.int64))
            scores = held_out_scores(left_out.logits.softmax(dim=1), own)
    elif "val" in splits:
        val = sampled(splits["val"], most=MOST_HELD_OUT, least_per_class=1, seed=seed)
        logits, held_out_rows, own = measured(loaded, val, device=device, workers=workers)
        if not val.is_multi_label:
            scores = held_out_scores(logits.softmax(dim=1), own)
    distances = None if left_out is None else left_out.distances
    familiarity = fit_familiarity(rows, labels, held_out=held_out_rows, distances=distances, seed=seed)
    trust = Trust(familiarity=familiarity, held_out=scores)
    if this_rank()[0] == 0:
        write_trust(model, trust)
    return trust


def training_features(
    loaded: Loaded, source: Source, *, device: torch.device | str, workers: int, is_whole: bool
) -> tuple[Tensor, Tensor]:
    """Return features (N, D) and first labels (N,) of the readable, labelled images, cached by `save_statistics`."""
    features = extract_features(
        loaded.model, source, preprocess=loaded.preprocess, num_workers=workers, device=device,
        # A sample of a large set has no features in the cache, and nobody will ask for them again.
        cache=is_whole, what="Measuring familiarity",
    )  # fmt: skip
    first = features.labels[:, 0] if source.is_multi_label else features.labels
    keep = torch.from_numpy(first != NO_LABEL)
    return features.rows[keep], torch.from_numpy(first.astype(np.int64))[keep]


def measured(
    loaded: Loaded, source: Source, *, device: torch.device | str, workers: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits (N, K), features (N, D) and first labels (N,) of the readable, labelled images."""
    num_classes = loaded.model.config.num_classes
    assert num_classes is not None

    def both(images: Tensor) -> Tensor:
        return torch.cat(logits_and_features(loaded.model, images), dim=1)

    outputs: Outputs = run_model(
        loaded.model, source, preprocess=loaded.preprocess, function=both, num_workers=workers, device=device,
        what="Measuring familiarity",
    )  # fmt: skip
    first = first_labels(source)
    keep = torch.from_numpy(outputs.readable & (first != NO_LABEL))
    rows = outputs.rows[keep]
    return rows[:, :num_classes], rows[:, num_classes:], torch.from_numpy(first.astype(np.int64))[keep]


def sampled(source: Source, *, most: int, least_per_class: int, seed: int) -> Source:
    """Return a source of about `most` images, evenly over the classes; all of a smaller one."""
    if len(source) <= most:
        return source
    labels = first_labels(source)
    order = np.random.default_rng(seed).permutation(len(source))
    each = max(least_per_class, most // max(len(source.classes), 1))
    kept = [order[labels[order] == number][:each] for number in np.unique(labels)]
    return Subset(source, np.sort(np.concatenate(kept)))


def first_labels(source: Source) -> NDArray[np.int32]:
    """Return one label per image (N,): the first of several."""
    return source.labels[:, 0] if source.is_multi_label else source.labels
