"""The parts of a run beside its data and recipe: the model, the execution, the output; and its result."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from vitrine.data.decoding.annotation import DataTask
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.evaluation.metrics import Interval, wilson_interval
from vitrine.evaluation.number_line import NumberFigures
from vitrine.evaluation.scoring import ClassMeasure, Mistake
from vitrine.models import Model
from vitrine.objectives.teacher import Teacher
from vitrine.recipes.plain_values import plain
from vitrine.runtime.result import Result
from vitrine.runtime.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One of the models that a run chooses from, scored on images that it was not fitted on."""

    name: str
    accuracy: float
    interval: tuple[float, float]
    num_images: int
    seconds: float
    is_saved: bool = False

    @classmethod
    def of(cls, name: str, accuracy: float, *, num_images: int, seconds: float) -> Self:
        """Add the 95 % interval (Wilson)."""
        interval = wilson_interval(accuracy, num_images)
        return cls(name=name, accuracy=accuracy, interval=interval, num_images=num_images, seconds=seconds)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Build the contender from plain values."""
        low, high = values["interval"]
        return cls(**{**values, "interval": (float(low), float(high))})


@dataclass(frozen=True, kw_only=True)
class ClosedFormScore:
    """The closed form of a run, scored on its training images, each by a fit without it."""

    method: str
    accuracy: float
    """With several labels per image, the share of images whose most likely class is one of their labels."""
    interval: tuple[float, float]
    num_images: int
    seconds: float
    contenders: tuple[Contender, ...] = ()
    """The closed form and the head that was trained alone (logistic regression), the better one first."""

    def to_json(self) -> dict[str, Any]:
        """Return the score as plain values."""
        values: dict[str, Any] = plain(dataclasses.asdict(self))
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Build the score from plain values."""
        low, high = values["interval"]
        contenders = tuple(map(Contender.from_json, values.get("contenders", ())))
        return cls(**{**values, "interval": (float(low), float(high)), "contenders": contenders})


@dataclass(frozen=True, kw_only=True)
class StartingModel:
    """The model that a run trains, with its first weights."""

    model: Model
    preprocess: Preprocess
    teacher: Teacher | None = None
    """For objectives that learn from one."""
    is_fresh: bool = False
    """Whether no weight was trained before."""
    closed_form: ClosedFormScore | None = None
    """Set where the head was solved before training."""
    licence: str | None = None
    """Licence of the first weights, where it is known."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """On which device a run computes, and how many workers read its images."""

    device: str = "auto"
    workers: int = 2
    shard: bool = False
    """Whether several processes divide weights and optimizer among them (FSDP2)."""


@dataclass(frozen=True, kw_only=True)
class RunOutput:
    """The outputs of a run: its folder, and what it writes beside weights and metrics."""

    folder: RunFolder
    verb: str
    tensorboard: bool = False
    wandb: str | None = None
    """Project of Weights & Biases."""
    plans: bool = True
    """Whether the plan, with an estimate of the time, is presented before the first step."""
    reports: bool = True
    """Whether the run ends with its page."""
    measures_trust: bool = True
    """Whether the run ends with the statistics of "none of these" and of prediction sets."""
    num_networks: int = 1
    """Networks of a cross-validated run; this one is the first to be trained."""


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingResult(Result):
    """A finished run."""

    folder: Path
    model: Path
    """The folder that `vitrine.load` reads."""
    adapter: Path | None = None
    steps: int
    accuracy: float | None
    """On the validation split, of the weights in `model`."""
    best_step: int | None = None
    """The step of these weights: the one with the best evaluation, the last one if several are equal."""
    interval: tuple[float, float] | None
    """95 % interval of the accuracy (Wilson)."""
    mean_average_precision: Interval | None = None
    """On the validation split, if images have several labels; `accuracy` is then the share of images whose most
    likely class is one of their labels."""
    num_validation: int
    num_kept_classes: int = 0
    """Classes of the starting model that were kept beside the new ones."""
    is_left_out: bool = False
    """Whether the accuracy is that of the training images, each scored by a classifier that was fitted without it."""
    images_per_second: float
    closed_form: ClosedFormScore | None = None
    """The head that was solved before training, scored on the training images."""
    start: Mapping[str, float] = field(default_factory=dict)
    """Numbers of the evaluation before the first step; empty without one."""
    contenders: tuple[Contender, ...] = ()
    """The candidates of the run: the closed form, the trained head, the fine-tuned and the interpolated model."""
    num_folds: int = 0
    """Parts of the training images that were left out in turn, where a run is cross-validated."""
    seconds: float | None = None
    """Seconds of training, evaluations included."""
    calibration: Mapping[str, Any] | None = None
    """Temperature, number of images it was fitted on, expected calibration error before and after."""
    number: NumberFigures | None = None
    """Errors of a model of numbers; it has no accuracy."""
    macro_accuracy: float | None = None
    """Mean over the classes, where they are uneven."""
    evaluation: Mapping[str, float] = field(default_factory=dict)
    """All numbers of the last evaluation."""
    objective: str = "labels"
    task: DataTask = "classes"
    """The kind of labels of the data. For masks, `evaluation` has mean IoU and accuracies, and `accuracy` is None."""
    has_head: bool = True
    """Whether classes were learned."""
    trains_on_all: bool = False
    """Whether the final model was also trained on the held-out images, as after a sweep."""
    skipped: tuple[str, ...] = ()
    """Files that cannot be read; listed in data.json."""
    classes_without_validation: tuple[str, ...] = ()
    """Classes without a held-out image; the accuracy says nothing about them."""
    worst: tuple[tuple[str, float], ...] = ()
    """Classes with the lowest measure on the validation split, lowest first."""
    worst_by: ClassMeasure = "f1"
    mistakes: tuple[Mistake, ...] = ()
    """Validation images that are classified wrongly, most confident first."""
    report: Path | None = None
    data: str = ""
