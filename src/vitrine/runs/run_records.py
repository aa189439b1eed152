"""The run folder: who makes it, what is written there before the first step, what a resumed run checks.

`config.yaml` re-runs it; `run.json` is what `vitrine resume` needs beyond that; `data.json` what the data was.
"""

import dataclasses
import json
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrine.runs.training_run import Setting
    from vitrine.runtime.processes import Processes

FILES = ("config.yaml", "metrics.jsonl", "checkpoints", "model")
# Everything that a run writes into its folder, and so all that --overwrite takes away.
WRITTEN = (
    *FILES, "run.json", "command.txt", "environment.json", "classes.json", "split.csv", "data.json", "log.txt",
    "pictures", "sweep", "tensorboard", "wandb", "report.html",
)  # fmt: skip


def start_folder(
    named: Path | None, *, verb: str, data: str, overwrite: bool, processes: "Processes"
) -> Path:
    """Let the first process make the run folder, and all processes know it."""
    from vitrine.runtime.processes import on_first_process
    from vitrine.runtime.run_folders import new_run_folder

    def make() -> Path:
        may_replace = overwrite or (named is not None and is_restarted(named))
        if may_replace and named is not None and named.exists():
            require_idle(named)
        folder = new_run_folder(
            named, verb=verb, files=FILES, never_in=data_folder(data), is_overwriting=may_replace
        )
        if may_replace:  # an earlier run's best weights must not be taken for this one's
            for name in WRITTEN:
                remove(folder / name)
        return folder

    return on_first_process(make, processes)


@contextmanager
def at_work(folder: Path, processes: "Processes") -> Iterator[None]:
    """Keep other commands off a run for the length of the block: two that write to it would spoil it for both."""
    from vitrine.runtime.processes import on_first_process

    with ExitStack() as held:
        on_first_process(lambda: held.enter_context(claim(folder)), processes)
        yield


def require_idle(folder: Path) -> None:
    """Refuse to touch a run that another process is training."""
    with claim(folder):
        pass


def claim(folder: Path) -> AbstractContextManager[None]:
    """Return the claim to a run; it is made inside, as a folder such as /out may lie where nothing can be written."""
    from vitrine.runtime.turns import alone_at

    return alone_at(
        folder / "checkpoints", advice="let it end or stop it first, or name another folder with --out"
    )


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def restarted_run(named: Path | None, *, processes: "Processes") -> Path | None:
    """Find the run to go on with where torchrun lost a process and starts the same command once more."""
    from vitrine.runtime.processes import on_first_process
    from vitrine.training.loop import LAST
    from vitrine.training.saving import newest_state

    def look() -> Path | None:
        places = [named] if named is not None else [path.parent for path in Path("runs").glob("*/run.json")]
        ours = [place for place in places if is_restarted(place)]
        return next(
            (place for place in ours if is_sweeping(place) or newest_state(place / "checkpoints" / LAST)),
            None,
        )

    return on_first_process(look, processes)


def is_restarted(folder: Path) -> bool:
    """Whether a folder holds a run that this torchrun began before it lost a process and started anew."""
    from vitrine.runtime.launch import launched

    launch = launched()
    if not launch.restarts or not (folder / "run.json").exists():
        return False
    return bool(read_run(folder)["launch"] == launch.identity)


def is_sweeping(folder: Path) -> bool:
    """Whether a run is still trying learning rates."""
    return bool(read_run(folder)["is_sweeping"])


def read_run(folder: Path) -> dict[str, Any]:
    """Read what `write_records` wrote of a run to run.json."""
    from vitrine.errors import ConfigError

    try:
        return dict(json.loads((folder / "run.json").read_text()))
    except ValueError as error:
        raise ConfigError(f"{folder / 'run.json'} is damaged, so the run cannot be read: {error}") from None


def write_records(setting: "Setting", *, is_resumed: bool) -> None:
    """Write what is needed to repeat the run; a resumed run checks that its data is unchanged."""
    import torch

    from vitrine.checkpoints.record import config_to_json
    from vitrine.checkpoints.writing import write_json, write_text
    from vitrine.recipes.recipe import to_yaml
    from vitrine.runs.run_data import changed
    from vitrine.runtime.launch import launched

    folder = setting.folder
    fingerprints = {name: source.fingerprint() for name, source in setting.splits.items()}
    data = {
        "address": setting.data,
        "images": {name: len(source) for name, source in setting.splits.items()},
        "fingerprints": fingerprints,
        "contents": dict(setting.contents),
        "set_aside": list(setting.set_aside),
        "issues": [dataclasses.asdict(issue) for issue in setting.issues],
    }
    if is_resumed and (folder / "data.json").exists():
        before = json.loads((folder / "data.json").read_text())
        names_and_bytes = (
            (fingerprints, before["fingerprints"]),
            (setting.contents, before.get("contents", setting.contents)),
        )
        others = [name for now, then in names_and_bytes for name in now if then.get(name) != now[name]]
        if others and not setting.allow_changed_data:
            raise changed(f"the {others[0]} split of {setting.data}")
        if others:
            write_json(folder / "data.json", data)
        return
    kept = (
        "verb", "device", "workers", "shard", "hold_out", "trains_on_all", "is_sweeping", "tensorboard",
        "wandb",
    )  # fmt: skip
    write_json(
        folder / "run.json",
        {
            **{name: getattr(setting, name) for name in kept},
            # A run may be gone on with from another folder.
            "data": str(Path(setting.data).absolute()) if data_folder(setting.data) else setting.data,
            "exclude": None if setting.exclude is None else str(setting.exclude.absolute()),
            "objective": setting.recipe.objective,
            "launch": launched().identity,
            "threads": torch.get_num_threads(),
            "preprocess": setting.preprocess.to_json(),
            "model": config_to_json(setting.model.config),
            "teacher": None if setting.teacher is None else setting.teacher.weights,
        },
    )
    write_text(folder / "config.yaml", to_yaml(setting.recipe))
    write_text(folder / "command.txt", shlex.join(["vitrine", *sys.argv[1:]]) + "\n")
    write_json(folder / "environment.json", environment())
    write_json(folder / "classes.json", {"classes": list(setting.splits["train"].classes)})
    write_json(folder / "data.json", data)


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
        sinks.append(TensorBoard(setting.folder / "tensorboard", done_steps=done))
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
