"""A run folder: the name of every file in it, and every read and write of them. No torch.

run.json           how the run was started: all that `resume` needs beside the recipe (a `RunRecord`)
config.yaml        the recipe
command.txt        the command line, as it was typed
environment.json   versions and machine
classes.json       class names, in the order of the head
split.csv          which images were held out
data.json          sizes, fingerprints and problems of the data
metrics.jsonl      one record per line: logged steps and evaluations
log.txt            notices with their time
checkpoints/       last and stopped: weights and optimizer state; best: weights
closed_form/       the model with the head that was solved before training: usable within a minute
model/             the trained model with its record
pictures/          what the model sees along the way, for objectives that draw it
sweep/             one run folder per learning rate that was tried
folds/             one run folder per fold of a running cross-validation
left_out.safetensors  logits of the images that were left out in turn, for the page
report.html        the page of the run
"""

import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from vitrine.errors import ConfigError
from vitrine.runtime.files import require_own_file
from vitrine.runtime.locks import require_lock
from vitrine.runtime.own_files import OwnFiles
from vitrine.runtime.run_address import shown_place
from vitrine.runtime.run_record import RunRecord, metrics_until, read_metrics

RECORD, RECIPE, METRICS, CHECKPOINTS, MODEL = (
    "run.json",
    "config.yaml",
    "metrics.jsonl",
    "checkpoints",
    "model",
)
# A folder that holds one of these is not overwritten unless asked for.
RESULTS = (RECIPE, METRICS, CHECKPOINTS, MODEL)
# Everything that a run writes; overwriting removes all of it.
WRITTEN = (
    *RESULTS, RECORD, "command.txt", "environment.json", "classes.json", "split.csv", "data.json", "log.txt",
    "pictures", "sweep", "folds", "closed_form", "tensorboard", "wandb", "left_out.safetensors",
    "report.html",
)  # fmt: skip
LAST, BEST, STOPPED = "last.safetensors", "best.safetensors", "stopped.safetensors"


