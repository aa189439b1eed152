"""What a run folder tells of itself: how it was started, on what, how far it came, what it cost."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrine.errors import ConfigError


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
    typed: str
    """The command as it was typed."""
    tried: Mapping[float, float | None]
    """Of a sweep: learning rate to the best accuracy on the held-out part."""

    @property
    def total_steps(self) -> int:
        """Steps that the run was to take."""
        return int(self.recipe["training"]["total_steps"])

    @property
    def batch_size(self) -> int:
        """Images a step."""
        return int(self.recipe["training"]["batch_size"])

    @property
    def steps(self) -> int:
        """Steps that were recorded."""
        return max((int(record["step"]) for record in self.records), default=0)

    @property
    def is_finished(self) -> bool:
        """Whether the run came to its end and left a model."""
        return (self.folder / "model" / "model.safetensors").exists()

    @property
    def training_seconds(self) -> float:
        """Seconds that the recorded steps took, evaluation and pauses not counted."""
        seconds, before = 0.0, 0
        for record in self.records:
            rate, step = record.get("images_per_second"), int(record["step"])
            if rate:
                seconds += (step - before) * self.batch_size / float(rate)
                before = step
        return seconds

    @property
    def repeat(self) -> str:
        """The command that repeats the run: its recipe as it was, and what was said beside it."""
        run = self.run
        words = ["vitrine", str(run["verb"]), str(run["data"]), "--recipe", str(self.folder / "config.yaml")]
        for name in ("hold_out", "exclude"):
            if run.get(name) is not None:
                words += [f"--{name.replace('_', '-')}", str(run[name])]
        words += ["--shard"] if run.get("shard") else []
        words += ["--sweep"] if self.tried else []
        return shlex.join(words)


def read_account(folder: Path) -> RunAccount:
    """Read the records of a run folder; only run.json and config.yaml must be there."""
    import yaml

    for name in ("run.json", "config.yaml"):
        if not (folder / name).exists():
            raise ConfigError(f"{folder} is not the folder of a training run: there is no {name} in it")
    text = (folder / "config.yaml").read_text(encoding="utf-8")
    typed = folder / "command.txt"
    return RunAccount(
        folder=folder,
        run=_json(folder / "run.json"),
        recipe=yaml.safe_load(text),
        recipe_text=text,
        records=tuple(read_records(folder / "metrics.jsonl")),
        environment=_json(folder / "environment.json"),
        data=_json(folder / "data.json"),
        typed=typed.read_text(encoding="utf-8").strip() if typed.exists() else "",
        tried=_tried(folder / "sweep"),
    )


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl; a line that was cut short, as by a power cut, is passed over."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "step" in record:
            found.append(record)
    return found


def _tried(folder: Path) -> dict[float, float | None]:
    tried = {}
    for attempt in folder.glob("lr-*"):
        values = [
            record["val_accuracy"]
            for record in read_records(attempt / "metrics.jsonl")
            if "val_accuracy" in record
        ]
        tried[float(attempt.name.removeprefix("lr-"))] = values[-1] if values else None
    return dict(sorted(tried.items()))


def _json(path: Path) -> Mapping[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
