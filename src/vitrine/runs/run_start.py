"""The start of a run: its folder, the lock on it, and the records that are written before the first step."""

import dataclasses
import platform
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from vitrine.checkpoints.record import config_to_json
from vitrine.recipes.recipe import Recipe
from vitrine.recipes.recipe_values import to_yaml
from vitrine.runs.records import Execution, RunOutput, StartingModel
from vitrine.runs.run_at_address import begin_at_address
from vitrine.runs.run_data import RunData, changed_data
from vitrine.runtime.find_run import link_latest, runs_in
from vitrine.runtime.launch import launched
from vitrine.runtime.output_folder import new_output_folder
from vitrine.runtime.places import Place
from vitrine.runtime.processes import Processes, on_first_process
from vitrine.runtime.run_address import working_folder
from vitrine.runtime.run_folder import RESULTS, RunFolder
from vitrine.runtime.run_record import RunRecord
from vitrine.training.saving import newest_state
from vitrine.version import __version__


def create_run_folder(
    named: Place | None, *, verb: str, data: str, overwrite: bool, processes: Processes
) -> RunFolder:
    """Create the run folder on the first process; return it on all of them."""
    if isinstance(named, str):
        own = RunFolder(working_folder(named))
        may_replace = overwrite or on_first_process(lambda: is_restarted(own), processes)
        return begin_at_address(named, may_replace=may_replace, processes=processes)

    def create() -> RunFolder:
        may_replace = overwrite or (named is not None and is_restarted(RunFolder(named)))
        if may_replace and named is not None and named.exists():
            require_unlocked(RunFolder(named))
        folder = new_output_folder(
            named, verb=verb, files=RESULTS, never_in=data_path(data), is_overwriting=may_replace
        )
        if may_replace:
            RunFolder(folder).clear()
        return RunFolder(folder)

    return on_first_process(create, processes)


@contextmanager
def exclusive(folder: RunFolder, processes: Processes) -> Iterator[None]:
    """Keep other commands from writing to a run for the length of the block."""
    with ExitStack() as held:
        on_first_process(lambda: held.enter_context(folder.locked()), processes)
        yield


def require_unlocked(folder: RunFolder) -> None:
    """Refuse to touch a run that another process is training."""
    with folder.locked():
        pass


@contextmanager
def removed_on_failure(folder: RunFolder, processes: Processes) -> Iterator[None]:
    """Remove a folder that was just created if the block finds that no run can start."""
    with ExitStack() as stack:
        if processes.is_first:
            stack.enter_context(folder.removed_on_failure())
        yield


def restarted_run(named: Place | None, *, processes: Processes) -> RunFolder | None:
    """Find the run to resume if torchrun lost a process and started the same command again."""

    def find() -> RunFolder | None:
        runs = runs_in(Path("runs")) if named is None else [RunFolder(folder_of(named))]
        ours = [run for run in runs if is_restarted(run)]
        return next((run for run in ours if has_attempts(run) or newest_state(run.last_checkpoint)), None)

    return on_first_process(find, processes)


def folder_of(named: Place) -> Path:
    """Return the run folder at a place, or the working folder of this machine for one at an address."""
    return working_folder(named) if isinstance(named, str) else named


def has_attempts(folder: RunFolder) -> bool:
    """Whether a run is still trying learning rates or folds, each with checkpoints of its own."""
    record = folder.read_record()
    return record.is_sweeping or record.is_cross_validating


def is_restarted(folder: RunFolder) -> bool:
    """Whether this torchrun began the run before it lost a process and started again."""
    launch = launched()
    return bool(launch.restarts) and folder.is_run and folder.read_record().launch == launch.identity


def write_records(
    start: StartingModel,
    data: RunData,
    recipe: Recipe,
    *,
    execution: Execution,
    output: RunOutput,
    is_sweeping: bool = False,
    is_cross_validating: bool = False,
    is_fast: bool = False,
) -> None:
    """Write what is needed to repeat and to resume the run."""
    folder = output.folder
    folder.write_record(
        RunRecord(
            verb=output.verb,
            # A run may be resumed from another working directory.
            data=str(Path(data.address).absolute()) if data_path(data.address) else data.address,
            device=execution.device,
            workers=execution.workers,
            model=config_to_json(start.model.config),
            preprocess=start.preprocess.to_json(),
            objective=recipe.objective.kind,
            weights_prefix=recipe.objective.weights_prefix,
            hold_out=data.division.hold_out,
            exclude=None if data.division.exclude is None else str(data.division.exclude.absolute()),
            group=data.division.group,
            shard=execution.shard,
            trains_on_all=data.trains_on_all,
            is_sweeping=is_sweeping,
            is_cross_validating=is_cross_validating,
            is_fast=is_fast,
            tensorboard=output.tensorboard,
            wandb=output.wandb,
            launch=launched().identity,
            threads=torch.get_num_threads(),
            licence=start.licence,
            teacher=None if start.teacher is None else start.teacher.weights,
            closed_form=None if start.closed_form is None else start.closed_form.to_json(),
        )
    )
    if output.verb != "study":  # whose runs are parts of one result
        link_latest(folder)
    folder.write_recipe(to_yaml(recipe))
    folder.write_command(shlex.join(["vitrine", *sys.argv[1:]]))
    folder.write_environment(environment())
    folder.write_classes(data.train.classes)
    folder.write_data(description_of(data))


def check_data(data: RunData, folder: RunFolder, *, allow_changed: bool) -> None:
    """Refuse to resume a run whose data has changed; if that is allowed, write down the data as it is now."""
    before, now = folder.read_data(), description_of(data)
    pairs = (
        (now["fingerprints"], before.get("fingerprints", now["fingerprints"])),
        (now["contents"], before.get("contents", now["contents"])),
    )
    changed = [name for after, earlier in pairs for name in after if earlier.get(name) != after[name]]
    if changed and not allow_changed:
        raise changed_data(f"the {changed[0]} split of {data.address}")
    if changed or not before:
        folder.write_data(now)


def description_of(data: RunData) -> dict[str, Any]:
    """Return what data.json holds: sizes, fingerprints and problems of the data."""
    return {
        "address": data.address,
        "images": {name: len(source) for name, source in data.splits.items()},
        "fingerprints": {name: source.fingerprint() for name, source in data.splits.items()},
        "contents": dict(data.files.contents),
        "set_aside": list(data.files.skipped),
        "issues": [dataclasses.asdict(issue) for issue in data.files.issues],
    }


def environment() -> dict[str, Any]:
    """Return the versions and the machine that a run depends on."""
    return {
        "vitrine": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def data_path(address: str) -> list[Path]:
    """Return the folder or file of a data set on this machine; nothing is ever written there."""
    path = Path(address)
    return [path] if path.exists() else []