@dataclass(frozen=True)
class RunFolder:
    """One run folder; nothing is read or written until asked for."""

    path: Path

    def __str__(self) -> str:
        return shown_place(self.path)

    @property
    def _files(self) -> OwnFiles:
        return OwnFiles(self.path)

    @property
    def is_run(self) -> bool:
        """Whether a run was started here."""
        return self.record_file.exists()

    @property
    def has_model(self) -> bool:
        """Whether the run has finished and saved its model; config.json is written last."""
        return (self.model / "config.json").exists()

    @property
    def record_file(self) -> Path:
        """How the run was started."""
        return self.path / RECORD

    @property
    def recipe_file(self) -> Path:
        """The recipe."""
        return self.path / RECIPE

    @property
    def split_file(self) -> Path:
        """Which images were held out; `data.split` reads and writes it."""
        return self.path / "split.csv"

    @property
    def metrics_file(self) -> Path:
        """Logged steps and evaluations."""
        return self.path / METRICS

    @property
    def log_file(self) -> Path:
        """Notices with their time."""
        return self.path / "log.txt"

    @property
    def report_file(self) -> Path:
        """The page of the run."""
        return self.path / "report.html"

    @property
    def left_out_file(self) -> Path:
        """Logits of the training images, from classifiers that were fitted without them."""
        return self.path / "left_out.safetensors"

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.path / MODEL

    @property
    def closed_form(self) -> Path:
        """The model before training, with the head that was solved in closed form."""
        return self.path / "closed_form"

    @property
    def adapter(self) -> Path:
        """The trained adapters alone, in PEFT's format, if the run trains adapters."""
        return self.path / "adapter"

    @property
    def checkpoints(self) -> Path:
        """Weights and optimizer state, by name."""
        return self.path / CHECKPOINTS

    @property
    def last_checkpoint(self) -> Path:
        """The checkpoint from which training resumes."""
        return self.checkpoints / LAST

    @property
    def best_checkpoint(self) -> Path:
        """The weights with the best evaluation."""
        return self.checkpoints / BEST

    @property
    def tensorboard(self) -> Path:
        """Event files of TensorBoard."""
        return self.path / "tensorboard"

    def attempt(self, rate: float) -> "RunFolder":
        """Return the run folder of one learning rate of a sweep."""
        return RunFolder(self.path / "sweep" / f"lr-{rate:g}")

    def attempts(self) -> dict[float, "RunFolder"]:
        """Return the run folders of a sweep by learning rate, lowest first."""
        folders = {float(path.name.removeprefix("lr-")): path for path in (self.path / "sweep").glob("lr-*")}
        return {rate: RunFolder(folders[rate]) for rate in sorted(folders)}

    def fold(self, number: int) -> "RunFolder":
        """Return the run folder of one fold of a cross-validation, from 0."""
        return RunFolder(self.path / "folds" / f"fold-{number + 1}")

    def remove_folds(self) -> None:
        """Remove the folds of a cross-validation that has ended: the model is saved."""
        if (self.path / "folds").exists():
            _remove(self.path / "folds")

    def trained_at(self) -> float:
        """Return the time of the last step; rewriting the report does not change it."""
        files = (self.record_file, self.metrics_file)
        return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)

    def read_record(self) -> RunRecord:
        """Read run.json; fields of later versions are ignored."""
        return RunRecord.from_values(self._files.table(RECORD), path=self.record_file)

    def read_recipe(self) -> str:
        """Read the recipe as text."""
        return self._files.text(RECIPE)

    def read_command(self) -> str:
        """Read the command line; empty if it was not recorded."""
        return self._files.text("command.txt", "").strip()

    def read_environment(self) -> dict[str, Any]:
        """Read versions and machine; empty if they were not recorded."""
        return self._files.table("environment.json", {})

    def read_classes(self) -> list[str]:
        """Read the class names."""
        names = self._files.table("classes.json").get("classes")
        if not isinstance(names, list):
            raise ConfigError(f"{self.path / 'classes.json'} is damaged: it has no list of classes")
        return [str(name) for name in names]

    def read_data(self) -> dict[str, Any]:
        """Read the facts about the data; empty if they were not recorded."""
        return self._files.table("data.json", {})

    def read_metrics(self) -> list[dict[str, Any]]:
        """Read all records; an incomplete line, as after a power cut, is skipped."""
        return read_metrics(self._files.text(METRICS, ""))

    def write_record(self, record: RunRecord) -> None:
        """Write run.json."""
        self._files.write_table(RECORD, dataclasses.asdict(record))

    def write_recipe(self, text: str) -> None:
        """Write config.yaml."""
        self._files.write(RECIPE, text)

    def write_command(self, text: str) -> None:
        """Write command.txt."""
        self._files.write("command.txt", text + "\n")

    def write_environment(self, values: Mapping[str, Any]) -> None:
        """Write environment.json."""
        self._files.write_table("environment.json", values)

    def write_classes(self, names: Sequence[str]) -> None:
        """Write classes.json."""
        self._files.write_table("classes.json", {"classes": list(names)})

    def write_data(self, values: Mapping[str, Any]) -> None:
        """Write data.json."""
        self._files.write_table("data.json", values)

    def write_picture(self, step: int, png: bytes) -> None:
        """Write pictures/step-N.png."""
        self._files.write(f"pictures/step-{step}.png", png)

    def open_log(self) -> TextIO:
        """Open log.txt to append to it."""
        return self._files.append("log.txt")

    def open_metrics(self, *, done_steps: int) -> TextIO:
        """Open metrics.jsonl to append; records after `done_steps`, which will be written again, are removed."""
        if self.metrics_file.exists():
            self._files.write(METRICS, metrics_until(done_steps, self._files.text(METRICS)))
        return self._files.append(METRICS)

    def clear(self) -> None:
        """Remove everything that a run writes, so that weights of an earlier run are never used in a new one."""
        for name in WRITTEN:
            _remove(self.path / name)

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from writing to this run inside the block; refuse if one does already.

        The lock is inside the folder, as the parent folder may not be writable (with /out, for example).
        """
        self.require_own_files()
        return require_lock(
            self.checkpoints, advice="wait for it or stop it first, or write to another folder"
        )

    def require_own_files(self) -> None:
        """Refuse a folder with links that lead out of it, pipes or devices: a run writes to its own files only."""
        root = Path(os.path.realpath(self.path))
        for folder, folders, files in os.walk(self.path):
            for name in (*folders, *files):
                require_own_file(Path(folder) / name, root=root)

    @contextmanager
    def removed_on_failure(self) -> Iterator[None]:
        """Remove the folder again if the block fails before the run has begun, and only if it was empty.

        A closed form has no checkpoints to resume from: until its model is saved, it has not begun.
        """
        was_empty = not any(self.path.iterdir())
        try:
            yield
        except BaseException:
            has_begun = self.is_run and (self.has_model or not self.read_record().is_fast)
            if was_empty and not has_begun:
                shutil.rmtree(self.path, ignore_errors=True)
            raise


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
