"""The work behind `vitrine finetune`: transfer trained weights to new classes."""

import dataclasses
from pathlib import Path

from vitrine.checkpoints.locating import BOX
from vitrine.data.decoding.annotation import DataTask
from vitrine.data.sources.opening import task_of
from vitrine.errors import ConfigError, TryVerb
from vitrine.jobs.resume import resume_run
from vitrine.recipes import Recipe
from vitrine.recipes.options import RecipeOptions, chosen_recipe, is_file
from vitrine.runs.dense_start import dense_model
from vitrine.runs.fast_run import fast_run
from vitrine.runs.growing import grow_run, open_growing
from vitrine.runs.label_recipe import for_labels_of
from vitrine.runs.records import Execution, RunOutput, StartingModel, TrainingResult
from vitrine.runs.run_data import DataOptions, RunData, open_data
from vitrine.runs.run_start import create_run_folder, removed_on_failure, restarted_run
from vitrine.runs.solved_head import with_solved_head
from vitrine.runs.starting_model import (
    keep_known_classes,
    pretrained_model,
    require_free_options,
    suggest_smaller_size,
)
from vitrine.runs.sweep import require_sweep, sweep_run
from vitrine.runs.train_run import train_run
from vitrine.runs.validation import with_evaluations
from vitrine.runtime.find_run import resolve_latest
from vitrine.runtime.processes import Processes, joined_processes
from vitrine.runtime.progress import present
from vitrine.spelling import nearest
from vitrine.training.metrics_log import require_sinks
from vitrine.training.optimizer import freeze as freeze_weights

# Adapters begin at zero and take higher rates than weights; not yet compared with others on real photos.
LORA_RATE = 1e-3
# What users call what data is labelled with, and the recipe of each.
TASKS: dict[str, DataTask] = {"classification": "classes", "segmentation": "masks"}
DEFAULT_RECIPES: dict[DataTask, str] = {"classes": "photos", "masks": "masks"}

__all__ = ["DataOptions", "Execution", "finetune_model"]


def finetune_model(
    data: str,
    *,
    model: str | None,
    recipe: str | None,
    options: RecipeOptions,
    task: str | None = None,
    out: Path | None,
    data_options: DataOptions,
    execution: Execution,
    sweep: bool = False,
    fast: bool = False,
    keep_classes: bool = False,
    probe: bool = False,
    biases: bool = False,
    freeze: int | None = None,
    lora: int | None = None,
    overwrite: bool = False,
    tensorboard: bool = False,
    wandb: str | None = None,
) -> TrainingResult:
    """Fine-tune a model on `data`, at one learning rate or at the best of a sweep."""
    data = for_task(data, task)
    plain = labels_recipe(recipe, options, task=task_of(data))
    has_rate = options.get("lr") is not None
    chosen = partly_trained(plain, probe=probe, biases=biases, freeze=freeze, lora=lora, has_rate=has_rate)
    is_dense = chosen.objective.task != "classes"
    fast = fast or keep_classes
    if fast:
        if is_dense:
            raise ConfigError("does not go with masks, which are learned by training", option="fast")
        if sweep or chosen != plain:
            raise ConfigError(
                "does not go with sweep, probe, biases, freeze or lora: nothing is trained", option="fast"
            )
        if data_options.hold_out is None:  # images left out in turn are scored, so none must be held out
            data_options = dataclasses.replace(data_options, hold_out=0.0, allow_one_class=keep_classes)
    if model is None:
        model = chosen.model if chosen.model is not None and recipe is not None and is_file(recipe) else BOX
    model = resolve_latest(model)
    require_free_options(options.get("settings", ()))
    require_sinks(tensorboard=tensorboard, wandb=wandb)
    with joined_processes(execution.device) as processes:
        lost = restarted_run(out, processes=processes)
        if lost is not None:
            return resume_run(lost, device=execution.device, workers=execution.workers, allow_download=True)
        folder = create_run_folder(out, verb="finetune", data=data, overwrite=overwrite, processes=processes)
        with removed_on_failure(folder, processes):
            opened = open_data(
                data, data_options, folder=folder, seed=chosen.training.seed, workers=execution.workers,
                processes=processes,
            )  # fmt: skip
            chosen = for_labels_of(opened, chosen.with_steps_for(len(opened.train)))
            if sweep:
                require_sweep(chosen, opened)
            else:  # a sweep compares the ends of its runs, as the run on all images has no evaluation
                chosen = with_evaluations(chosen, opened)
            if keep_classes:
                output = RunOutput(folder=folder, verb="finetune")
                chosen = dataclasses.replace(chosen, model=model)
                return grow_run(*open_growing(model), opened, chosen, execution=execution, output=output)
            if is_dense:
                start = dense_model(model, chosen, classes=opened.train.classes)
            else:
                start = classifier(
                    model, opened, chosen, workers=execution.workers, processes=processes, is_trained=not fast
                )
            freeze_weights(start.model, chosen.training)
            output = RunOutput(folder=folder, verb="finetune", tensorboard=tensorboard, wandb=wandb)
            chosen = dataclasses.replace(chosen, model=model)
            train = fast_run if fast else sweep_run if sweep else train_run
            return train(start, opened, chosen, execution=execution, output=output)


