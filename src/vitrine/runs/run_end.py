"""The end of a run: its trained model, its report and its result."""

from typing import Any

from vitrine.checkpoints import save
from vitrine.errors import VitrineError
from vitrine.evaluation.metrics import wilson_interval
from vitrine.models import Model, ModelConfig, build
from vitrine.recipes.recipe import Recipe, as_values
from vitrine.runs.records import Execution, StartingModel, TrainingResult
from vitrine.runs.run_data import RunData
from vitrine.runs.run_report import RunReport, write_report
from vitrine.runs.run_trust import store_trust
from vitrine.runs.validation import SplitValidation, classes_without_validation
from vitrine.runtime.processes import Processes
from vitrine.runtime.progress import notice
from vitrine.runtime.run_folder import RunFolder
from vitrine.spelling import printable
from vitrine.training.saving import newest_state, weights_of
from vitrine.training.task import Outcome


def save_model(
    start: StartingModel, data: RunData, recipe: Recipe, folder: RunFolder, *, accuracy: float | None = None
) -> None:
    """Save the best weights, or the last if nothing was evaluated, with their record."""
    model = trained_model(start.model.config, recipe, folder)
    save(
        model,
        folder.model,
        preprocess=start.preprocess,
        classes=list(data.train.classes) if model.config.num_classes else None,
        recipe=as_values(recipe),
        measured=measured_on(data, accuracy),
        overwrite=True,
    )


def measured_on(data: RunData, accuracy: float | None) -> dict[str, Any] | None:
    """Return the accuracy as a model's record holds it; None without one label per image and held-out images."""
    if accuracy is None or data.validation is None or data.validation.is_multi_label:
        return None
    count = len(data.validation)
    return {
        "accuracy": accuracy,
        "interval": list(wilson_interval(accuracy, count)),
        "num_images": count,
    }


def trained_model(config: ModelConfig, recipe: Recipe, folder: RunFolder) -> Model:
    """Build the model with the best weights of a run; the trained module may be sharded over many devices."""
    state = newest_state(folder.best_checkpoint) or newest_state(folder.last_checkpoint)
    assert state is not None
    prefix = recipe.objective.weights_prefix
    weights = {
        name.removeprefix(prefix): value
        for name, value in weights_of(state).items()
        if name.startswith(prefix)
    }
    model = build(config)
    model.load_state_dict(weights)
    return model.eval()


def measure_trust(folder: RunFolder, data: RunData, *, execution: Execution, processes: Processes) -> None:
    """Store beside the model how familiar pictures are to it; if that fails, report why and lose nothing else."""
    try:
        store_trust(folder.model, data.splits, device=processes.device, workers=execution.workers)
    except (VitrineError, OSError) as error:
        notice(f'No statistics for "none of these": {error}')


def report_run(
    folder: RunFolder,
    data: RunData | None,
    validation: SplitValidation | None,
    *,
    execution: Execution,
    processes: Processes,
) -> RunReport | None:
    """Write the page of a run; if that fails, report why and lose nothing else.

    The outputs of the best evaluation are scored as they are; only a run that was resumed after it evaluates again.
    """
    try:
        return write_report(
            folder,
            splits=None if data is None else data.splits,
            outputs=None if validation is None else validation.best,
            device=processes.device,
            workers=execution.workers,
        )
    except (VitrineError, OSError) as error:
        notice(f"No report of the run: {error}")
        return None


def result_of(
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    outcome: Outcome,
    *,
    folder: RunFolder,
    report: RunReport | None,
) -> TrainingResult:
    """Describe the finished run; the accuracy is that of the weights that were saved."""
    accuracy = outcome.best
    num_validation = 0 if data.validation is None else len(data.validation)
    return TrainingResult(
        folder=folder.path,
        model=folder.model,
        steps=outcome.steps,
        accuracy=accuracy,
        best_step=outcome.best_step,
        interval=None if accuracy is None else wilson_interval(accuracy, num_validation),
        num_validation=num_validation,
        images_per_second=outcome.images_per_second,
        evaluation=outcome.last_evaluation,
        objective=recipe.objective.kind,
        has_head=start.model.config.num_classes is not None,
        trains_on_all=data.trains_on_all,
        skipped=data.skipped,
        classes_without_validation=() if accuracy is None else classes_without_validation(data),
        mean_average_precision=None if report is None else report.mean_average_precision,
        worst=() if report is None else report.worst,
        worst_by="f1" if report is None else report.worst_by,
        mistakes=() if report is None else report.mistakes,
        report=None if report is None else report.file,
        data=printable(data.address),
    )
