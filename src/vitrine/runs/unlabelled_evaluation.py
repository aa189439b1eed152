"""What is said of a representation along the way: loss, feature statistics, nearest neighbours, a collapse alarm.

Every evaluation hides the same patches and cuts the same views, so that its losses can be compared. Where there are
labels, they judge the representation (nearest neighbours) and are never learned from.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitrine.data.loading.order import Rows
    from vitrine.data.sources.source import Source
    from vitrine.runs.training_run import Setting
    from vitrine.runs.unlabelled_task import PartsOf
    from vitrine.runtime.processes import Processes
    from vitrine.training.task import Evaluate

# Images whose representations are looked at, of either split: enough for a point of accuracy, seconds of work.
MOST_PROBED = 2000
# At evaluation masks and views are drawn from this seed, whatever the run's.
EVALUATION_SEED = 0


def make_unlabelled_evaluation(setting: "Setting", processes: "Processes", parts_of: "PartsOf") -> "Evaluate":
    """Return the function that judges on the validation split: loss, feature statistics, nearest neighbours."""
    from torch import nn

    from vitrine.evaluation.feature_statistics import collapse_warning, effective_rank, spread
    from vitrine.runtime.progress import notice

    train_split, source = setting.splits["train"], setting.splits["val"]

    def evaluate(model: nn.Module) -> dict[str, float]:
        means = mean_sums(model, setting, processes, parts_of)
        found = {"loss": float(means["loss"])}
        rows, labels = probed(model, source, setting, processes)
        found |= {"feature_rank": effective_rank(rows), "feature_spread": spread(rows)}
        if source.is_labelled and not source.is_multi_label:
            support = probed(model, train_split, setting, processes)
            found["knn_accuracy"] = neighbour_accuracy(support, (rows, labels), len(source.classes))
        outputs = output_statistics(means)
        warning = collapse_warning(
            rank=found["feature_rank"], spread=found["feature_spread"],
            information=outputs.get("output_information"),
            num_outputs=min(setting.recipe.self_distillation.num_prototypes, len(source)),
        )  # fmt: skip
        found |= outputs
        if processes.is_first and warning is not None:
            notice(f"{warning}; {ADVICE[setting.recipe.objective]}")
        return {**found, "collapsed": float(warning is not None)}

    return evaluate


ADVICE = {
    "masked-patches": "a lower learning rate or a longer warm-up may help",
    "autoencoder": "a lower learning rate or a longer warm-up may help",
    "dino": "a lower self_distillation.teacher_temperature, a lower learning rate or a larger batch may help",
    "distillation": "look at the teacher's own features, or try a lower learning rate",
}


def output_statistics(means: "dict[str, Tensor]") -> dict[str, float]:
    """Return what self-distillation's teacher says: entropy of an image's output, and what outputs tell of images."""
    from vitrine.evaluation.feature_statistics import output_information
    from vitrine.objectives.self_distillation import PROBABILITIES

    if PROBABILITIES not in means:
        return {}
    entropy = float(means["teacher_entropy"])
    return {
        "teacher_entropy": entropy,
        "output_information": output_information(means[PROBABILITIES], entropy),
    }


def mean_sums(
    model: "nn.Module", setting: "Setting", processes: "Processes", parts_of: "PartsOf"
) -> "dict[str, Tensor]":
    """Return the mean loss, and the means of its module's sums, over the validation split, every image once."""
    import torch

    from vitrine.data.loading.order import evaluation_rows
    from vitrine.models.dropout import image_keys, randomness_of
    from vitrine.runs.validation import validation_passes
    from vitrine.runtime.processes import mean_over

    preprocess = setting.preprocess
    totals: dict[str, torch.Tensor] = {}

    def add(pixels: "Tensor", rows: "Rows", weight: float) -> None:
        first = int(rows.indices[0])
        keys = image_keys(EVALUATION_SEED, first=first, count=len(pixels), device=pixels.device)
        with randomness_of(keys):
            losses, sums = model(*parts_of(pixels.float(), rows, EVALUATION_SEED))
        for name, value in {"loss": losses.sum(), **sums, "count": losses.new_tensor(len(pixels))}.items():
            totals[name] = totals.get(name, 0) + weight * value.double()

    nothing = torch.zeros(1, preprocess.channels, *preprocess.size, device=processes.device)
    for found in validation_passes(setting, processes):
        if found is None:
            add(nothing, evaluation_rows(length=1, batch_size=1)[0], 0.0)
        else:
            add(found.images, found.rows, 1.0)
    count = mean_over(totals.pop("count"), processes)
    return {name: mean_over(value, processes) / count for name, value in totals.items()}


def probed(
    model: "nn.Module", source: "Source", setting: "Setting", processes: "Processes"
) -> "tuple[Tensor, Tensor]":
    """Return representations (N, D) and labels (N,) of a seeded part of a split; every process works out all."""
    import numpy as np
    import torch

    from vitrine.data.loading.loader import Loader
    from vitrine.data.sources.source import Subset
    from vitrine.runs.validation import evaluation_batch

    if len(source) > MOST_PROBED:
        chosen = np.random.default_rng(EVALUATION_SEED).choice(len(source), MOST_PROBED, replace=False)
        source = Subset(source, np.sort(chosen))
    parts: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    with Loader(
        source, setting.preprocess, batch_size=evaluation_batch(setting, 1), num_workers=setting.workers,
        device=processes.device,
    ) as loader:  # fmt: skip
        for found in loader.evaluation_batches():
            parts.append(model(setting.preprocess.normalise(found.images)).float().cpu())
            labels.append(found.labels.cpu())
    return torch.cat(parts), torch.cat(labels)


def neighbour_accuracy(
    support: "tuple[Tensor, Tensor]", test: "tuple[Tensor, Tensor]", num_classes: int
) -> float:
    """Return the share of labelled test images that their nearest labelled support images name rightly."""
    from vitrine.data.sources.source import NO_LABEL
    from vitrine.evaluation.probes import nearest_neighbours

    (known, names), (rows, labels) = (
        (rows[found != NO_LABEL], found[found != NO_LABEL]) for rows, found in (support, test)
    )
    guessed = nearest_neighbours(known, names, rows, num_classes=num_classes)
    return float((guessed == labels).double().mean())
