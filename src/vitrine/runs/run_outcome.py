"""The outcome of a finished run: its result, what it chose from, its scores in metrics.jsonl."""

import dataclasses
import functools
from collections.abc import Mapping

from vitrine.evaluation.metrics import wilson_interval
from vitrine.recipes.recipe import Recipe
from vitrine.runs.records import Contender, StartingModel, TrainingResult
from vitrine.runs.run_data import RunData
from vitrine.runs.run_end import Finished
from vitrine.runs.run_report import RunReport
from vitrine.runs.validation import classes_without_validation
from vitrine.runtime.run_folder import RunFolder
from vitrine.spelling import printable
from vitrine.training.metrics_log import MetricsFile
from vitrine.training.task import Outcome

FINE_TUNED = "fine-tuned"


def result_of(
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    outcome: Outcome,
    *,
    folder: RunFolder,
    report: RunReport | None,
    finished: Finished,
) -> TrainingResult:
    """Describe the finished run; the accuracy is that of the weights that were saved."""
    classifies = recipe.objective.classifies
    accuracy, calibration = finished.accuracy if classifies else None, finished.calibration
    num_validation = 0 if data.validation is None else len(data.validation)
    result = TrainingResult(
        folder=folder.path,
        model=folder.model,
        adapter=folder.adapter if recipe.training.lora_rank is not None else None,
        steps=outcome.steps,
        accuracy=accuracy,
        best_step=outcome.best_step,
        interval=None if accuracy is None else wilson_interval(accuracy, num_validation),
        num_validation=num_validation,
        images_per_second=outcome.images_per_second,
        evaluation=outcome.last_evaluation
        if classifies or outcome.best_step is None
        else evaluation_at(folder, outcome.best_step),
        closed_form=start.closed_form,
        start=evaluation_at(folder, 0),
        contenders=contenders_of(start, outcome, finished, num_validation=num_validation),
        seconds=outcome.seconds,
        calibration=None if calibration is None else calibration.to_json(),
        objective=recipe.objective.kind,
        task=recipe.objective.task,
        has_head=start.model.config.num_classes is not None,
        trains_on_all=data.trains_on_all,
        skipped=data.files.skipped,
        classes_without_validation=() if accuracy is None else classes_without_validation(data),
        data=printable(data.address),
    )
    return with_report(result, report)


def contenders_of(
    start: StartingModel, outcome: Outcome, finished: Finished, *, num_validation: int
) -> tuple[Contender, ...]:
    """List what the run chose from, with the saved one marked; nothing where there was no choice."""
    if start.closed_form is None or finished.share is None or finished.accuracy is None:
        return ()
    seconds = outcome.seconds or 0.0
    first, *rest = start.closed_form.contenders  # the better head is the start
    rows = [dataclasses.replace(first, is_saved=finished.share == 0), *rest]
    trained = outcome.last_evaluation.get("accuracy") if outcome.best_step == 0 else outcome.best
    made = functools.partial(Contender.of, num_images=num_validation, seconds=seconds)
    if trained is not None:
        rows.append(dataclasses.replace(made(FINE_TUNED, trained), is_saved=finished.share == 1))
    if 0 < finished.share < 1:
        rows.append(dataclasses.replace(made(between_name(finished.share), finished.accuracy), is_saved=True))
    return tuple(rows)


def between_name(share: float) -> str:
    """Name the weights between the closed form and the end of training."""
    return f"{FINE_TUNED}, {100 * share:.0f} % of the change"


def evaluation_at(folder: RunFolder, step: int | None) -> dict[str, float]:
    """Return the numbers of the evaluation after `step` steps; empty if there was none."""
    scores: dict[str, float] = {}
    for record in folder.read_metrics():
        if record["step"] == step:
            scores |= {
                name.removeprefix("val_"): value for name, value in record.items() if name.startswith("val_")
            }
    return scores


def with_report(result: TrainingResult, report: RunReport | None) -> TrainingResult:
    """Add the measurements of the run's page, if there is one."""
    if report is None:
        return result
    return dataclasses.replace(
        result,
        mean_average_precision=report.mean_average_precision,
        worst=report.worst,
        worst_by=report.worst_by,
        mistakes=report.mistakes,
        report=report.file,
    )


def write_scores(folder: RunFolder, scores: Mapping[int, Mapping[str, float]]) -> None:
    """Write evaluations by their step to metrics.jsonl, for a run that has no training loop of its own."""
    sink = MetricsFile(folder, done_steps=0)
    for step, values in scores.items():
        sink.write({"step": step, **{f"val_{name}": value for name, value in values.items()}})
    sink.close()
