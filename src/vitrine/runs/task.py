"""From data, model and recipe to the functions that the training loop takes: batches, loss, evaluation, pictures."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vitrine.data.loading.loader import Batch, Loader
from vitrine.data.loading.order import training_rows
from vitrine.data.loading.resident import ResidentLoader, can_reside
from vitrine.data.preparing.annotated_view import AnyView
from vitrine.data.preparing.native_view import NativeView
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.preparing.training_view import TrainView
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.features import extract_features
from vitrine.models import Model, ViT
from vitrine.models.sizes import require_tiling
from vitrine.objectives.objective import RunContext
from vitrine.objectives.teacher import Teacher
from vitrine.recipes.recipe import Recipe
from vitrine.runs.phases import Prepare, with_phases
from vitrine.runs.pictures import make_drawing
from vitrine.runs.records import StartingModel
from vitrine.runs.run_data import RunData
from vitrine.runs.validation import CALIBRATED_LOSS, SplitValidation, with_calibrated_loss
from vitrine.runtime.devices import is_bf16
from vitrine.runtime.processes import Processes
from vitrine.runtime.run_folder import RunFolder
from vitrine.training.config import TrainingConfig
from vitrine.training.step import Parts
from vitrine.training.task import Evaluate, Task


def context_of(
    start: StartingModel, data: RunData, recipe: Recipe, *, workers: int, processes: Processes
) -> RunContext:
    """Collect the values that an objective may read."""
    training, teacher = recipe.training, start.teacher
    answers = (
        None if teacher is None else answers_of(teacher, data.train, workers=workers, processes=processes)
    )
    return RunContext(
        model=start.model,
        preprocess=start.preprocess,
        classes=tuple(data.train.classes),
        augment=recipe.augment,
        seed=training.seed,
        total_steps=training.total_steps,
        batch_size=training.batch_size,
        num_training_images=len(data.train),
        class_counts=tuple(map(int, data.train.counts())) if data.train.is_labelled else (),
        processes=processes,
        teacher=teacher,
        answers=answers,
    )


def build_task(
    context: RunContext,
    loader: Loader | ResidentLoader,
    train: Source,
    recipe: Recipe,
    *,
    folder: RunFolder,
    validation: SplitValidation | None,
    evaluate: Evaluate | None = None,
    is_sharded: bool = False,
    evaluates_start: bool = False,
) -> Task:
    """Build what the loop trains; `evaluate` replaces the objective's own evaluation."""
    objective, criterion = recipe.objective, None
    require_pairs(recipe, context.processes)
    draw = None
    if validation is not None:
        evaluate = evaluate or objective.evaluation(context, validation)
        # A sharded model runs on all processes only; pictures are drawn by one.
        if objective.has_pictures and not is_sharded:
            draw = make_drawing(objective, context, validation.source, folder)
        if evaluate is not None and objective.metric == "accuracy":
            evaluate, criterion = with_calibrated_loss(evaluate, validation), CALIBRATED_LOSS
    return Task(
        batches=lambda start, stop: loader.training_batches(start_step=start, stop_step=stop),
        prepare=with_phases(
            with_patch_sizes(objective.prepare(context), context.model, recipe), context.model, recipe
        ),
        loss_of=objective.losses_in(context),
        divides_batch=not objective.compares_images,
        evaluate=evaluate,
        metric=objective.metric,
        criterion=criterion,
        evaluates_start=evaluates_start,
        on_best=None if validation is None else validation.keep_as_best,
        after_step=objective.after_step(context),
        draw=draw,
        phases=recipe.phases,
        names_of=make_names(train, recipe.training, repeats=recipe.views.repeats),
    )


def with_patch_sizes(prepare: Prepare, model: Model, recipe: Recipe) -> Prepare:
    """Draw the patch size of every step from the recipe's (FlexiViT), the same in all processes."""
    sides = recipe.views.patch_sizes
    if not sides:
        return prepare
    if not isinstance(model, ViT) or model.config.stem is not None or recipe.max_patches is not None:
        raise ConfigError("patch_sizes need a plain ViT and images of one size")
    for side in sides:
        require_tiling(model.config.image_size, (side, side))

    def prepared(batch: Batch) -> Parts:
        side = int(np.random.default_rng((recipe.training.seed, batch.rows.step)).choice(sides))
        model.trained_patch = (side, side)
        return prepare(batch)

    return prepared


