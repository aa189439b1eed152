"""Choose by cross-validation where images are few, and lose none of them: fold by fold, then the mean of the weights.

The training images are divided into folds. Each fold's network starts from a head that was solved without the fold,
trains without it, and is scored on it, so that every image decides once. All networks start from the same weights and
stay near them, so their mean is one network that has learned from all images (arXiv:2203.05482). If the first fold
finds no gain over the closed form, the others are not trained.

Shapes: N images, K classes, R features.
"""

import copy
import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrine.data.sources.grouping import merged
from vitrine.data.sources.source import Subset
from vitrine.data.sources.splitting import duplicate_groups, fold_numbers
from vitrine.errors import TryVerb
from vitrine.evaluation.calibration import CalibrationFit, calibrated_rows
from vitrine.evaluation.closed_form import ClosedForm, is_right
from vitrine.evaluation.familiarity import fit_distance
from vitrine.evaluation.features import representation
from vitrine.evaluation.metrics import wilson_interval
from vitrine.evaluation.outputs import Outputs, run_model
from vitrine.evaluation.temperature import calibrated_loss, divide_head
from vitrine.models import Model
from vitrine.recipes.recipe import Recipe
from vitrine.runs.fast_run import LEFT_OUT_NOTE, scored
from vitrine.runs.mixing import SHARES, between, with_weights
from vitrine.runs.records import Contender, Execution, RunOutput, StartingModel, TrainingResult
from vitrine.runs.run_data import RunData, split_groups, undivided
from vitrine.runs.run_end import (
    FINE_TUNED,
    between_name,
    measure_trust,
    report_run,
    save_model,
    save_statistics,
    without_prefix,
)
from vitrine.runs.run_start import check_data, exclusive, write_records
from vitrine.runs.run_trust import LeftOut, first_labels
from vitrine.runs.solved_head import features_of, name_of, put_head, solve
from vitrine.runs.train_run import train_run
from vitrine.runtime.log_file import logged_to
from vitrine.runtime.processes import Processes, joined_processes, on_first_process
from vitrine.runtime.progress import notice, quiet
from vitrine.spelling import printable
from vitrine.training.metrics_log import MetricsFile
from vitrine.training.saving import newest_state, weights_of
from vitrine.training.stopping import StoppedError

FOLDS = 3
# With fewer images a fold would lack classes.
LEAST_IMAGES = 12
# The passes over the data of one fold, relative to a run of its own: all folds together cost as much as that run.
SHARE_OF_PASSES = 0.5
LAST_SHARE = 1.0

Fold: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Indices of the images that a fold's network learns from, and of those that it is scored on."""


