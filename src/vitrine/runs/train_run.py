"""Train one run: from data, model and recipe to a run folder with checkpoints, metrics, a model and a report."""

import dataclasses
from pathlib import Path
from typing import Any

from torch import nn

from vitrine.checkpoints import save
from vitrine.errors import TryOption, VitrineError
from vitrine.evaluation.metrics import wilson_interval
from vitrine.models import build
from vitrine.models.kernels import require_precision
from vitrine.recipes.recipe import Recipe, as_values
from vitrine.runs.expected_time import expected_seconds
from vitrine.runs.plan import choose_micro_batch, plan_of, require_disk_space
from vitrine.runs.records import Execution, RunOutput, StartingModel, TrainingResult
from vitrine.runs.run_data import RunData
from vitrine.runs.run_report import RunReport, write_report
from vitrine.runs.run_start import check_data, exclusive, write_records
from vitrine.runs.task import build_task, context_of
from vitrine.runs.validation import SplitValidation, classes_without_validation
from vitrine.runtime.devices import has_fast_bf16, seeded
from vitrine.runtime.log_file import logged_to
from vitrine.runtime.processes import Processes, joined_processes, on_first_process
from vitrine.runtime.progress import notice, present
from vitrine.runtime.run_folder import RunFolder
from vitrine.spelling import printable
from vitrine.training.loop import train
from vitrine.training.metrics_log import MetricsFile, Sink, TensorBoard, WeightsAndBiases
from vitrine.training.saving import newest_state, numbers_of, weights_of
from vitrine.training.task import Evaluate, Outcome

# Added to the seed for the weights that an objective adds: the model has drawn its own from the seed itself.
OBJECTIVE_STREAM = 1 << 32


def train_run(
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    execution: Execution,
    output: RunOutput,
    resume_from: Path | None = None,
    allow_changed_data: bool = False,
    evaluate: Evaluate | None = None,
) -> TrainingResult:
    """Train `start` on `data` as `recipe` says and save the model; the same alone and under torchrun.

    `resume_from` is a checkpoint to continue from. `evaluate` replaces the evaluation of the recipe's objective.
    """
    folder = output.folder
    with (
        joined_processes(execution.device) as processes,
        exclusive(folder, processes),
        logged_to(folder, is_first=processes.is_first),
    ):
        require_precision(recipe.training.precision, device=processes.device)
        done = steps_done(resume_from)
        is_sharded = execution.shard and processes.world_size > 1
        with seeded(recipe.training.seed + OBJECTIVE_STREAM):
            module = recipe.objective.wrap(start.model, start.teacher)
        if resume_from is None:
            has_best = data.validation is not None
            on_first_process(
                lambda: require_disk_space(module, recipe.training, folder, has_best=has_best), processes
            )
        context = context_of(start, data, recipe, workers=execution.workers, processes=processes)
        validation = validation_of(start, data, recipe, execution=execution, processes=processes)

        def build() -> Any:
            return build_task(
                context, data, recipe, folder=folder, workers=execution.workers, validation=validation,
                evaluate=evaluate, is_sharded=is_sharded,
            )  # fmt: skip

        # Asking a teacher about every image takes time: not before the plan.
        task = None if recipe.objective.asks_in_advance else build()
        planned = with_micro_batch(recipe, start, processes=processes, shard=execution.shard)
        if output.plans:
            seconds = expected_seconds(
                module, task, start, data, planned, workers=execution.workers, processes=processes,
                is_sharded=is_sharded, done=done,
            )  # fmt: skip
            plan = plan_of(
                start, data, planned, execution=execution, output=output, processes=processes, seconds=seconds,
                done=done,
            )  # fmt: skip
            present(plan)
            advise_precision(recipe, processes, is_new=resume_from is None)
        task = task or build()
        on_first_process(
            lambda: begin_records(
                start, data, recipe, execution=execution, output=output, is_resumed=resume_from is not None,
                allow_changed_data=allow_changed_data,
            ),
            processes,
        )  # fmt: skip
        sinks = open_sinks(recipe, output, done=done) if processes.is_first else []
        try:
            outcome = train(
                module, task, config=planned.training, folder=folder.checkpoints, sinks=sinks,
                processes=processes, shard=execution.shard, resume_from=resume_from,
            )  # fmt: skip
        except BaseException:
            if output.reports and processes.is_first:
                report_run(folder, None, None, execution=execution, processes=processes)  # the curves so far
            raise
        finally:
            for sink in sinks:
                sink.close()
        on_first_process(lambda: save_model(start, data, recipe, folder), processes)
        report = None
        if output.reports:
            report = report_run(folder, data, validation, execution=execution, processes=processes)
    return result_of(start, data, recipe, outcome, folder=folder, report=report)