def require_pairs(recipe: Recipe, processes: Processes) -> None:
    """Refuse a batch that processes cannot divide into pairs, if images are mixed."""
    batch_size, count = recipe.training.batch_size, processes.world_size
    if recipe.augment.mixes and batch_size // count % 2:
        raise ConfigError(
            f"mixup and cutmix mix images in pairs, so each of {count} processes needs an even share of the batch, "
            f"got {batch_size}; use a multiple of {2 * count}",
            option="batch_size",
        )


def make_loader(
    train: Source, preprocess: Preprocess, recipe: Recipe, *, workers: int, processes: Processes
) -> Loader | ResidentLoader:
    """Return the loader of training batches; the caller closes it."""
    view, device = training_view(recipe, preprocess), processes.device
    sharing: dict[str, Any] = {
        "batch_size": recipe.training.batch_size,
        "seed": recipe.training.seed,
        "rank": processes.rank,
        "world_size": processes.world_size,
        "device": device,
        "repeats": recipe.views.repeats,
        "alternates_flip": recipe.views.alternates_flip,
    }
    if isinstance(view, TrainView) and is_resident(train, view, device):
        return ResidentLoader(train, view, **sharing)
    # Beside a GPU, more than two threads compete for the GIL with the one that launches kernels: on one H200
    # machine 15 threads read 841 images/s, 15 processes 3,351.
    is_busy = device.type == "cuda" and workers > 2
    kind: Literal["threads", "processes"] = "processes" if is_busy else "threads"
    return Loader(
        train,
        view,
        num_workers=workers,
        worker_kind=kind,
        # A run that began on a GPU may be resumed without one; then workers decode all images.
        device_share=recipe.views.device_share if device.type == "cuda" else 0.0,
        **sharing,
    )


def is_resident(train: Source, view: AnyView, device: torch.device) -> bool:
    """Whether all images are held in the device's memory, so that no file is read during the run."""
    return device.type == "cuda" and isinstance(view, TrainView) and can_reside(train, view)


def training_view(recipe: Recipe, preprocess: Preprocess) -> AnyView:
    """Return what the objective cuts from a training image, by the recipe's crop."""
    views, side = recipe.views, recipe.objective.source_size
    if preprocess.max_patches is not None and preprocess.patch is not None:
        return NativeView(
            patch=preprocess.patch, max_patches=preprocess.max_patches, image_channels=preprocess.channels,
            crop=views.crop, area=views.area, flip=views.flip,
        )  # fmt: skip
    pictures = TrainView(
        size=preprocess.size if side is None else (side, side),
        channels=preprocess.channels,
        crop=views.crop,
        area=views.area,
        flip=views.flip,
        resize_size=None if views.resize_size is None else (views.resize_size, views.resize_size),
    )
    return recipe.objective.view(pictures)


def make_names(train: Source, training: TrainingConfig, *, repeats: int = 1) -> Callable[[int], list[str]]:
    """Return the function from a step to the files of its batch."""

    def names_of(step: int) -> list[str]:
        rows = training_rows(
            step, length=len(train), batch_size=training.batch_size, seed=training.seed, repeats=repeats
        )
        return [train.name(int(index)) for index in rows.indices]

    return names_of


def answers_of(
    teacher: Teacher, train: Source, *, workers: int, processes: Processes
) -> Callable[[Callable[[Tensor], Tensor], str], Tensor]:
    """Return the function that asks a teacher about every training image, or finds the answers of an earlier run.

    The cache key is the content: weights, preprocessing, data, precision and question.
    """

    def answers(question: Callable[[Tensor], Tensor], output: str) -> Tensor:
        features = extract_features(
            teacher.model.to(processes.device), train, preprocess=teacher.preprocess, num_workers=workers,
            device=processes.device, what="Asking the teacher",
            precision="bf16" if is_bf16(teacher.precision, device=processes.device.type) else "fp32",
            function=question, output=f"{output} {teacher.weights}",
        )  # fmt: skip
        if features.failures:
            name = train.name(next(iter(features.failures)))
            raise DataError(f"the teacher cannot read {name}; exclude it, or set objective.caches=false")
        return features.rows

    return answers