@dataclass(frozen=True, kw_only=True)
class FoldResult:
    """One trained fold: its weights before and after, and its logits on its own images."""

    first: dict[str, Tensor]
    last: dict[str, Tensor]
    logits: dict[float, Tensor]
    """By share of the trained weights; share 0 is the start, a head that was solved without the fold."""
    heads: dict[str, Tensor]
    """Logits of the closed form and of the trained head, both without the fold."""
    steps: int


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is saved, and the evidence for it."""

    share: float
    """Of the change that training made: 0 is the closed form."""
    model: Model
    """Calibrated."""
    outputs: Outputs
    """Calibrated logits of all training images, each by a network without it."""
    calibration: CalibrationFit
    before: dict[str, float]
    """Loss and accuracy of the closed form on left-out images."""
    accuracies: dict[str, float]
    """Of the heads and of the end of training, on the same left-out images, where all folds were trained."""


def has_free_length(recipe: Recipe) -> bool:
    """Whether nobody asked for so many steps, epochs or evaluations."""
    training = recipe.training
    is_free = bool(recipe.fewest_steps) and "total_steps" not in recipe.asked_for
    is_whole = training.lora_rank is None and training.trains == "all" and not training.frozen_blocks
    return is_free and is_whole and training.evaluate_every is None and recipe.epochs is not None


def are_few(data: RunData, recipe: Recipe) -> bool:
    """Whether the images, which are not divided by the set itself, are so few that a part would decide by chance."""
    whole = undivided(data.splits)
    return whole is not None and LEAST_IMAGES <= len(whole) <= recipe.few_images


def cross_validated_run(
    start: StartingModel,
    solved: ClosedForm,
    data: RunData,
    recipe: Recipe,
    *,
    execution: Execution,
    output: RunOutput,
    allow_changed_data: bool = False,
) -> TrainingResult:
    """Train the folds of `data`, in folders below the run's, and save the mean of their weights, or the closed form.

    `start` has the head `solved` on all images. Folds that were trained before an interruption are not trained again.
    """
    folder, began = output.folder, time.monotonic()
    with (
        joined_processes(execution.device) as processes,
        exclusive(folder, processes),
        logged_to(folder, is_first=processes.is_first),
    ):

        def begin() -> None:
            if folder.is_run:
                check_data(data, folder, allow_changed=allow_changed_data)
            else:
                write_records(
                    start, data, recipe, execution=execution, output=output, is_cross_validating=True
                )
                save_model(start.model.cpu(), start, data, recipe, folder=folder, to=folder.closed_form)

        on_first_process(begin, processes)
        folds = on_first_process(lambda: folds_of(data, recipe, workers=execution.workers), processes)
        notice(
            f"Few images: {FOLDS} networks are trained, each without another third of the images, and their weights "
            "averaged"
        )
        results = trained_folds(
            start, data, folds, recipe, execution=execution, output=output, processes=processes
        )
        choice = chosen(start, solved, data, folds, results)
        left_out = LeftOut(logits=choice.outputs.rows)
        if choice.share:
            distances = distances_of(
                start, data, folds, results, choice.share, execution=execution, processes=processes
            )
            left_out = LeftOut(logits=choice.outputs.rows, distances=distances)
        seconds, steps = time.monotonic() - began, sum(result.steps for result in results)
        scores = scored(choice.outputs, data.train)

        def write() -> None:
            write_records(start, data, recipe, execution=execution, output=output)
            sink = MetricsFile(folder, done_steps=0)
            for step, values in ((0, choice.before), (steps, scores)):
                sink.write({"step": step, **{f"val_{name}": value for name, value in values.items()}})
            sink.close()
            save_model(
                choice.model, start, data, recipe, folder=folder, calibration=choice.calibration,
                accuracy=scores["accuracy"],
            )  # fmt: skip

        on_first_process(write, processes)
        save_statistics(
            choice.model, start, data, folder=folder, workers=execution.workers, processes=processes
        )
        if output.measures_trust:
            measure_trust(folder, data, execution=execution, processes=processes, left_out=left_out)
        report = None
        if output.reports:
            report = report_run(
                folder, dataclasses.replace(data, splits={"val": data.train}), choice.outputs, execution=execution,
                processes=processes, notes=[LEFT_OUT_NOTE],
            )  # fmt: skip
        on_first_process(folder.remove_folds, processes)
    count = len(data.train)
    return TrainingResult(
        folder=folder.path,
        model=folder.model,
        steps=steps,
        accuracy=scores["accuracy"],
        best_step=steps if choice.share else 0,
        interval=wilson_interval(scores["accuracy"], count),
        num_validation=count,
        is_left_out=True,
        num_folds=len(results),
        images_per_second=0.0,
        closed_form=start.closed_form,
        contenders=contenders_of(
            start, choice, accuracy=scores["accuracy"], num_images=count, seconds=seconds
        ),
        start=choice.before,
        seconds=seconds,
        calibration=choice.calibration.to_json(),
        evaluation=scores,
        skipped=data.skipped,
        mean_average_precision=None if report is None else report.mean_average_precision,
        worst=() if report is None else report.worst,
        worst_by="f1" if report is None else report.worst_by,
        mistakes=() if report is None else report.mistakes,
        report=None if report is None else report.file,
        data=printable(data.address),
    )


def folds_of(data: RunData, recipe: Recipe, *, workers: int) -> list[Fold]:
    """Divide the training images; near-duplicates and groups stay together."""
    with quiet():  # likely groups were reported when the data was opened
        groups = merged([duplicate_groups(data.train), split_groups(data.train, data.group, workers=workers)])
    number = fold_numbers(data.train, folds=FOLDS, seed=recipe.training.seed, groups=groups)
    return [(np.flatnonzero(number != fold), np.flatnonzero(number == fold)) for fold in range(FOLDS)]


def trained_folds(
    start: StartingModel,
    data: RunData,
    folds: Sequence[Fold],
    recipe: Recipe,
    *,
    execution: Execution,
    output: RunOutput,
    processes: Processes,
) -> list[FoldResult]:
    """Train the folds one after another; only the first one if it finds no gain over the closed form."""
    features, targets = features_of(start, data.train, workers=execution.workers, processes=processes)
    results: list[FoldResult] = []
    for number, (rest, fold) in enumerate(folds):
        heads = on_first_process(
            lambda rest=rest: solve(  # type: ignore[misc]
                features[rest], targets[rest], num_classes=len(data.train.classes), is_balanced=recipe.is_balanced,
                processes=processes, seed=recipe.training.seed,
            ),
            processes,
        )  # fmt: skip
        model = copy.deepcopy(start.model)
        put_head(model, heads[0])
        result = trained_fold(
            dataclasses.replace(start, model=model), data, (rest, fold), recipe, number=number,
            heads={name_of(head): head.logits(features[fold]).float() for head in heads}, execution=execution,
            output=output, processes=processes,
        )  # fmt: skip
        results.append(result)
        losses = {share: calibrated_loss(logits, targets[fold]) for share, logits in result.logits.items()}
        if number == 0 and not is_gain(losses):
            notice(
                f"Stopped after the first of {len(folds)} networks: training brings nothing over the closed form "
                f"(log loss {losses[0.0]:.3f} before, {losses[LAST_SHARE]:.3f} after)"
            )
            break
    return results


def is_gain(losses: Mapping[float, float]) -> bool:
    """Whether training, or a share of it, has a lower log loss than the closed form."""
    return min(losses.values()) < losses[0.0]


def trained_fold(
    start: StartingModel,
    data: RunData,
    fold: Fold,
    recipe: Recipe,
    *,
    number: int,
    heads: dict[str, Tensor],
    execution: Execution,
    output: RunOutput,
    processes: Processes,
) -> FoldResult:
    """Train without one fold, or resume there, and score the fold at every share of the trained weights."""
    own = output.folder.fold(number)
    train, val = (Subset(data.train, indices) for indices in fold)
    first = {name: value.detach().cpu().clone() for name, value in start.model.state_dict().items()}
    fold_recipe = recipe_of_fold(recipe, num_images=len(train))
    if not on_first_process(lambda: own.has_model, processes):
        state = on_first_process(lambda: newest_state(own.last_checkpoint), processes)
        try:
            train_run(
                start,
                dataclasses.replace(data, splits={"train": train, "val": val}, trains_on_all=False),
                fold_recipe,
                execution=execution,
                output=dataclasses.replace(
                    output, folder=own, plans=number == 0, reports=False, measures_trust=False
                ),
                resume_from=state,
            )
        except StoppedError as stopped:
            resume = TryVerb("resume", (str(output.folder),), "to continue")
            raise StoppedError(stopped.problem, advice=[resume]) from None
    state = newest_state(own.last_checkpoint)
    assert state is not None
    last = without_prefix(weights_of(state), recipe.objective.weights_prefix)
    logits = {0.0: next(iter(heads.values()))}
    for share in (*SHARES, LAST_SHARE):
        with quiet():
            outputs = run_model(
                with_weights(start.model.config, between(first, last, share)).to(processes.device), val,
                preprocess=start.preprocess, num_workers=execution.workers, device=processes.device,
            )  # fmt: skip
        logits[share] = outputs.rows
    steps = fold_recipe.training.total_steps
    return FoldResult(first=first, last=last, logits=logits, heads=heads, steps=steps)


def recipe_of_fold(recipe: Recipe, *, num_images: int) -> Recipe:
    """Return the recipe of a shorter run, which is evaluated at its ends alone."""
    assert recipe.epochs is not None
    training = dataclasses.replace(recipe.training, evaluate_every=None, patience=None)
    shorter = dataclasses.replace(
        recipe, training=training, epochs=SHARE_OF_PASSES * recipe.epochs, solves_head=False, mixes_start=False,
        least_steps=round(SHARE_OF_PASSES * recipe.least_steps),
        fewest_steps=round(SHARE_OF_PASSES * recipe.fewest_steps),
    )  # fmt: skip
    return shorter.with_steps_for(num_images)


def chosen(
    start: StartingModel,
    solved: ClosedForm,
    data: RunData,
    folds: Sequence[Fold],
    results: Sequence[FoldResult],
) -> Choice:
    """Choose the share with the least log loss on all left-out images, and build the model at it."""
    targets = torch.from_numpy(data.train.targets(np.arange(len(data.train)))).long()
    first = {name: value.detach().cpu() for name, value in start.model.state_dict().items()}
    before = Outputs(rows=solved.left_out_logits.float(), failures={})
    rows, named = {0.0: before.rows}, dict[str, Tensor]()
    if len(results) == len(folds):
        rows = {share: pooled(folds, [one.logits[share] for one in results]) for share in results[0].logits}
        named = {name: pooled(folds, [one.heads[name] for one in results]) for name in results[0].heads}
        named[FINE_TUNED] = rows[LAST_SHARE]
    losses = {share: calibrated_loss(logits, targets) for share, logits in rows.items()}
    share = min(losses, key=lambda one: losses[one])
    # Without a gain the closed form is that of all images: its own left-out scores come from larger fits.
    outputs, calibration = calibrated_rows(
        Outputs(rows=before.rows if share == 0 else rows[share], failures={}), targets
    )
    model = with_weights(start.model.config, moved(first, results, share))
    divide_head(model, calibration.temperature)
    return Choice(
        share=share,
        model=model,
        outputs=outputs,
        calibration=calibration,
        before=scored(before, data.train),
        accuracies={name: float(is_right(logits, targets).mean()) for name, logits in named.items()},
    )


def pooled(folds: Sequence[Fold], parts: Sequence[Tensor]) -> Tensor:
    """Put the logits of each fold at the places of its images: (N, K)."""
    rows = torch.zeros(sum(len(fold) for _, fold in folds), parts[0].shape[1])
    for (_, fold), part in zip(folds, parts, strict=True):
        rows[fold] = part
    return rows


def moved(first: dict[str, Tensor], results: Sequence[FoldResult], share: float) -> dict[str, Tensor]:
    """Move the weights by a share of the mean change of the folds."""
    if share == 0:
        return first
    weights = {}
    for name, value in first.items():
        changes = [result.last[name] - result.first[name] for result in results]
        weights[name] = (
            value + share * torch.stack(changes).mean(dim=0) if value.is_floating_point() else value
        )
    return weights


def distances_of(
    start: StartingModel,
    data: RunData,
    folds: Sequence[Fold],
    results: Sequence[FoldResult],
    share: float,
    *,
    execution: Execution,
    processes: Processes,
) -> Tensor:
    """Measure how far each image (N,) is from those that its fold's network has learned from."""
    labels = torch.from_numpy(first_labels(data.train).astype(np.int64))
    distances = torch.zeros(len(data.train), dtype=torch.float64)
    for (rest, fold), result in zip(folds, results, strict=True):
        model = with_weights(start.model.config, between(result.first, result.last, share)).to(
            processes.device
        )
        with quiet():
            rows = run_model(
                model, data.train, preprocess=start.preprocess, num_workers=execution.workers,
                device=processes.device, function=lambda images, model=model: representation(model, images),  # type: ignore[misc]
            ).rows  # fmt: skip
        distances[fold] = fit_distance(rows[rest], labels[rest])(rows[fold])
    return distances


def contenders_of(
    start: StartingModel, choice: Choice, *, accuracy: float, num_images: int, seconds: float
) -> tuple[Contender, ...]:
    """List what the run chose from, with the saved one marked."""
    assert start.closed_form is not None
    first, *others = start.closed_form.contenders
    rows = [dataclasses.replace(first, is_saved=choice.share == 0), *others]
    if choice.accuracies and choice.share:  # on the same folds, so that they can be compared
        rows = [
            Contender.of(one.name, choice.accuracies[one.name], num_images=num_images, seconds=one.seconds)
            for one in rows
            if one.name in choice.accuracies
        ]
    made = functools.partial(Contender.of, num_images=num_images, seconds=seconds)
    if FINE_TUNED in choice.accuracies:
        trained = made(FINE_TUNED, choice.accuracies[FINE_TUNED])
        rows.append(dataclasses.replace(trained, is_saved=choice.share == LAST_SHARE))
    if 0 < choice.share < LAST_SHARE:
        rows.append(dataclasses.replace(made(between_name(choice.share), accuracy), is_saved=True))
    return tuple(rows)
