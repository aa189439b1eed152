"""The records of a run folder: its command, data, progress and time."""

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from vitrine.errors import ConfigError
from vitrine.runtime.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class RunAccount:
    """The records of a run folder, read once."""

    folder: Path
    run: Mapping[str, Any]
    recipe: Mapping[str, Any]
    recipe_text: str
    records: tuple[Mapping[str, Any], ...]
    environment: Mapping[str, Any]
    data: Mapping[str, Any]
    command_line: str
    """The command line as typed."""
    tried: Mapping[float, float | None]
    """In a sweep: learning rate to accuracy on the held-out images."""

    @property
    def total_steps(self) -> int:
        """Steps that the run was planned for."""
        return int(self.recipe["training"]["total_steps"])

    @property
    def batch_size(self) -> int:
        """Images per step."""
        return int(self.recipe["training"]["batch_size"])

    @property
    def steps(self) -> int:
        """Last recorded step."""
        return max((int(record["step"]) for record in self.records), default=0)

    @property
    def is_finished(self) -> bool:
        """Whether the run finished and saved a model."""
        return RunFolder(self.folder).has_model

    @property
    def training_seconds(self) -> float:
        """Seconds of the recorded steps, without evaluation and pauses."""
        seconds, before = 0.0, 0
        for record in self.records:
            rate, step = record.get("images_per_second"), int(record["step"])
            if rate:
                seconds += (step - before) * self.batch_size / float(rate)
                before = step
        return seconds

    @property
    def repeat(self) -> str:
        """The command that repeats the run: its recipe, and the options that are not part of it."""
        run = self.run
        words = [
            "vitrine",
            str(run["verb"]),
            str(run["data"]),
            "--recipe",
            str(RunFolder(self.folder).recipe_file),
        ]
        words += ["--fast"] if run.get("is_fast") else []
        for name in ("hold_out", "exclude", "group"):
            # A fast run holds out no images unless asked: every image is left out of one fit.
            if run.get(name) is not None and not (
                name == "hold_out" and run.get("is_fast") and not run[name]
            ):
                words += [f"--{name.replace('_', '-')}", str(run[name])]
        words += ["--shard"] if run.get("shard") else []
        words += ["--sweep"] if self.tried else []
        return shlex.join(words)


def read_account(folder: Path) -> RunAccount:
    """Read the records of a run folder; only run.json and config.yaml must be there."""
    run = RunFolder(folder)
    for file in (run.record_file, run.recipe_file):
        if not file.exists():
            raise ConfigError(f"{folder} is not the folder of a training run: it has no {file.name}")
    text = run.read_recipe()
    return RunAccount(
        folder=folder,
        run=dataclasses.asdict(run.read_record()),
        recipe=yaml.safe_load(text),
        recipe_text=text,
        records=tuple(run.read_metrics()),
        environment=run.read_environment(),
        data=run.read_data(),
        command_line=run.read_command(),
        tried={rate: _last_accuracy(attempt) for rate, attempt in run.attempts().items()},
    )


def _last_accuracy(attempt: RunFolder) -> float | None:
    values = [record["val_accuracy"] for record in attempt.read_metrics() if "val_accuracy" in record]
    return values[-1] if values else None
