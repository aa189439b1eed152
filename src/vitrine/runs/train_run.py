"""Train one run: from data, model and recipe to a run folder with checkpoints, metrics, a model and a report."""

import dataclasses
import functools
from contextlib import closing
from pathlib import Path

from torch import nn

from vitrine.errors import TryOption
from vitrine.models.kernels.precision import require_precision
from vitrine.models.lora import add_adapters
from vitrine.recipes.recipe import Recipe
from vitrine.recipes.recipe_values import as_values
from vitrine.runs.expected_time import expected_seconds
from vitrine.runs.plan import choose_micro_batch, num_trained, plan_of, require_disk_space
from vitrine.runs.records import Execution, RunOutput, StartingModel, TrainingResult
from vitrine.runs.run_at_address import require_common_folder, share_run
from vitrine.runs.run_data import RunData
from vitrine.runs.run_end import Finished, finish_model, measure_trust, report_run, save_model
from vitrine.runs.run_outcome import result_of
from vitrine.runs.run_report import RunReport
from vitrine.runs.run_start import check_data, exclusive, write_records
from vitrine.runs.solved_head import softened
from vitrine.runs.task import build_task, context_of, make_loader
from vitrine.runs.validation import SplitValidation
from vitrine.runtime.devices import seeded
from vitrine.runtime.find_run import link_latest
from vitrine.runtime.log_file import logged_to
from vitrine.runtime.processes import Processes, joined_processes, on_first_process
from vitrine.runtime.progress import notice, present
from vitrine.runtime.run_folder import RunFolder
from vitrine.training.loop import train
from vitrine.training.metrics_log import MetricsFile, Sink, TensorBoard, WeightsAndBiases
from vitrine.training.optimizer import freeze
from vitrine.training.saving import numbers_of
from vitrine.training.task import Evaluate, Outcome, Task

# Added to the seed for the weights that an objective adds: the model has drawn its own from the seed itself.
OBJECTIVE_STREAM = 1 << 32
# From this duration on, the plan suggests the closed form without training.
LONG_SECONDS = 300


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
        closing(
            make_loader(data.train, start.preprocess, recipe, workers=execution.workers, processes=processes)
        ) as loader,
    ):
        require_precision(recipe.training.precision, device=processes.device)
        if execution.shard:
            require_common_folder(folder, processes)
        module = wrapped(start, data, recipe, folder=folder, processes=processes, is_new=resume_from is None)
        context = context_of(start, data, recipe, workers=execution.workers, processes=processes)
        validation = validation_of(start, data, recipe, execution=execution, processes=processes)
        make_task = functools.partial(
            build_task, context, loader, data.train, recipe, folder=folder, validation=validation,
            evaluate=evaluate, is_sharded=execution.shard and processes.world_size > 1,
            evaluates_start=start.closed_form is not None,
        )  # fmt: skip
        # Asking a teacher about every image takes time: not before the plan.
        task = None if recipe.objective.asks_in_advance else make_task()
        planned = with_micro_batch(recipe, start, processes=processes, shard=execution.shard)
        if output.plans:
            present_plan(
                module, task, start, data, planned, execution=execution, output=output, processes=processes,
                resume_from=resume_from,
            )  # fmt: skip
        task = task or make_task()
        on_first_process(
            lambda: begin_records(
                start, data, recipe, execution=execution, output=output, is_resumed=resume_from is not None,
                allow_changed_data=allow_changed_data,
            ),
            processes,
        )  # fmt: skip
        if start.closed_form is not None and resume_from is None:
            start.model.load_state_dict(softened(start.model.state_dict()))
        outcome = train_and_log(
            module, task, planned, execution=execution, output=output, processes=processes,
            resume_from=resume_from,
        )  # fmt: skip
        finished, report = saved_and_reported(
            start, data, recipe, validation, outcome, execution=execution, output=output, processes=processes
        )
    return result_of(start, data, recipe, outcome, folder=folder, report=report, finished=finished)


def wrapped(
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    folder: RunFolder,
    processes: Processes,
    is_new: bool,
) -> nn.Module:
    """Wrap the model for the recipe's objective, with weights drawn from its seed; check the disk for a new run."""
    training = recipe.training
    with seeded(training.seed + OBJECTIVE_STREAM):
        if training.lora_rank is not None:
            add_adapters(start.model, rank=training.lora_rank, alpha=training.lora_alpha)
            freeze(start.model, training)  # what is predicted to fit reads it
        module = recipe.objective.wrap(start.model, start.teacher)
    if is_new:
        has_best = data.validation is not None
        on_first_process(
            lambda: require_disk_space(module, recipe.training, folder, has_best=has_best), processes
        )
    return module


