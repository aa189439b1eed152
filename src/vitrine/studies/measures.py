"""The measures of a study: accuracy, 5-shot accuracy, speed. Images of small sets stay on the device."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from vitrine.data.loading.loader import Loader
from vitrine.data.loading.resident import pixels_of
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.source import Source, Subset
from vitrine.evaluation.features import representation
from vitrine.evaluation.fewshot import draw_support, fewshot_accuracy
from vitrine.evaluation.outputs import Precision
from vitrine.evaluation.speed import largest_batch, measure_speeds
from vitrine.models import Model, build
from vitrine.studies.datasets import StudyData, splits_of
from vitrine.studies.inside import NUM_IMAGES, distance_by_head, similarity_by_offset
from vitrine.studies.record import Run

EVALUATION_BATCH = 1000
SHOTS, DRAWS = 5, 5
# Images per class from which the few labelled images are drawn.
SUPPORT = 50


def measure_model(
    model: Model, run: Run, data: Mapping[str, StudyData], *, preprocess: Preprocess
) -> dict[str, float]:
    """Measure test accuracy, accuracy on held-out images, and 5-shot accuracy if the run asks for it."""
    device = next(model.parameters()).device
    own = data[run.data]
    splits = splits_of(own, preprocess.size[0])
    measures = {"accuracy": accuracy_of(model, splits[own.test_split], preprocess=preprocess, device=device)}
    if "val" in splits:
        measures["held_out"] = (
            measures["accuracy"]
            if own.test_split == "val"
            else accuracy_of(model, splits["val"], preprocess=preprocess, device=device)
        )
    if run.probes:
        with torch.no_grad():
            score = few_shot(model, data.get("target0", own), preprocess=preprocess, device=device)
        if score is not None:
            measures["fewshot"] = score
    if run.inspects == "positions":
        measures |= similarity_by_offset(model)
    elif run.inspects == "attention":
        measures |= distance_by_head(model, some_images(splits[own.test_split], preprocess, device=device))
    return measures


def some_images(source: Source, preprocess: Preprocess, *, device: torch.device) -> Tensor:
    """Return up to 128 normalised images of a set, evenly spread over it."""
    rows = np.linspace(0, len(source) - 1, min(NUM_IMAGES, len(source))).round().astype(int)
    return outputs_of(torch.Tensor.float, Subset(source, rows), preprocess=preprocess, device=device).to(
        device
    )


def outputs_of(
    function: Callable[[Tensor], Tensor], source: Source, *, preprocess: Preprocess, device: torch.device
) -> Tensor:
    """Apply a function to every image of a set, in bf16 on CUDA: rows (N, K) on the CPU."""
    array, parts = pixels_of(source), []
    casting = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    with torch.no_grad(), casting:
        if array is None or array.shape[1:3] != preprocess.size:
            with Loader(source, preprocess, batch_size=64, num_workers=2, device=device) as loader:
                parts = [
                    function(preprocess.normalise(batch.images)) for batch in loader.evaluation_batches()
                ]
            return torch.cat(parts).float().cpu()
        rows = np.asarray(getattr(source, "indices", np.arange(len(source))))
        for start in range(0, len(rows), EVALUATION_BATCH):
            chunk = torch.from_numpy(np.ascontiguousarray(array[rows[start : start + EVALUATION_BATCH]]))
            parts.append(function(preprocess.normalise(chunk.to(device).permute(0, 3, 1, 2))))
    return torch.cat(parts).float().cpu()


def accuracy_of(model: nn.Module, source: Source, *, preprocess: Preprocess, device: torch.device) -> float:
    """Return the share of a set that a model classifies correctly."""
    logits = outputs_of(model, source, preprocess=preprocess, device=device)
    return float(np.mean(logits.argmax(dim=1).numpy() == source.labels))


def few_shot(
    model: Model, target: StudyData, *, preprocess: Preprocess, device: torch.device
) -> float | None:
    """Return linear 5-shot accuracy (closed form), the mean of five draws; None if a class has too few images."""
    splits = splits_of(target, preprocess.size[0])
    train, test = splits["train"], splits[target.test_split]
    num_classes = len(target.classes)
    if np.bincount(train.labels, minlength=num_classes).min() < SHOTS:
        return None
    pool = Subset(train, draw_support(train.labels, shots=SUPPORT, seed=0, num_classes=num_classes))

    def features(source: Source) -> Tensor:
        return outputs_of(
            lambda images: representation(model, images), source, preprocess=preprocess, device=device
        )

    result = fewshot_accuracy(
        features(pool),
        pool.labels,
        features(test),
        test.labels,
        shots=[SHOTS],
        seeds=DRAWS,
        class_names=target.classes,
    )
    return result.score(SHOTS).mean


def measure_speed(run: Run, device: torch.device) -> dict[str, float]:
    """Measure images per second and, on CUDA, the largest batch (appendix D.5)."""
    torch.manual_seed(run.seed)
    model = build(run.model).to(device)
    is_cuda = device.type == "cuda"
    precision: Precision = "bf16" if is_cuda else "fp32"
    (speed,) = measure_speeds(
        {"model": model},
        image_size=run.model.image_size,
        device=device,
        precision=precision,
        batch_size=run.recipe.training.batch_size if is_cuda else 2,
        turns=3 if is_cuda else 1,
        turn_seconds=0.5 if is_cuda else 0.05,
    )
    measures = {"images_per_second": speed.images_per_second, "latency_ms": speed.latency_ms}
    if is_cuda:
        measures["largest_batch"] = float(
            largest_batch(model, image_size=run.model.image_size, device=device, precision=precision)
        )
    return measures
