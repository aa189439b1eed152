"""The run folder: who makes it, what is written there before the first step, what a resumed run checks.

`config.yaml` re-runs it; `run.json` is what `vitrine resume` needs beyond that; `data.json` what the data was.
"""

import dataclasses
import platform
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrine.runtime.find_run import runs_in
from vitrine.runtime.run_folder import RESULTS, RunFolder, RunRecord

if TYPE_CHECKING:
    from vitrine.runs.training_run import Setting
    from vitrine.runtime.processes import Processes


def start_folder(
    named: Path | None, *, verb: str, data: str, overwrite: bool, processes: "Processes"
) -> Path:
    """Let the first process make the run folder, and all processes know it."""
    from vitrine.runtime.output_folder import new_output_folder
    from vitrine.runtime.processes import on_first_process

    def make() -> Path:
        may_replace = overwrite or (named is not None and is_restarted(named))
        if may_replace and named is not None and named.exists():
            require_idle(named)
        folder = new_output_folder(
            named, verb=verb, files=RESULTS, never_in=data_folder(data), is_overwriting=may_replace
        )
        if may_replace:  # an earlier run's best weights must not be taken for this one's
            RunFolder(folder).clear()
        return folder

    return on_first_process(make, processes)


@contextmanager
def at_work(folder: Path, processes: "Processes") -> Iterator[None]:
    """Keep other commands off a run for the length of the block: two that write to it would spoil it for both."""
    from vitrine.runtime.processes import on_first_process

    with ExitStack() as held:
        on_first_process(lambda: held.enter_context(RunFolder(folder).locked()), processes)
        yield


def require_idle(folder: Path) -> None:
    """Refuse to touch a run that another process is training."""
    with RunFolder(folder).locked():
        pass


def restarted_run(named: Path | None, *, processes: "Processes") -> Path | None:
    """Find the run to go on with where torchrun lost a process and starts the same command once more."""
    from vitrine.runtime.processes import on_first_process
    from vitrine.training.saving import newest_state

    def look() -> Path | None:
        places = [named] if named is not None else [run.path for run in runs_in(Path("runs"))]
        ours = [place for place in places if is_restarted(place)]
        return next(
            (place for place in ours if is_sweeping(place) or newest_state(RunFolder(place).last_checkpoint)),
            None,
        )

    return on_first_process(look, processes)


def is_restarted(folder: Path) -> bool:
    """Whether a folder holds a run that this torchrun began before it lost a process and started anew."""
    from vitrine.runtime.launch import launched

    launch = launched()
    if not launch.restarts or not RunFolder(folder).is_run:
        return False
    return RunFolder(folder).read_record().launch == launch.identity


def is_sweeping(folder: Path) -> bool:
    """Whether a run is still trying learning rates."""
    return RunFolder(folder).read_record().is_sweeping


def write_records(setting: "Setting", *, is_resumed: bool) -> None:
    """Write what is needed to repeat the run; a resumed run checks that its data is unchanged."""
    import torch

    from vitrine.checkpoints.record import config_to_json
    from vitrine.recipes.recipe import to_yaml
    from vitrine.runs.run_data import changed
    from vitrine.runtime.launch import launched

    folder = RunFolder(setting.folder)
    fingerprints = {name: source.fingerprint() for name, source in setting.splits.items()}
    data = {
        "address": setting.data,
        "images": {name: len(source) for name, source in setting.splits.items()},
        "fingerprints": fingerprints,
        "contents": dict(setting.contents),
        "set_aside": list(setting.set_aside),
        "issues": [dataclasses.asdict(issue) for issue in setting.issues],
    }
    before = folder.read_data() if is_resumed else {}
    if before:
        names_and_bytes = (
            (fingerprints, before["fingerprints"]),
            (setting.contents, before.get("contents", setting.contents)),
        )
        others = [name for now, then in names_and_bytes for name in now if then.get(name) != now[name]]
        if others and not setting.allow_changed_data:
            raise changed(f"the {others[0]} split of {setting.data}")
        if others:
            folder.write_data(data)
        return
    kept = (
        "verb", "device", "workers", "shard", "hold_out", "trains_on_all", "is_sweeping", "tensorboard",
        "wandb",
    )  # fmt: skip
    folder.write_record(
        RunRecord(
            **{name: getattr(setting, name) for name in kept},
            # A run may be resumed from another folder.
            data=str(Path(setting.data).absolute()) if data_folder(setting.data) else setting.data,
            exclude=None if setting.exclude is None else str(setting.exclude.absolute()),
            objective=setting.recipe.objective,
            launch=launched().identity,
            threads=torch.get_num_threads(),
            preprocess=setting.preprocess.to_json(),
            model=config_to_json(setting.model.config),
            teacher=None if setting.teacher is None else setting.teacher.weights,
        )
    )
    folder.write_recipe(to_yaml(setting.recipe))
    folder.write_command(shlex.join(["vitrine", *sys.argv[1:]]))
    folder.write_environment(environment())
    folder.write_classes(setting.splits["train"].classes)
    folder.write_data(data)


def environment() -> dict[str, Any]:
    """Return the versions and the machine that a run depends on."""
    import torch

    from vitrine.version import __version__

    return {
        "vitrine": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def optional_sinks(setting: "Setting", *, done: int) -> list[Any]:
    """Open TensorBoard and W&B where they are asked for."""
    from vitrine.training.metrics_log import TensorBoard, WeightsAndBiases

    sinks: list[Any] = []
    if setting.tensorboard:
        sinks.append(TensorBoard(RunFolder(setting.folder).tensorboard, done_steps=done))
    if setting.wandb:
        config = dataclasses.asdict(setting.recipe)
        sinks.append(WeightsAndBiases(setting.wandb, config=config, folder=setting.folder))
    return sinks


def steps_done(state: Path | None) -> int:
    """Return the step that a saved state stands at."""
    from vitrine.training.saving import numbers_of

    return int(numbers_of(state)["step"]) if state is not None else 0


def data_folder(address: str) -> list[Path]:
    """Return the folder or file that a data set lies in, where it is one on this machine: never written to."""
    path = Path(address)
    return [path] if path.exists() else []
