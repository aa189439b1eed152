"""Train and choose by cross-validation if there are few images: one network per fold, then the mean of their weights.

The training images are divided into folds. Each fold's network starts from a head that was solved without the fold,
trains without it, and is scored on it, so that every image is scored once. All networks start from the same weights
and stay near them, so their mean is one network that has learned from all images (arXiv:2203.05482). If the first
fold finds no gain over the closed form, the others are not trained.

Shapes: N images, K classes, R features.
"""

import dataclasses
import time

from torch import Tensor

from vitrine.evaluation.closed_form import ClosedForm
from vitrine.evaluation.metrics import wilson_interval
from vitrine.recipes.recipe import Recipe
from vitrine.runs.fast_run import scored
from vitrine.runs.fold_choice import Choice, chosen, contenders_of
from vitrine.runs.fold_training import FOLDS, distances_of, folds_of, trained_folds
from vitrine.runs.left_out import write_left_out
from vitrine.runs.records import Execution, RunOutput, StartingModel, TrainingResult
from vitrine.runs.run_data import RunData
from vitrine.runs.run_end import measure_trust, report_run, save_model, save_statistics
from vitrine.runs.run_outcome import with_report, write_scores
from vitrine.runs.run_report import LEFT_OUT_NOTE, RunReport
from vitrine.runs.run_split import undivided
from vitrine.runs.run_start import check_data, exclusive, write_records
from vitrine.runs.run_trust import LeftOut
from vitrine.runtime.log_file import logged_to
from vitrine.runtime.processes import Processes, joined_processes, on_first_process
from vitrine.runtime.progress import notice
from vitrine.runtime.run_folder import RunFolder
from vitrine.spelling import printable

# With fewer images a fold would lack classes.
LEAST_IMAGES = 12


def has_free_length(recipe: Recipe) -> bool:
    """Whether all weights are trained, and the user has set no number of steps or evaluations."""
    training = recipe.training
    is_free = bool(recipe.fewest_steps) and "total_steps" not in recipe.asked_for
    is_whole = training.lora_rank is None and training.trains == "all" and not training.frozen_blocks
    return is_free and is_whole and training.evaluate_every is None and recipe.epochs is not None


def are_few(data: RunData, recipe: Recipe) -> bool:
    """Whether the data has no validation set, and too few images to hold some of them out for a reliable choice."""
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
        distances = None
        if choice.share:
            distances = distances_of(
                start, data, folds, results, choice.share, execution=execution, processes=processes
            )
        seconds, steps = time.monotonic() - began, sum(result.steps for result in results)
        scores = scored(choice.outputs, data.train)

        report = save_choice(
            choice, start, data, recipe, distances=distances, scores=scores, steps=steps, execution=execution,
            output=output, processes=processes,
        )  # fmt: skip
        on_first_process(folder.remove_folds, processes)
    return described(
        choice, start, data, folder=folder, scores=scores, steps=steps, num_folds=len(results), seconds=seconds,
        report=report,
    )  # fmt: skip


def save_choice(
    choice: Choice,
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    distances: Tensor | None,
    scores: dict[str, float],
    steps: int,
    execution: Execution,
    output: RunOutput,
    processes: Processes,
) -> RunReport | None:
    """Write the records, the model, its statistics and its page."""
    folder = output.folder

    def write() -> None:
        write_records(start, data, recipe, execution=execution, output=output)
        write_choice(choice, start, data, recipe, folder=folder, scores=scores, steps=steps)
        write_left_out(folder, choice.outputs, data.train)

    on_first_process(write, processes)
    save_statistics(choice.model, start, data, folder=folder, workers=execution.workers, processes=processes)
    if output.measures_trust:
        left_out = LeftOut(logits=choice.outputs.rows, distances=distances)
        measure_trust(folder, data, execution=execution, processes=processes, left_out=left_out)
    report = None
    if output.reports:
        report = report_run(
            folder, dataclasses.replace(data, splits={"val": data.train}), choice.outputs, execution=execution,
            processes=processes, notes=[LEFT_OUT_NOTE],
        )  # fmt: skip
    return report


def write_choice(
    choice: Choice,
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    folder: RunFolder,
    scores: dict[str, float],
    steps: int,
) -> None:
    """Write the metrics before and after training, and the model."""
    write_scores(folder, {0: choice.before, steps: scores})
    save_model(
        choice.model, start, data, recipe, folder=folder, calibration=choice.calibration,
        accuracy=scores["accuracy"],
    )  # fmt: skip


def described(
    choice: Choice,
    start: StartingModel,
    data: RunData,
    *,
    folder: RunFolder,
    scores: dict[str, float],
    steps: int,
    num_folds: int,
    seconds: float,
    report: RunReport | None,
) -> TrainingResult:
    """Describe the finished run; its scores are those of all training images, each left out once."""
    count, accuracy = len(data.train), scores["accuracy"]
    result = TrainingResult(
        folder=folder.path,
        model=folder.model,
        steps=steps,
        accuracy=accuracy,
        best_step=steps if choice.share else 0,
        interval=wilson_interval(accuracy, count),
        num_validation=count,
        is_left_out=True,
        num_folds=num_folds,
        images_per_second=0.0,
        closed_form=start.closed_form,
        contenders=contenders_of(start, choice, accuracy=accuracy, num_images=count, seconds=seconds),
        start=choice.before,
        seconds=seconds,
        calibration=choice.calibration.to_json(),
        evaluation=scores,
        skipped=data.files.skipped,
        data=printable(data.address),
    )
    return with_report(result, report)