def classifier(
    model: str, opened: RunData, chosen: Recipe, *, workers: int, processes: Processes, is_trained: bool
) -> StartingModel:
    """Load trained weights with a new head; before training, it is solved or takes rows of the old one."""
    start = pretrained_model(model, chosen, num_classes=len(opened.train.classes))
    if not is_trained:
        return start
    if chosen.solves_head:
        start, _ = with_solved_head(
            start, opened.train, is_balanced=chosen.is_balanced, workers=workers, processes=processes,
            seed=chosen.training.seed,
        )  # fmt: skip
        if start.closed_form is not None and processes.is_first:
            present(start.closed_form)
    if start.closed_form is None:
        keep_known_classes(start.model, model, opened.train.classes)
    if chosen.size is None and opened.median_size is not None:
        suggest_smaller_size(opened.median_size, start.model.config)
    return start


def for_task(data: str, task: str | None) -> str:
    """Return the address of data that is read for a task: as its layout says, or as it is asked for."""
    if task is None:
        return data
    if task not in TASKS:
        raise ConfigError(
            f"must be one of {', '.join(TASKS)}, got {task!r}; nearest: {nearest(task, TASKS)[0]}",
            option="task",
        )
    if task_of(data) == TASKS[task]:
        return data
    if TASKS[task] == "classes":
        raise ConfigError(f"{data} has {task_of(data)}, not classes of whole pictures", option="task")
    return f"{TASKS[task]}:{Path(data).absolute()}"


def labels_recipe(name: str | None, options: RecipeOptions, *, task: DataTask = "classes") -> Recipe:
    """Choose the recipe; refuse one whose model has no head to fine-tune, or that learns another kind of labels."""
    wanted: RecipeOptions = {**options, "base": DEFAULT_RECIPES[task]}
    recipe = chosen_recipe(name or DEFAULT_RECIPES[task], **wanted)
    if recipe.needs_labels and recipe.objective.task != task:
        raise ConfigError(
            f"recipe {recipe.name} learns {recipe.objective.task}, and the data has {task}; use "
            f"{DEFAULT_RECIPES[task]} or another recipe for {task}",
            option="recipe",
        )
    if not recipe.needs_labels or recipe.objective.teacher_request is not None:
        raise ConfigError(
            f"recipe {recipe.name} learns {recipe.objective.kind}, and fine-tuning learns labels; use photos or "
            "another recipe for labels",
            option="recipe",
            advice=[TryVerb("pretrain", ("DATA",), "to use it", {"recipe": name})],
        )
    return recipe


def partly_trained(
    recipe: Recipe, *, probe: bool, biases: bool, freeze: int | None, lora: int | None, has_rate: bool
) -> Recipe:
    """Train only the head, biases and the head, the last blocks or adapters: one of them, or everything."""
    chosen = {"probe": probe, "biases": biases, "freeze": freeze is not None, "lora": lora is not None}
    asked = [name for name, is_asked in chosen.items() if is_asked]
    if len(asked) > 1:
        raise ConfigError(f"does not go with {asked[0]}, which trains another part", option=asked[-1])
    if lora is not None:
        return with_adapters(recipe, lora, has_rate=has_rate)
    training = recipe.training
    if probe or biases:
        training = dataclasses.replace(training, trains="head" if probe else "biases")
    if freeze is not None:
        training = dataclasses.replace(training, frozen_blocks=freeze)
    return dataclasses.replace(recipe, training=training)


def with_adapters(recipe: Recipe, rank: int, *, has_rate: bool) -> Recipe:
    """Train adapters of a rank: every block at the same rate, and at a higher one unless the user has chosen it.

    The lower rates of early blocks protect their weights, which do not change here.
    """
    training = dataclasses.replace(recipe.training, lora_rank=rank, layer_decay=1.0)
    if not has_rate:
        training = dataclasses.replace(training, lr=LORA_RATE)
    return dataclasses.replace(recipe, training=training)
