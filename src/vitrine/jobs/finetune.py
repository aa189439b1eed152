"""The work behind `vitrine finetune`: transfer trained weights to new classes."""

import dataclasses
from pathlib import Path

from vitrine.checkpoints.locating import BOX
from vitrine.errors import ConfigError, TryVerb
from vitrine.evaluation.closed_form import ClosedForm
from vitrine.jobs.resume import resume_run
from vitrine.recipes import Recipe
from vitrine.recipes.options import RecipeOptions, chosen_recipe, is_file
from vitrine.runs.cross_validation import are_few, cross_validated_run, has_free_length
from vitrine.runs.fast_run import fast_run
from vitrine.runs.growing import grow_run, open_growing
from vitrine.runs.label_recipe import for_labels_of
from vitrine.runs.number_run import number_run
from vitrine.runs.records import Execution, RunOutput, StartingModel, TrainingResult
from vitrine.runs.run_data import DataOptions, RunData, open_data, undivided, with_held_out
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
from vitrine.runtime.find_run import resolve_latest
from vitrine.runtime.processes import Processes, joined_processes
from vitrine.runtime.progress import present
from vitrine.training.metrics_log import require_sinks
from vitrine.training.optimizer import freeze as freeze_weights

__all__ = ["DataOptions", "Execution", "finetune_model"]


def finetune_model(
    data: str,
    *,
    model: str | None,
    recipe: str,
    options: RecipeOptions,
    out: Path | None,
    data_options: DataOptions,
    execution: Execution,
    sweep: bool = False,
    fast: bool = False,
    keep_classes: bool = False,
    probe: bool = False,
    freeze: int | None = None,
    overwrite: bool = False,
    tensorboard: bool = False,
    wandb: str | None = None,
) -> TrainingResult:
    """Fine-tune a model on `data`, at one learning rate or at the best of a sweep."""
    chosen = frozen(labels_recipe(recipe, options), probe=probe, freeze=freeze)
    fast = fast or keep_classes
    if fast and (sweep or probe or freeze is not None):
        raise ConfigError("does not go with sweep, probe or freeze: nothing is trained", option="fast")
    if fast and data_options.hold_out is None:  # images left out in turn are scored, so none must be held out
        data_options = dataclasses.replace(data_options, hold_out=0.0, allow_one_class=keep_classes)
    if model is None:
        model = chosen.model if chosen.model is not None and is_file(recipe) else BOX
    model = resolve_latest(model)
    require_free_options(options.get("settings", ()))
    data_options = dataclasses.replace(data_options, allow_numbers=True)
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
            output = RunOutput(folder=folder, verb="finetune", tensorboard=tensorboard, wandb=wandb)
            if opened.train.is_numeric:
                require_plain(data, sweep=sweep, keep_classes=keep_classes, probe=probe or freeze is not None)
                whole = opened if data_options.hold_out else all_images(opened)
                start = pretrained_model(model, chosen, num_classes=1)
                chosen = dataclasses.replace(chosen, model=model)
                return number_run(start, whole, chosen, execution=execution, output=output)
            chosen = dataclasses.replace(
                for_labels_of(opened, chosen.with_steps_for(len(opened.train))), model=model
            )
            if keep_classes:
                return grow_run(*open_growing(model), opened, chosen, execution=execution, output=output)
            if fast:
                start = pretrained_model(model, chosen, num_classes=len(opened.train.classes))
                return fast_run(start, opened, chosen, execution=execution, output=output)
            is_divided = not sweep and data_options.hold_out is None and has_free_length(chosen)
            if sweep:
                require_sweep(chosen, opened)
            else:  # a sweep compares the ends of its runs, as the run on all images has no evaluation
                chosen = with_evaluations(chosen, opened)
            start = pretrained_model(model, chosen, num_classes=len(opened.train.classes))
            if is_divided and can_solve_head(start) and are_few(opened, chosen):
                opened = with_held_out(opened)
            start, solved = prepared(
                start, opened, chosen, model=model, execution=execution, processes=processes
            )
            if opened.trains_on_all and solved is not None:
                return cross_validated_run(start, solved, opened, chosen, execution=execution, output=output)
            train = sweep_run if sweep else train_run
            return train(start, opened, chosen, execution=execution, output=output)


def require_plain(data: str, *, sweep: bool, keep_classes: bool, probe: bool) -> None:
    """Refuse options that are about classes or training, for numbers, which are fitted in closed form."""
    for name, value in (("sweep", sweep), ("keep_classes", keep_classes), ("probe", probe)):
        if value:
            raise ConfigError(
                f"does not go with the numbers of {data}, which are fitted in closed form", option=name
            )


def all_images(data: RunData) -> RunData:
    """Return the data without a part that was held out of its training images."""
    return data if undivided(data.splits) is None else with_held_out(data)


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
    if recipe.size is None and data.median_size is not None:
        suggest_smaller_size(data.median_size, start.model.config)
    freeze_weights(start.model, recipe.training)
    return start, solved


def labels_recipe(name: str, options: RecipeOptions) -> Recipe:
    """Choose the recipe; refuse one whose model has no head to fine-tune."""
    wanted: RecipeOptions = {**options, "base": "photos"}
    recipe = chosen_recipe(name, **wanted)
    if not recipe.needs_labels or recipe.objective.teacher_request is not None:
        raise ConfigError(
            f"recipe {recipe.name} learns {recipe.objective.kind}, and fine-tuning learns labels; use photos or "
            "another recipe for labels",
            option="recipe",
            advice=[TryVerb("pretrain", ("DATA",), "to use it", {"recipe": name})],
        )
    return recipe


def frozen(recipe: Recipe, *, probe: bool, freeze: int | None) -> Recipe:
    """Freeze everything but the head, or the patch embedding and some blocks."""
    if probe and freeze is not None:
        raise ConfigError("does not go with probe, which trains only the head", option="freeze")
    if freeze is not None and freeze < 0:
        raise ConfigError(f"must be at least 0, got {freeze}", option="freeze")
    training = recipe.training
    if probe:
        training = dataclasses.replace(training, trains="head")
    if freeze is not None:
        training = dataclasses.replace(training, frozen_blocks=freeze)
    return dataclasses.replace(recipe, training=training)
