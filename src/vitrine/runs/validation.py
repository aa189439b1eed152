"""The validation images of a run, as evaluations read them: logits, mean losses, quality of representations.

Every evaluation hides the same patches and cuts the same views, so that its losses can be compared. Labels of images
that are learned without them measure the representation (nearest neighbours) and are never trained on.

Shapes: N images of a split, D width, K classes.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from vitrine.data.decoding.annotation import Map
from vitrine.data.loading.loader import Batch, Loader
from vitrine.data.loading.order import Rows, evaluation_rows
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.sources.source import NO_LABEL, Source, Subset
from vitrine.errors import DataError
from vitrine.evaluation.box_predictions import predict_boxes
from vitrine.evaluation.detection import score_boxes
from vitrine.evaluation.feature_statistics import collapse_warning, effective_rank, spread
from vitrine.evaluation.objects import by_class
from vitrine.evaluation.outputs import Outputs, run_model
from vitrine.evaluation.pixel_predictions import PixelPrediction, predict_pixels
from vitrine.evaluation.probes import nearest_neighbours
from vitrine.evaluation.segmentation import score_pixels
from vitrine.evaluation.temperature import calibrated_loss
from vitrine.models.dense.config import DenseConfig
from vitrine.models.dropout import image_keys, randomness_of
from vitrine.objectives.objective import PartsOf
from vitrine.recipes.recipe import Recipe
from vitrine.runs.run_data import RunData
from vitrine.runtime.processes import Processes, gathered, mean_over
from vitrine.runtime.progress import notice, quiet
from vitrine.training.task import Evaluate

# Images whose representations are measured, per split: enough for a point of accuracy, seconds of work.
MOST_PROBED = 2000
# Masks and views of an evaluation are drawn from this seed, independently of the run's seed.
EVALUATION_SEED = 0
# Name of the number that decides which weights of a classifier are kept.
CALIBRATED_LOSS = "calibrated_loss"
MOST_AT_ONCE = 64


class SplitValidation:
    """The validation split of a run; remembers the outputs of the latest and of the best evaluation."""

    def __init__(
        self,
        data: RunData,
        preprocess: Preprocess,
        *,
        batch_size: int,
        workers: int,
        processes: Processes,
        is_sharded: bool,
    ) -> None:
        assert data.validation is not None
        self.train, self.source, self.preprocess = data.train, data.validation, preprocess
        self.workers, self.processes, self.is_sharded = workers, processes, is_sharded
        world_size = processes.world_size
        # Small enough to fit into memory beside the training state.
        self.batch_size = max(min(batch_size, MOST_AT_ONCE * world_size) // world_size, 1)
        self.latest: Outputs | None = None
        self.best: Outputs | None = None

    @property
    def num_images(self) -> int:
        """Number of images."""
        return len(self.source)

    def keep_as_best(self) -> None:
        """Remember the latest outputs as those of the best weights, for the report."""
        self.best = self.latest

    def logits(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the logits (N, K) of all images and their labels: (N,), or flags (N, K) with several per image."""
        with quiet():
            outputs = run_model(
                module, self.source, preprocess=self.preprocess, batch_size=self.batch_size,
                num_workers=self.workers, device=self.processes.device, is_sharded=self.is_sharded,
                requires_finite=False,
            )  # fmt: skip
        if outputs.failures:
            raise DataError(f"cannot read a validation image: {next(iter(outputs.failures.values()))}")
        self.latest = outputs
        return outputs.rows, torch.from_numpy(self.source.targets(np.arange(len(self.source))))

    def pixel_scores(self, module: nn.Module) -> dict[str, float]:
        """Return mean IoU and accuracies over all pixels of all pictures, each at its own size."""
        rank, world_size = self.processes.rank, self.processes.world_size
        length = len(self.source)
        predictions = predict_pixels(
            module, self.source, preprocess=self.preprocess, device=self.processes.device,
            num_workers=self.workers,
            indices=range(rank * length // world_size, (rank + 1) * length // world_size),
        )  # fmt: skip
        score, _ = score_pixels(pairs_of(predictions, self.source), classes=self.source.classes)
        counts = torch.from_numpy(score.confusion).double().to(self.processes.device)
        summed = (mean_over(counts, self.processes) * world_size).round().long().cpu().numpy()
        return replace(score, confusion=summed, num_images=length).headline()

    def object_scores(self, module: nn.Module, *, config: DenseConfig) -> dict[str, float]:
        """Return COCO's numbers over the boxes or the masks of all pictures, each at its own size."""
        rank, world_size = self.processes.rank, self.processes.world_size
        length = len(self.source)
        own = []
        for prediction in predict_boxes(
            module, self.source, preprocess=self.preprocess, device=self.processes.device,
            num_workers=self.workers, config=config,
            indices=range(rank * length // world_size, (rank + 1) * length // world_size),
        ):  # fmt: skip
            if prediction.error is not None:
                raise DataError(f"cannot read a validation image: {prediction.error}")
            own.append(by_class(self.source.annotation(prediction.index), prediction))
        pairs = [one for part in gathered(own, self.processes) for one in part]
        return dict(score_boxes(pairs, classes=self.source.classes).numbers)

    def mean_sums(self, module: nn.Module, parts_of: PartsOf) -> dict[str, Tensor]:
        """Return the mean loss per image as `loss`, and the means of the other sums, every image once."""
        preprocess, totals = self.preprocess, dict[str, Tensor]()

        def add(pixels: Tensor, rows: Rows, weight: float) -> None:
            first = int(rows.indices[0])
            keys = image_keys(EVALUATION_SEED, first=first, count=len(pixels), device=pixels.device)
            with randomness_of(keys):
                losses, sums = module(*parts_of(pixels.float(), rows, EVALUATION_SEED))
            sums = {"loss": losses.sum(), **sums, "count": losses.new_tensor(len(pixels))}
            for name, value in sums.items():
                totals[name] = totals.get(name, 0) + weight * value.double()

        zeros = torch.zeros(1, *preprocess.shape, device=self.processes.device)
        for batch in self.batches():
            if batch is None:
                add(zeros, evaluation_rows(length=1, batch_size=1)[0], 0.0)
            else:
                add(batch.images, batch.rows, 1.0)
        count = mean_over(totals.pop("count"), self.processes)
        return {name: mean_over(value, self.processes) / count for name, value in totals.items()}

    def batches(self) -> Iterator[Batch | None]:
        """Yield this process's share of the images once, then None until all processes made as many passes.

        A sharded model gathers its weights in every pass, so it must run for None too.
        """
        world_size = self.processes.world_size
        left = math.ceil(math.ceil(len(self.source) / world_size) / self.batch_size)
        with Loader(
            self.source, self.preprocess, batch_size=self.batch_size * world_size, rank=self.processes.rank,
            world_size=world_size, num_workers=self.workers, device=self.processes.device,
        ) as loader:  # fmt: skip
            for batch in loader.evaluation_batches():
                yield batch
                left -= 1
        yield from [None] * left

    def representation(
        self, module: nn.Module, *, advice: str, information: float | None, num_outputs: int | None
    ) -> dict[str, float]:
        """Measure rank and spread of representations, nearest neighbours where there are labels, and collapse."""
        features, labels = self.probe(module, self.source)
        measures = {"feature_rank": effective_rank(features), "feature_spread": spread(features)}
        if self.source.is_labelled and not self.source.is_multi_label:
            support = self.probe(module, self.train)
            measures["knn_accuracy"] = neighbour_accuracy(
                support, (features, labels), num_classes=len(self.source.classes)
            )
        warning = collapse_warning(
            rank=measures["feature_rank"], spread=measures["feature_spread"], information=information,
            num_outputs=num_outputs,
        )  # fmt: skip
        if self.processes.is_first and warning is not None:
            notice(f"{warning}; {advice}")
        return {**measures, "collapsed": float(warning is not None)}

    def probe(self, module: nn.Module, source: Source) -> tuple[Tensor, Tensor]:
        """Return representations (N, D) and labels (N,) of some images of a split, on every process."""
        if len(source) > MOST_PROBED:
            chosen = np.random.default_rng(EVALUATION_SEED).choice(len(source), MOST_PROBED, replace=False)
            source = Subset(source, np.sort(chosen))
        features: list[Tensor] = []
        labels: list[Tensor] = []
        with Loader(
            source, self.preprocess, batch_size=self.batch_size, num_workers=self.workers,
            device=self.processes.device,
        ) as loader:  # fmt: skip
            for batch in loader.evaluation_batches():
                features.append(module(self.preprocess.normalise(batch.images)).float().cpu())
                labels.append(batch.labels.cpu())
        return torch.cat(features), torch.cat(labels)


def pairs_of(predictions: Iterable[PixelPrediction], source: Source) -> Iterator[tuple[Map, Map]]:
    """Yield the true and the predicted class map of each picture; refuse one that cannot be read."""
    for one in predictions:
        truth = source.annotation(one.index).classes
        if one.classes is None or truth is None:
            raise DataError(f"cannot read a validation image: {one.error}")
        yield truth, one.classes


def with_calibrated_loss(evaluate: Evaluate, validation: SplitValidation) -> Evaluate:
    """Add the log loss at the best temperature to an evaluation of a classifier.

    It changes less from one evaluation to the next than the accuracy on a few images, and, unlike the plain loss, it
    does not punish the low confidence that label smoothing teaches: the saved model is calibrated.
    """

    def evaluate_both(module: nn.Module) -> dict[str, float]:
        scores = evaluate(module)
        outputs = validation.latest
        if outputs is None:
            return scores
        targets = torch.from_numpy(validation.source.targets(np.arange(len(validation.source))))
        return {**scores, CALIBRATED_LOSS: calibrated_loss(outputs.rows, targets)}

    return evaluate_both


def neighbour_accuracy(
    support: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], *, num_classes: int
) -> float:
    """Return the fraction of labelled test images that their nearest labelled support images classify correctly."""
    (known, classes), (features, labels) = (
        (rows[labels != NO_LABEL], labels[labels != NO_LABEL]) for rows, labels in (support, test)
    )
    predicted = nearest_neighbours(known, classes, features, num_classes=num_classes)
    return float((predicted == labels).double().mean())


def num_evaluated(data: RunData, recipe: Recipe) -> int:
    """Count the images that one evaluation reads; representations are measured on some of both splits again."""
    if data.validation is None:
        return 0
    count = len(data.validation)
    if not recipe.needs_labels:
        count += sum(min(len(source), MOST_PROBED) for source in (data.validation, data.train))
    return 2 * count if recipe.training.evaluates_twice else count


def with_evaluations(recipe: Recipe, data: RunData) -> Recipe:
    """Spread some evaluations over the run, unless the recipe decides it."""
    return recipe.with_evaluations_for(len(data.train), num_evaluated=num_evaluated(data, recipe))


def classes_without_validation(data: RunData) -> tuple[str, ...]:
    """Name the classes that have too few images for any to be held out."""
    train, val = data.train, data.validation
    if val is None:
        return ()
    counts = zip(train.classes, train.counts(), val.counts(), strict=True)
    return tuple(name for name, trained, held_out in counts if trained and not held_out)
