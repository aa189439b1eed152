"""The work behind `vitrine finetune`: transfer trained weights to new classes."""

import dataclasses

from vitrine.checkpoints.bundled import BOX
from vitrine.checkpoints.opening import Opened
from vitrine.data.decoding.annotation import DataTask
from vitrine.data.sources.opening import read_as, task_of
from vitrine.errors import ConfigError, TryVerb
from vitrine.evaluation.closed_form import ClosedForm
from vitrine.jobs.model_argument import named_model, own_max_patches, trained_weights
from vitrine.jobs.resume import resume_run
from vitrine.recipes import Recipe
from vitrine.recipes.options import RecipeOptions, chosen_recipe, is_file
from vitrine.runs.cross_validation import are_few, cross_validated_run, has_free_length
from vitrine.runs.dense_start import dense_model
from vitrine.runs.fast_run import fast_run
from vitrine.runs.growing import grow_run, open_growing
from vitrine.runs.label_recipe import for_labels_of
from vitrine.runs.number_run import number_run
from vitrine.runs.records import Execution, RunOutput, StartingModel, TrainingResult
from vitrine.runs.run_at_address import published
from vitrine.runs.run_data import DataOptions, RunData, open_data, with_held_out
from vitrine.runs.run_split import undivided
from vitrine.runs.run_start import create_run_folder, removed_on_failure, restarted_run
from vitrine.runs.solved_head import can_solve_head, with_solved_head
from vitrine.runs.starting_model import (
    keep_known_classes,
    pretrained_model,
    require_free_options,
    suggest_smaller_size,
)
from vitrine.runs.sweep import require_sweep, sweep_run
from vitrine.runs.train_run import train_run
from vitrine.runs.validation import with_evaluations
from vitrine.runtime.places import Place
from vitrine.runtime.processes import Processes, joined_processes
from vitrine.runtime.progress import present
from vitrine.spelling import nearest
from vitrine.training.metrics_log import require_sinks
from vitrine.training.optimizer import freeze as freeze_weights

# Adapters begin at zero and take higher rates than weights; not yet compared with others on real photos.
LORA_RATE = 1e-3
# The users' names for kinds of labels, and the recipe of each.
TASKS: dict[str, DataTask] = {
    "classification": "classes", "segmentation": "masks", "detection": "boxes", "instances": "instances",
}  # fmt: skip
DEFAULT_RECIPES: dict[DataTask, str] = {
    "classes": "photos", "masks": "masks", "boxes": "boxes", "instances": "instances",
}  # fmt: skip

__all__ = ["DataOptions", "Execution", "finetune_model"]