def present_plan(
    module: nn.Module,
    task: Task | None,
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    execution: Execution,
    output: RunOutput,
    processes: Processes,
    resume_from: Path | None,
) -> None:
    """Estimate the time of the run and present its plan."""
    done = steps_done(resume_from)
    seconds = expected_seconds(
        module, task, start, data, recipe, workers=execution.workers, processes=processes,
        is_sharded=execution.shard and processes.world_size > 1, done=done,
    )  # fmt: skip
    plan = plan_of(
        start,
        data,
        recipe,
        execution=execution,
        output=output,
        processes=processes,
        seconds=seconds,
        done=done,
    )
    present(plan)
    is_long = output.num_networks * seconds > LONG_SECONDS
    if output.verb == "finetune" and start.closed_form is not None and is_long and resume_from is None:
        notice(
            "Training takes more than five minutes",
            advice=[TryOption("fast", "for the closed-form classifier without training", True)],
        )


def train_and_log(
    module: nn.Module,
    task: Task,
    recipe: Recipe,
    *,
    execution: Execution,
    output: RunOutput,
    processes: Processes,
    resume_from: Path | None,
) -> Outcome:
    """Run the training loop; metrics go to the sinks, and a run that ends early still has its curves."""
    folder = output.folder
    sinks = open_sinks(recipe, output, done=steps_done(resume_from)) if processes.is_first else []
    try:
        return train(
            module, task, config=recipe.training, folder=folder.checkpoints, sinks=sinks, processes=processes,
            shard=execution.shard, resume_from=resume_from,
        )  # fmt: skip
    except BaseException:
        if output.reports and processes.is_first:
            report_run(folder, None, None, execution=execution, processes=processes)
        raise
    finally:
        for sink in sinks:
            sink.close()


def with_micro_batch(recipe: Recipe, start: StartingModel, *, processes: Processes, shard: bool) -> Recipe:
    """Choose the micro-batch on the first process, for all of them."""
    size = on_first_process(
        lambda: choose_micro_batch(
            recipe,
            start.model.config,
            processes=processes,
            shard=shard,
            trained=num_trained(start.model),
            max_patches=start.preprocess.max_patches,
        ),
        processes,
    )
    return dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, micro_batch=size))


def saved_and_reported(
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    validation: SplitValidation | None,
    outcome: Outcome,
    *,
    execution: Execution,
    output: RunOutput,
    processes: Processes,
) -> tuple[Finished, RunReport | None]:
    """Choose and save the model of a trained run, and write its statistics and its page."""
    folder = output.folder
    share_run(folder, processes)
    finished = finish_model(
        start,
        data,
        recipe,
        validation,
        folder=folder,
        execution=execution,
        processes=processes,
        outcome=outcome,
    )
    share_run(folder, processes)
    if output.measures_trust and recipe.objective.classifies:
        measure_trust(folder, data, execution=execution, processes=processes)
    report = None
    if output.reports:
        report = report_run(folder, data, finished.outputs, execution=execution, processes=processes)
    return finished, report


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
        link_latest(output.folder)
        check_data(data, output.folder, allow_changed=allow_changed_data)
        return
    write_records(start, data, recipe, execution=execution, output=output)
    if start.closed_form is not None and recipe.mixes_start and recipe.training.lora_rank is None:
        save_model(start.model.cpu(), start, data, recipe, folder=output.folder, to=output.folder.closed_form)


def open_sinks(recipe: Recipe, output: RunOutput, *, done: int) -> list[Sink]:
    """Open metrics.jsonl, and TensorBoard and Weights & Biases if they are asked for."""
    sinks: list[Sink] = [MetricsFile(output.folder, done_steps=done)]
    if output.tensorboard:
        sinks.append(TensorBoard(output.folder.tensorboard, done_steps=done))
    if output.wandb:
        sinks.append(WeightsAndBiases(output.wandb, config=as_values(recipe), folder=output.folder.path))
    return sinks


def steps_done(state: Path | None) -> int:
    """Return the step of a checkpoint."""
    return int(numbers_of(state)["step"]) if state is not None else 0
