"""The work behind `vitrine pretrain`: train a model from fresh weights, with labels or without."""

from vitrine.jobs.resume import resume_run
from vitrine.recipes.options import RecipeOptions, chosen_recipe
from vitrine.runs.label_recipe import for_labels_of
from vitrine.runs.records import Execution, RunOutput, TrainingResult
from vitrine.runs.run_at_address import published
from vitrine.runs.run_data import DataOptions, open_data
from vitrine.runs.run_start import create_run_folder, removed_on_failure, restarted_run
from vitrine.runs.starting_model import fresh_model, require_trainable
from vitrine.runs.train_run import train_run
from vitrine.runs.validation import with_evaluations
from vitrine.runs.whitening import with_whitened_patches
from vitrine.runtime.places import Place
from vitrine.runtime.processes import joined_processes
from vitrine.training.metrics_log import require_sinks

__all__ = ["DataOptions", "Execution", "pretrain_model"]


def pretrain_model(
    data: str,
    *,
    recipe: str | None,
    options: RecipeOptions,
    out: Place | None,
    data_options: DataOptions,
    execution: Execution,
    overwrite: bool,
    tensorboard: bool,
    wandb: str | None,
) -> TrainingResult:
    """Train the recipe's model on `data` from fresh weights."""
    chosen = chosen_recipe(recipe, **options)
    require_trainable(chosen)
    require_sinks(tensorboard=tensorboard, wandb=wandb)
    with joined_processes(execution.device) as processes:
        lost = restarted_run(out, processes=processes)
        if lost is not None:
            return resume_run(lost, device=execution.device, workers=execution.workers, allow_download=True)
        folder = create_run_folder(out, verb="pretrain", data=data, overwrite=overwrite, processes=processes)
        with removed_on_failure(folder, processes), published(folder, processes):
            opened = open_data(
                data, data_options, folder=folder, seed=chosen.training.seed, workers=execution.workers,
                processes=processes, needs_labels=chosen.needs_labels,
            )  # fmt: skip
            chosen = for_labels_of(opened, chosen.with_steps_for(len(opened.train)))
            chosen = with_evaluations(chosen, opened)
            start = with_whitened_patches(
                fresh_model(chosen, classes=tuple(opened.train.classes)), opened.train, chosen,
                workers=execution.workers,
            )  # fmt: skip
            output = RunOutput(folder=folder, verb="pretrain", tensorboard=tensorboard, wandb=wandb)
            return train_run(start, opened, chosen, execution=execution, output=output)
