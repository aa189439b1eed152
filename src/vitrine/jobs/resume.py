"""The work behind `vitrine resume`: continue a run from its last checkpoint, bit for bit."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from vitrine.errors import ConfigError, MissingCheckpointError, TryOption
from vitrine.recipes import Recipe
from vitrine.recipes.options import changed_under_way
from vitrine.recipes.recipe_values import from_yaml, to_yaml
from vitrine.runs.cross_validation import cross_validated_run
from vitrine.runs.records import Execution, RunOutput, TrainingResult
from vitrine.runs.run_at_address import published, resume_at_address
from vitrine.runs.run_data import DataOptions, RunData, open_data, require_same_classes, with_held_out
from vitrine.runs.run_start import has_attempts, require_unlocked
from vitrine.runs.solved_head import with_solved_head
from vitrine.runs.starting_model import described_model, keep_known_classes, pretrained_model
from vitrine.runs.sweep import sweep_run
from vitrine.runs.train_run import train_run
from vitrine.runtime.cache import downloads
from vitrine.runtime.devices import same_threads
from vitrine.runtime.find_run import find_run
from vitrine.runtime.launch import launched
from vitrine.runtime.log_file import logged_to
from vitrine.runtime.places import is_remote
from vitrine.runtime.processes import Processes, joined_processes, on_first_process
from vitrine.runtime.progress import notice
from vitrine.runtime.run_address import shown_place
from vitrine.runtime.run_folder import RunFolder
from vitrine.runtime.run_record import RunRecord
from vitrine.spelling import counted
from vitrine.training.config import TrainingConfig
from vitrine.training.saving import newest_state, numbers_of


def resume_run(
    run: str | Path | RunFolder,
    *,
    device: str | None = None,
    workers: int | None = None,
    settings: Sequence[str] = (),
    allow_changed_data: bool = False,
    allow_download: bool = False,
) -> TrainingResult:
    """Continue a run where it stopped, with some settings changed if asked for."""
    folder = (
        run
        if isinstance(run, RunFolder)
        else resume_at_address(str(run))
        if is_remote(run)
        else find_run(run)
    )
    before, began = from_yaml(folder.read_recipe()), folder.read_record()
    recipe = changed_under_way(before, settings)
    if settings and has_attempts(folder):
        what = "learning rates" if began.is_sweeping else "folds"
        raise ConfigError(f"{folder} is still trying {what}, all with the same settings", option="set")
    execution = Execution(
        device=device or began.device,
        workers=began.workers if workers is None else workers,
        shard=began.shard,
    )
    with (
        joined_processes(execution.device) as processes,
        downloads(allowed=allow_download),
        published(folder, processes),
    ):
        state, done = on_first_process(lambda: unfinished_state(folder, recipe.training), processes)
        if state is not None:  # other machines may keep it elsewhere
            state = folder.checkpoints / state.name
        data = data_of_run(
            began,
            folder,
            recipe,
            workers=execution.workers,
            processes=processes,
            allow_changed=allow_changed_data,
        )
        output = RunOutput(folder=folder, verb=began.verb, tensorboard=began.tensorboard, wandb=began.wandb)
        is_alone = processes.world_size == 1 and processes.device.type == "cpu"
        with same_threads(began.threads if is_alone else None):
            if has_attempts(folder):
                return resume_attempts(
                    data, recipe, execution=execution, output=output, processes=processes,
                    allow_changed_data=allow_changed_data,
                )  # fmt: skip
            notice(f"Resuming {folder} after step {done:,} of {recipe.training.total_steps:,}")
            start = described_model(began, recipe)
            if recipe != before:
                on_first_process(lambda: write_change(folder, recipe, settings, done=done), processes)
            return train_run(
                start, data, recipe, execution=execution, output=output, resume_from=state,
                allow_changed_data=allow_changed_data,
            )  # fmt: skip


def data_of_run(
    began: RunRecord,
    folder: RunFolder,
    recipe: Recipe,
    *,
    workers: int,
    processes: Processes,
    allow_changed: bool,
) -> RunData:
    """Open the data of a run again, divided as it was; refuse other classes."""
    exclude = None if began.exclude is None else Path(began.exclude)
    options = DataOptions(hold_out=began.hold_out, exclude=exclude, allow_empty_class=True, group=began.group)
    opened = functools.partial(
        open_data, began.data,
        folder=folder, seed=recipe.training.seed, workers=workers, processes=processes,
        needs_labels=recipe.needs_labels, is_resumed=True, allow_changed=allow_changed,
    )  # fmt: skip
    data = opened(options)
    if list(data.train.classes) != folder.read_classes():  # the run skipped classes without images
        data = opened(dataclasses.replace(options, allow_empty_class=False))
    if began.trains_on_all:
        data = with_held_out(data)
    require_same_classes(data, folder)
    return data


def resume_attempts(
    data: RunData,
    recipe: Recipe,
    *,
    execution: Execution,
    output: RunOutput,
    processes: Processes,
    allow_changed_data: bool,
) -> TrainingResult:
    """Continue a sweep or a cross-validation; what was trained before is not trained again."""
    began = output.folder.read_record()
    notice(f"Resuming the {'sweep' if began.is_sweeping else 'cross-validation'} in {output.folder}")
    assert recipe.model is not None
    start, solved = pretrained_model(recipe.model, recipe, num_classes=len(data.train.classes)), None
    if recipe.solves_head:
        start, solved = with_solved_head(
            start, data.train, is_balanced=recipe.is_balanced, workers=execution.workers, processes=processes,
            seed=recipe.training.seed,
        )  # fmt: skip
    if solved is not None and began.is_cross_validating:
        return cross_validated_run(
            start, solved, data, recipe, execution=execution, output=output,
            allow_changed_data=allow_changed_data,
        )  # fmt: skip
    if solved is None:
        keep_known_classes(start.model, recipe.model, data.train.classes)
    return sweep_run(
        start, data, recipe, execution=execution, output=output, allow_changed_data=allow_changed_data
    )


def write_change(folder: RunFolder, recipe: Recipe, settings: Sequence[str], *, done: int) -> None:
    """Keep changed settings for the next time that the run is resumed, and log them."""
    folder.write_recipe(to_yaml(recipe))
    with logged_to(folder):
        notice(f"From step {done + 1:,} on: {', '.join(settings)}")


def unfinished_state(folder: RunFolder, training: TrainingConfig) -> tuple[Path | None, int]:
    """Return the last checkpoint of a run and its step; refuse a run that is training, has none, or has finished.

    The checkpoints of a sweep or a cross-validation are in the folders of its attempts.
    """
    require_unlocked(folder)
    if has_attempts(folder):
        return None, 0
    state = newest_state(folder.last_checkpoint)
    if state is None and folder.has_model:
        raise ConfigError(f"{folder} has finished; its model is in {shown_place(folder.model)}")
    if state is None:
        raise MissingCheckpointError(
            f"{folder} has no checkpoint to resume from; start the run again",
            advice=[TryOption("overwrite", "to start it in the same folder", True)],
        )
    numbers = numbers_of(state)
    done, since_best = int(numbers["step"]), int(numbers["evaluations_since_best"])
    is_patience_over = training.patience is not None and since_best >= training.patience
    is_over = done >= training.total_steps or is_patience_over
    # torchrun restarts all processes if one is lost after the end; that restart must not fail.
    if is_over and folder.has_model and not launched().restarts:
        more = [] if done < training.total_steps else [f"training.total_steps={2 * done}"]
        if is_patience_over:  # with more steps alone, patience would end the run again
            more.append("training.patience=null")
        early = f", no improvement in {counted(since_best, 'evaluation')}" if is_patience_over else ""
        raise ConfigError(
            f"{folder} has finished ({counted(done, 'step')}{early}); its model is in {shown_place(folder.model)}",
            advice=[TryOption("set", "to continue", setting) for setting in more],
        )
    return state, done