def with_micro_batch(recipe: Recipe, start: StartingModel, *, processes: Processes, shard: bool) -> Recipe:
    """Choose the micro-batch on the first process, for all of them."""
    size = on_first_process(
        lambda: choose_micro_batch(recipe, start.model.config, processes=processes, shard=shard), processes
    )
    return dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, micro_batch=size))


def validation_of(
    start: StartingModel, data: RunData, recipe: Recipe, *, execution: Execution, processes: Processes
) -> SplitValidation | None:
    """Return the validation images as evaluations read them; None if nothing is held out."""
    if data.validation is None:
        return None
    return SplitValidation(
        data, start.preprocess, batch_size=recipe.training.batch_size, workers=execution.workers,
        processes=processes, is_sharded=execution.shard and processes.world_size > 1,
    )  # fmt: skip


def advise_precision(recipe: Recipe, processes: Processes, *, is_new: bool) -> None:
    """Suggest bf16 on a CPU that computes faster in it."""
    if is_new and recipe.training.precision == "auto" and has_fast_bf16(processes.device):
        notice("This CPU supports bf16", advice=[TryOption("precision", "to halve the time", "bf16")])


def begin_records(
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    execution: Execution,
    output: RunOutput,
    is_resumed: bool,
    allow_changed_data: bool,
) -> None:
    """Write the records of a new run; check that the data of a resumed run is the same."""
    if is_resumed:
        check_data(data, output.folder, allow_changed=allow_changed_data)
    else:
        write_records(start, data, recipe, execution=execution, output=output)


def open_sinks(recipe: Recipe, output: RunOutput, *, done: int) -> list[Sink]:
    """Open metrics.jsonl, and TensorBoard and Weights & Biases if they are asked for."""
    sinks: list[Sink] = [MetricsFile(output.folder, done_steps=done)]
    if output.tensorboard:
        sinks.append(TensorBoard(output.folder.tensorboard, done_steps=done))
    if output.wandb:
        sinks.append(WeightsAndBiases(output.wandb, config=as_values(recipe), folder=output.folder.path))
    return sinks


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


def save_model(start: StartingModel, data: RunData, recipe: Recipe, folder: RunFolder) -> None:
    """Save the best weights, or the last if nothing was evaluated, with their record."""
    model = trained_model(start.model.config, recipe, folder)
    save(
        model,
        folder.model,
        preprocess=start.preprocess,
        classes=list(data.train.classes) if model.config.num_classes else None,
        recipe=as_values(recipe),
        overwrite=True,
    )


def trained_model(config: Any, recipe: Recipe, folder: RunFolder) -> Any:
    """Build the model with the best weights of a run; the trained module may be sharded over many devices."""
    state = newest_state(folder.best_checkpoint) or newest_state(folder.last_checkpoint)
    assert state is not None
    prefix = recipe.objective.weights_prefix
    weights = {
        name.removeprefix(prefix): value
        for name, value in weights_of(state).items()
        if name.startswith(prefix)
    }
    model: nn.Module = build(config)
    model.load_state_dict(weights)
    return model.eval()


def steps_done(state: Path | None) -> int:
    """Return the step of a checkpoint."""
    return int(numbers_of(state)["step"]) if state is not None else 0


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
