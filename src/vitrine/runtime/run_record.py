"""Records of a run folder: how the run was started (`run.json`), what it logged (`metrics.jsonl`). No torch."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from vitrine.errors import ConfigError
from vitrine.runtime.files import parse_json


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """`run.json`: how a run was started."""

    verb: str
    data: str
    """Address of the data set; a path is absolute."""
    device: str
    workers: int
    model: Mapping[str, Any]
    """Config of the model, as `checkpoints.record` writes it."""
    preprocess: Mapping[str, Any]
    objective: str = "labels"
    weights_prefix: str | None = None
    """Prefix of the model's weights in a checkpoint of the trained module; version 0.1 did not record it."""
    hold_out: float | None = None
    exclude: str | None = None
    group: str | None = None
    """The rule that keeps images on one side of a split."""
    shard: bool = False
    trains_on_all: bool = False
    """Whether the run also trains on the held-out images, as after a sweep."""
    is_sweeping: bool = False
    """Whether learning rates are still being tried."""
    is_cross_validating: bool = False
    """Whether parts of the training images are still being left out in turn."""
    is_fast: bool = False
    """Whether the head was solved in closed form and nothing was trained."""
    tensorboard: bool = False
    wandb: str | None = None
    launch: str | None = None
    """Identity of the torchrun that started it."""
    threads: int | None = None
    teacher: str | None = None
    """Hash of the teacher's weights, for distillation."""
    closed_form: Mapping[str, Any] | None = None
    """Score of the head that was solved before training."""
    licence: str | None = None
    """Licence of the weights that the run started from, if known."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any], *, path: Path) -> Self:
        """Build the record from plain values, read from `path`; fields of later versions are ignored."""
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            return cls(**{name: value for name, value in values.items() if name in known})
        except TypeError as error:
            missing = str(error).rpartition(": ")[2]
            raise ConfigError(f"{path} is damaged: it lacks {missing}") from None


def read_metrics(text: str) -> list[dict[str, Any]]:
    """Read the lines of metrics.jsonl; an incomplete line, as after a power cut, is skipped."""
    return [
        record for line in text.splitlines() if (record := _parsed(line)) is not None and "step" in record
    ]


def metrics_until(done_steps: int, text: str) -> str:
    """Return the lines of metrics.jsonl up to a step; unreadable lines are dropped."""
    return "".join(line + "\n" for line in text.splitlines() if _step_of(line) <= done_steps)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        record = parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _step_of(line: str) -> float:
    record = _parsed(line)
    return float(record.get("step", 0)) if record is not None else math.inf
