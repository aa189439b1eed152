"""Objectives: the protocol that every objective follows, and the registry that finds one by its name.

An objective is a frozen config that owns its behaviour: the module that wraps the model, what it reads of a batch,
its loss, what happens after a step, its cost, its evaluation, its pictures, its advice, and the settings that it
refuses. To add one, subclass `Objective` in a file of your own and register it:

    @register_objective
    @dataclass(frozen=True, kw_only=True)
    class Rotation(Objective):
        kind: ClassVar[str] = "rotation"
        ...

Everything that an objective needs from higher-level packages (a teacher, features of all images, nearest neighbours,
attention maps) is passed in through `RunContext` and `Validation`.

Shapes: B images of C channels, N images of a split, D width, K classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Protocol, Self, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from vitrine.data.augmenting.augment import Augment, augment
from vitrine.data.decoding.annotation import DataTask
from vitrine.data.loading.loader import Batch
from vitrine.data.loading.order import Rows
from vitrine.data.preparing.annotated_view import AnyView
from vitrine.data.preparing.preprocess import Preprocess
from vitrine.data.preparing.training_view import TrainView
from vitrine.errors import ConfigError
from vitrine.models import Model, ModelConfig, ViT, ViTConfig
from vitrine.models.dense.config import DenseConfig
from vitrine.models.families import family_of
from vitrine.objectives.teacher import Teacher, TeacherRequest
from vitrine.runtime.processes import Processes
from vitrine.spelling import nearest

Parts: TypeAlias = tuple[Tensor, ...]
"""The parts of a batch that the loss reads."""
PartsOf: TypeAlias = Callable[[Tensor, Rows, int], Parts]
"""From pixels (B, C, height, width), 0 to 255, their rows and a seed to what the loss reads."""
Losses: TypeAlias = tuple[Tensor, dict[str, Tensor]]
"""One loss per image (B,), and sums over the batch to log."""
LossOf: TypeAlias = Callable[[nn.Module, Parts], Losses]
"""From the trained module and a prepared batch to losses."""
AfterStep: TypeAlias = Callable[[nn.Module, dict[str, Tensor], int, Tensor], None]
"""Called with the trained module, the sums of the step, the step (from 0) and the flag of NaN or infinity."""
AttentionOf: TypeAlias = Callable[[ViT, Tensor, Tensor], Tensor]
"""From a ViT, its input and the pixels to pixels (B, C, height, width) lit by the attention of the last block."""

# Settings that have no effect without labels or in a module that wraps the model, and their neutral values.
LABEL_SETTINGS = {
    "augment.mixup": 0.0, "augment.cutmix": 0.0, "augment.label_smoothing": 0.0, "training.patience": None,
}  # fmt: skip
MODEL_SETTINGS = {"training.layer_decay": 1.0, "training.trains": "all", "training.frozen_blocks": 0}


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The values of a run that an objective may read."""

    model: Model
    preprocess: Preprocess
    classes: tuple[str, ...]
    augment: Augment
    seed: int
    total_steps: int
    batch_size: int
    num_training_images: int
    class_counts: tuple[int, ...] = ()
    """Training images per class."""
    processes: Processes = field(default_factory=Processes)
    teacher: Teacher | None = None
    answers: Callable[[Callable[[Tensor], Tensor], str], Tensor] | None = None
    """Runs a function of the teacher on every training image, once, in its own preprocessing: (N, ...). The second
    argument names the outputs, so that another run can reuse them."""