def finetune_model(
    data: str,
    *,
    model: str | None,
    recipe: str | None,
    options: RecipeOptions,
    task: str | None = None,
    out: Place | None,
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
    if model is None:
        model = plain.model if plain.model is not None and recipe is not None and is_file(recipe) else BOX
    model, weights = named_model(model, device=execution.device), None
    if plain.size is None and plain.max_patches is None and plain.objective.task == "classes":
        weights = trained_weights(model)
        if (most := own_max_patches(weights)) is not None:
            plain = labels_recipe(recipe, {**options, "max_patches": most}, task="classes")
    has_rate = options.get("lr") is not None
    chosen = partly_trained(plain, probe=probe, biases=biases, freeze=freeze, lora=lora, has_rate=has_rate)
    fast = fast or keep_classes
    if fast:
        require_untrained(chosen, is_plain=not sweep and chosen == plain)
    if fast and data_options.hold_out is None:  # images left out in turn are scored, so none must be held out
        data_options = dataclasses.replace(data_options, hold_out=0.0, allow_one_class=keep_classes)
    require_free_options(options.get("settings", ()))
    data_options = dataclasses.replace(data_options, allow_numbers=True)
    require_sinks(tensorboard=tensorboard, wandb=wandb)
    with joined_processes(execution.device) as processes:
        lost = restarted_run(out, processes=processes)
        if lost is not None:
            return resume_run(lost, device=execution.device, workers=execution.workers, allow_download=True)
        folder = create_run_folder(out, verb="finetune", data=data, overwrite=overwrite, processes=processes)
        with removed_on_failure(folder, processes), published(folder, processes):
            opened = open_data(
                data, data_options, folder=folder, seed=chosen.training.seed, workers=execution.workers,
                processes=processes,
            )  # fmt: skip
            output = RunOutput(folder=folder, verb="finetune", tensorboard=tensorboard, wandb=wandb)
            is_numeric = opened.train.is_numeric
            if is_numeric:
                require_plain(data, sweep=sweep, keep_classes=keep_classes, probe=probe or freeze is not None)
            else:
                chosen = for_labels_of(opened, chosen.with_steps_for(len(opened.train)))
            chosen = dataclasses.replace(chosen, model=model)
            if keep_classes:
                return grow_run(*open_growing(model), opened, chosen, execution=execution, output=output)
            if sweep:
                require_sweep(chosen, opened)
            start = started(model, chosen, opened, weights=weights)
            del weights  # a file of torch's oldest format is in memory as a whole
            if is_numeric:
                return on_numbers(start, opened, chosen, execution=execution, output=output)
            if fast:
                return fast_run(start, opened, chosen, execution=execution, output=output)
            return trained(
                start,
                opened,
                chosen,
                model=model,
                sweep=sweep,
                execution=execution,
                output=output,
                processes=processes,
            )


def require_untrained(recipe: Recipe, *, is_plain: bool) -> None:
    """Refuse options about training, and tasks that need it, for a closed form."""
    if recipe.objective.task != "classes":
        raise ConfigError(f"does not go with {recipe.objective.task}, which need training", option="fast")
    if not is_plain:
        raise ConfigError(
            "does not go with sweep, probe, biases, freeze or lora: nothing is trained", option="fast"
        )


def started(model: str, recipe: Recipe, data: RunData, *, weights: Opened | None) -> StartingModel:
    """Load the model for the classes of the data, or for the numbers; `weights` are its own, if already opened."""
    if recipe.objective.task != "classes":
        return dense_model(model, recipe, classes=data.train.classes)
    count = 1 if data.train.is_numeric else len(data.train.classes)
    return pretrained_model(model, recipe, num_classes=count, weights=weights)


def on_numbers(
    start: StartingModel, data: RunData, recipe: Recipe, *, execution: Execution, output: RunOutput
) -> TrainingResult:
    """Fit numbers; images that are left out one at a time are the evidence, so none is held out unless asked for."""
    if data.division.hold_out is None and undivided(data.splits) is not None:
        data = with_held_out(data)
    return number_run(start, data, recipe, execution=execution, output=output)


def trained(
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    model: str,
    sweep: bool,
    execution: Execution,
    output: RunOutput,
    processes: Processes,
) -> TrainingResult:
    """Train at one learning rate, at the best of a sweep, or, with few images and classes, in folds."""
    may_fold = not sweep and data.division.hold_out is None and has_free_length(recipe)
    if not sweep:  # a sweep compares the ends of its runs, as the run on all images has no evaluation
        recipe = with_evaluations(recipe, data)
    if recipe.objective.task != "classes":
        solved = None
        freeze_weights(start.model, recipe.training)
    else:
        if may_fold and can_solve_head(start) and are_few(data, recipe):
            data = with_held_out(data)
        start, solved = prepared(start, data, recipe, model=model, execution=execution, processes=processes)
    if data.trains_on_all and solved is not None:
        return cross_validated_run(start, solved, data, recipe, execution=execution, output=output)
    train = sweep_run if sweep else train_run
    return train(start, data, recipe, execution=execution, output=output)


def require_plain(data: str, *, sweep: bool, keep_classes: bool, probe: bool) -> None:
    """Refuse options that are about classes or training, for numbers, which are fitted in closed form."""
    for name, value in (("sweep", sweep), ("keep_classes", keep_classes), ("probe", probe)):
        if value:
            raise ConfigError(
                f"does not go with the numbers of {data}, which are fitted in closed form", option=name
            )


def prepared(
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    model: str,
    execution: Execution,
    processes: Processes,
) -> tuple[StartingModel, ClosedForm | None]:
    """Solve the head in closed form, show its score, and freeze what is not trained."""
    solved = None
    if recipe.solves_head:
        start, solved = with_solved_head(
            start, data.train, is_balanced=recipe.is_balanced, workers=execution.workers, processes=processes,
            validation=data.validation, seed=recipe.training.seed,
        )  # fmt: skip
    if start.closed_form is None:
        keep_known_classes(start.model, model, data.train.classes)
    elif processes.is_first:
        present(start.closed_form)
    if recipe.size is None and data.files.median_size is not None:
        suggest_smaller_size(data.files.median_size, start.model.config)
    freeze_weights(start.model, recipe.training)
    return start, solved


def for_task(data: str, task: str | None) -> str:
    """Return the address of data that is read for a task: as its layout says, or as it is asked for."""
    if task is None:
        return data
    if task not in TASKS:
        raise ConfigError(
            f"must be one of {', '.join(TASKS)}, got {task!r}; nearest: {nearest(task, TASKS)[0]}",
            option="task",
            suggestions=nearest(task, TASKS),
        )
    if TASKS[task] == "classes" and task_of(data) != "classes":
        raise ConfigError(f"{data} has {task_of(data)}, not classes of whole pictures", option="task")
    return read_as(data, TASKS[task])


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
