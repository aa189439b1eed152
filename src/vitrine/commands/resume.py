"""`vitrine resume`: go on with a run that was stopped, to the bit."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_doc import Doc

from vitrine.commands.arguments import as_path, as_texts
from vitrine.runtime.run_folder import RunFolder
from vitrine.spelling import counted

if TYPE_CHECKING:
    from vitrine.recipes import Recipe
    from vitrine.runs.training_run import Setting, TrainingResult
    from vitrine.training.config import TrainingConfig

# What a resumed run takes over from run.json as it is.
KEPT = ("verb", "data", "hold_out", "trains_on_all", "is_sweeping", "shard", "tensorboard", "wandb")


def resume(
    run: Annotated[Path | str, Doc("Run folder; runs/latest is the newest one")] = Path("runs/latest"),
    *,
    device: Annotated[str | None, Doc("auto, cpu, cuda, cuda:N or mps [default: the run's own]")] = None,
    workers: Annotated[
        int | None,
        Doc("Data-loading workers: threads, or processes when training on a GPU [default: the run's own]"),
    ] = None,
    set: Annotated[
        str | Sequence[str] | None,
        Doc("Setting to change from here on, such as training.lr=1e-4; may be repeated"),
    ] = None,
    allow_changed_data: Annotated[bool, Doc("Continue even if files were added, removed or changed")] = False,
    allow_download: Annotated[
        bool, Doc("Download data or a teacher that the run names and that is not in the cache")
    ] = False,
) -> "TrainingResult":
    """Resume a run where it stopped; data order, random numbers, averages and the best result are kept."""
    run, set = as_path(run), as_texts(set)
    import torch

    from vitrine.checkpoints.record import config_from_json
    from vitrine.data.preparing.preprocess import Preprocess
    from vitrine.errors import ConfigError
    from vitrine.models import build
    from vitrine.recipes.options import changed_under_way
    from vitrine.recipes.recipe import from_yaml
    from vitrine.runs.run_data import everything, open_data, require_classes
    from vitrine.runs.sweep import swept
    from vitrine.runs.teachers import load_teacher
    from vitrine.runs.training_run import Setting, carry_out
    from vitrine.runtime.cache import downloads
    from vitrine.runtime.devices import same_threads
    from vitrine.runtime.find_run import find_run
    from vitrine.runtime.processes import joined_processes, on_first_process
    from vitrine.runtime.progress import notice

    kept = find_run(run)
    folder, before, began = kept.path, from_yaml(kept.read_recipe()), kept.read_record()
    recipe = changed_under_way(before, set)
    if set and began.is_sweeping:
        raise ConfigError(
            f"{folder} is still trying learning rates, all with the same settings; go on without --set"
        )
    if workers is None:
        workers = int(began.workers)
    exclude = None if began.exclude is None else Path(began.exclude)
    with joined_processes(device or began.device) as processes, downloads(allowed=allow_download):
        state, done = on_first_process(
            lambda: unfinished_state(folder, recipe.training, is_sweeping=began.is_sweeping), processes
        )
        opened = open_data(
            began.data, folder=folder, seed=recipe.training.seed, hold_out=began.hold_out, exclude=exclude,
            strict=False, allow_empty_class=True, workers=workers, processes=processes, is_resumed=True,
            allow_changed=allow_changed_data, needs_labels=recipe.needs_labels,
        )  # fmt: skip
        splits = everything(opened.splits) if began.trains_on_all else opened.splits
        require_classes(splits, folder)
        config = config_from_json(dict(began.model))
        recomputes = recipe.model_options.get("activation_checkpointing", config.activation_checkpointing)
        config = dataclasses.replace(config, activation_checkpointing=recomputes)
        teacher = load_teacher(recipe, config)
        if teacher is not None and teacher.weights != began.teacher:
            raise ConfigError(
                f"{teacher.name} is not the teacher that this run began with; bring its weights back, or start anew"
            )
        torch.manual_seed(recipe.training.seed)
        is_alone = processes.world_size == 1 and processes.device.type == "cpu"
        threads = began.threads if is_alone else None
        setting = Setting(
            model=build(config),
            teacher=teacher,
            preprocess=Preprocess.from_json(dict(began.preprocess)),
            splits=splits,
            set_aside=opened.set_aside,
            issues=opened.issues,
            contents=opened.contents,
            recipe=recipe,
            folder=folder,
            device=device or began.device,
            workers=workers,
            exclude=exclude,
            allow_changed_data=allow_changed_data,
            **{name: getattr(began, name) for name in KEPT},
        )
        if setting.is_sweeping:
            notice(f"Going on with the sweep in {folder}")
            with same_threads(threads):
                return carry_out(swept(with_weights(setting)))
        notice(f"Going on with {folder} after step {done:,} of {recipe.training.total_steps:,}")
        if recipe != before:
            on_first_process(lambda: write_change(folder, recipe, settings=list(set), done=done), processes)
        with same_threads(threads):
            return carry_out(setting, resume_from=state)


def write_change(folder: Path, recipe: "Recipe", *, settings: list[str], done: int) -> None:
    """Keep what was changed, for the next time that the run goes on, and say it in its log."""
    from vitrine.recipes.recipe import to_yaml
    from vitrine.runtime.log_file import logged_to
    from vitrine.runtime.progress import notice

    run = RunFolder(folder)
    run.write_recipe(to_yaml(recipe))
    with logged_to(run):
        notice(f"From step {done + 1:,} on: {', '.join(settings)}")


def with_weights(setting: "Setting") -> "Setting":
    """Load the weights that every attempt of a sweep begins with."""
    from vitrine.runs.starting_weights import load_to_tune

    assert setting.recipe.model is not None
    classes = setting.splits["train"].classes
    loaded = load_to_tune(setting.recipe.model, setting.recipe, num_classes=len(classes))
    return dataclasses.replace(setting, model=loaded.model)


def unfinished_state(
    folder: Path, training: "TrainingConfig", *, is_sweeping: bool
) -> tuple[Path | None, int]:
    """Return the last state of a run and its step; refuse a run that is under way, has none, or is finished.

    A sweep keeps the states of its attempts elsewhere.
    """
    from vitrine.errors import ConfigError
    from vitrine.runs.run_records import require_idle
    from vitrine.runtime.launch import launched
    from vitrine.training.saving import newest_state, numbers_of

    require_idle(folder)
    if is_sweeping:
        return None, 0
    state = newest_state(RunFolder(folder).last_checkpoint)
    if state is None:
        raise ConfigError(
            f"{folder} has no checkpoint yet, so there is nothing to go on from; start the run again, in this folder "
            "with --overwrite"
        )
    numbers = numbers_of(state)
    done, since_best = int(numbers["step"]), int(numbers["evaluations_since_best"])
    is_patience_over = training.patience is not None and since_best >= training.patience
    is_over = done >= training.total_steps or is_patience_over
    # A process may be lost when all is done; torchrun's restart should then end well.
    if is_over and RunFolder(folder).has_model and not launched().restarts:
        more = [] if done < training.total_steps else [f"--set training.total_steps={2 * done}"]
        if is_patience_over:  # more steps alone would end before the first of them
            more.append("--set training.patience=null")
        early = f", nothing better in {counted(since_best, 'evaluation')}" if is_patience_over else ""
        raise ConfigError(
            f"{folder} is finished ({counted(done, 'step')}{early}); its model is in {RunFolder(folder).model}; "
            f"to go on give {' '.join(more)}"
        )
    return state, done