class Validation(Protocol):
    """The validation images of a run, as an evaluation reads them; every process must take part."""

    @property
    def num_images(self) -> int:
        """Number of images."""

    def logits(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """Return the logits (N, K) of all images and their labels (N,) or (N, K)."""

    def mean_sums(self, module: nn.Module, parts_of: PartsOf) -> dict[str, Tensor]:
        """Return the mean loss per image as `loss`, and the means of the other sums, every image once."""

    def pixel_scores(self, module: nn.Module) -> dict[str, float]:
        """Return mean IoU and accuracies of a dense model over all pixels of all pictures, at their own sizes."""

    def object_scores(self, module: nn.Module, *, config: DenseConfig) -> dict[str, float]:
        """Return COCO's metrics of the boxes or the masks of a model over all pictures, at their own sizes."""

    def representation(
        self, module: nn.Module, *, advice: str, information: float | None, num_outputs: int | None
    ) -> dict[str, float]:
        """Measure the module's representations: rank, spread, nearest neighbours if there are labels, collapse.

        A collapse is reported with the advice.
        """


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The objective of a run. The defaults are those of an objective without labels that wraps a ViT as `vit`."""

    kind: ClassVar[str]
    """Name in recipes and on the command line."""
    weights_prefix: ClassVar[str] = "vit."
    """Prefix of the model's own weights in the state of the trained module."""
    has_pictures: ClassVar[bool] = False
    """Whether `pictures` draws the model's outputs at every evaluation."""
    task: ClassVar[DataTask] = "classes"
    """The kind of labels that the data must have, if labels are learned."""
    collapse_advice: ClassVar[str] = "a lower learning rate or a longer warm-up may help"
    earlier_settings: ClassVar[Mapping[str, str]] = {}
    """Maps the top-level names of this objective's settings in recipes of version 0.1 to today's names."""

    @property
    def needs_labels(self) -> bool:
        """Whether the model has a head for the classes of the data."""
        return False

    @property
    def classifies(self) -> bool:
        """Whether the trained model returns one row of class logits per image."""
        return self.needs_labels and self.task == "classes"

    @property
    def metric(self) -> str | None:
        """The metric of the evaluation that selects the best weights; None keeps the last weights."""
        return "accuracy" if self.needs_labels else None

    @property
    def source_size(self) -> int | None:
        """Side of the picture that the loader cuts; None is the model's size."""
        return None

    @property
    def asks_in_advance(self) -> bool:
        """Whether the teacher sees all images before the first step, which takes time."""
        return False

    @property
    def compares_images(self) -> bool:
        """Whether the loss of an image depends on the others of its batch, which then cannot be divided."""
        return False

    @property
    def teacher_request(self) -> TeacherRequest | None:
        """Return which teacher to load; None without one."""
        return None

    @property
    def neutral_settings(self) -> Mapping[str, Any]:
        """Settings of the recipe that this objective does not support, and the only value that they may have."""
        return MODEL_SETTINGS if self.needs_labels else {**LABEL_SETTINGS, **MODEL_SETTINGS}

    def for_labels(self, *, is_multi_label: bool) -> Self:
        """Return the objective for data with one label per image, or with several."""
        return self

    def check_views(self, *, are_fixed: bool) -> None:
        """Refuse views that this objective cannot learn from; fixed views show an image unchanged at every epoch."""

    def check_model(self, config: ModelConfig) -> None:
        """Refuse a model that this objective cannot train, before anything is written."""
        if not isinstance(config, ViTConfig):
            raise ConfigError(
                f"objective {self.kind} needs a ViT, which has patches; a {family_of(config).kind} has none"
            )

    def view(self, pictures: TrainView) -> AnyView:
        """Return the loader's crop of a training image; `pictures` is the recipe's crop."""
        return pictures

    def dense_config(self, vit: ViTConfig, *, num_classes: int) -> ModelConfig:
        """Return the model that learns masks or boxes on this ViT, for objectives whose task is one of them."""
        raise ConfigError(f"objective {self.kind} does not learn masks or boxes")

    def images_per_image(self, config: ModelConfig) -> float:
        """Return how many images of the model's size are computed per image of the batch; views count by area."""
        return 1.0

    def forward_macs(self, macs: int, *, teacher_macs: int, visits: float) -> float:
        """Return multiply-adds per image of forward passes without a gradient, beside the student's.

        `macs` and `teacher_macs` are those of one image; `visits` is how often a run sees an image.
        """
        return 0.0

    def wrap(self, model: Model, teacher: Teacher | None) -> nn.Module:
        """Return the module that is trained; called with images alone, it returns their representation."""
        raise NotImplementedError

    def parts(self, context: RunContext) -> PartsOf:
        """Return the function from pixels to the inputs of the loss."""
        raise NotImplementedError

    def prepare(self, context: RunContext) -> Callable[[Batch], Parts]:
        """Return the function from a batch to the inputs of the loss: augmented, without labels."""
        parts_of = self.parts(context)

        def prepare(batch: Batch) -> Parts:
            nothing = torch.zeros(len(batch.images), dtype=torch.int64, device=batch.images.device)
            pixels, _ = augmented(batch, nothing, context, num_classes=1)
            return parts_of(pixels, batch.rows, context.seed)

        return prepare

    def losses(self, module: nn.Module, parts: Parts) -> Losses:
        """Return the loss of each image (B,) and sums to log."""
        losses, sums = module(*parts)
        return losses, sums

    def losses_in(self, context: RunContext) -> LossOf:
        """Return the loss of a run, with everything that depends on the batch, so that a recorded step repeats it."""
        return self.losses

    def after_step(self, context: RunContext) -> AfterStep | None:
        """Return the function that updates the parts without gradients; sums that it removes are not logged."""
        return None

    def output_statistics(self, means: Mapping[str, Tensor]) -> dict[str, float]:
        """Return further metrics of an evaluation, from the means of the sums."""
        return {}

    def evaluation(
        self, context: RunContext, validation: Validation
    ) -> Callable[[nn.Module], dict[str, float]]:
        """Return the function that evaluates the trained module: loss and quality of its representation."""
        parts_of = self.parts(context)

        def evaluate(module: nn.Module) -> dict[str, float]:
            means = validation.mean_sums(module, parts_of)
            outputs = self.output_statistics(means)
            quality = validation.representation(
                module,
                advice=self.collapse_advice,
                information=outputs.get("output_information"),
                num_outputs=self.num_outputs(validation.num_images),
            )
            return {"loss": float(means["loss"]), **quality, **outputs}

        return evaluate

    def num_outputs(self, num_images: int) -> int | None:
        """Return the largest number of different outputs for this many images, for `output_information`."""
        return None

    def pictures(
        self, module: nn.Module, pixels: Tensor, rows: Rows, context: RunContext, attention_of: AttentionOf
    ) -> list[Tensor]:
        """Return rows of pictures (B, C, height, width) uint8 that show the model's outputs on some images."""
        return []


def augmented(
    batch: Batch, labels: Tensor, context: RunContext, *, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Augment a batch as the recipe says: pixels from 0 to 255 and soft labels (B, K)."""
    return augment(
        batch.images, labels, batch.rows, config=context.augment, num_classes=num_classes, seed=context.seed,
        progress=batch.rows.step / context.total_steps,
    )  # fmt: skip


OBJECTIVES: dict[str, type[Objective]] = {}
Kind = TypeVar("Kind", bound=type[Objective])


def register_objective(objective: Kind) -> Kind:
    """Make an objective known by its `kind`; use it as a decorator, above `@dataclass(frozen=True)`."""
    if not is_dataclass(objective) or not isinstance(getattr(objective, "kind", None), str):
        raise ConfigError(f"{objective.__name__} must be a frozen dataclass with a kind")
    if any(one.name == "kind" for one in fields(objective)):
        raise ConfigError(f"kind of {objective.__name__} must be a ClassVar[str], not a field")
    known = OBJECTIVES.get(objective.kind)
    if known is not None and known.__qualname__ != objective.__qualname__:
        raise ConfigError(f"objective {objective.kind!r} is already registered as {known.__qualname__}")
    OBJECTIVES[objective.kind] = objective
    return objective


def find_objective(kind: str) -> type[Objective]:
    """Return the objective of this name; refuse a misspelt one with the nearest."""
    if kind not in OBJECTIVES:
        close = nearest(kind, OBJECTIVES)
        message = f"no objective is called {kind!r}; nearest: {close[0]}"
        raise ConfigError(message, option="objective", suggestions=close)
    return OBJECTIVES[kind]
