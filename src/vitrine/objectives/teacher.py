"""A trained model that a student learns from; distillation reads its features or its logits.

Shapes: B images of C channels.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitrine.data.preparing.preprocess import Preprocess
from vitrine.errors import ConfigError, TryVerb
from vitrine.models import Model
from vitrine.runtime.devices import computing_in

# Images per batch of a teacher: it needs little memory, as it keeps nothing for gradients.
BATCH = 256


@dataclass(frozen=True, kw_only=True)
class TeacherRequest:
    """Which teacher an objective needs."""

    weights: str
    """A run folder, a file, a hub id."""
    size: int | None
    """Side of its images; None is the size that gives it the student's grid of patches."""
    has_head: bool
    """Whether its logits are read, not its features."""


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A trained model that runs on a student's images."""

    name: str
    model: Model
    preprocess: Preprocess
    """The teacher's own normalisation, at the size used here."""
    classes: tuple[str, ...] | None
    weights: str
    """Hash of config and weights."""
    precision: str = "auto"

    def inputs(self, pixels: Tensor) -> Iterator[Tensor]:
        """Yield the student's pixels (B, C, height, width), 0 to 255, as input of the teacher, in batches.

        They are resampled on their device, with antialias.
        """
        size = self.preprocess.size
        for batch in torch.split(pixels.float(), BATCH):
            is_resized = tuple(batch.shape[2:]) != size
            resized = (
                F.interpolate(batch, size=size, mode="bilinear", antialias=True) if is_resized else batch
            )
            yield self.preprocess.normalise(resized)

    def ask(self, pixels: Tensor, question: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Apply `question` to the teacher's inputs without gradients, in the precision of the run."""
        with torch.no_grad(), computing_in(self.precision, pixels.device.type):
            answers = [question(batch) for batch in self.inputs(pixels)]
        return tuple(torch.cat(part) for part in zip(*answers, strict=True))

    def require_classes(self, classes: tuple[str, ...]) -> None:
        """Refuse classes that differ from those of the teacher's logits."""
        count = self.model.config.num_classes
        if count is None:
            reason = "it has no head"
        elif count != len(classes):
            reason = f"it has {count} classes and the data has {len(classes)}"
        elif self.classes is not None and tuple(self.classes) != tuple(classes):
            pair = next((a, b) for a, b in zip(self.classes, classes, strict=True) if a != b)
            reason = f"its class {pair[0]!r} is {pair[1]!r} in the data"
        else:
            return
        raise ConfigError(
            f"{self.name} cannot teach logits of these classes: {reason}; learn features instead",
            option="teacher",
            advice=[TryVerb("finetune", ("DATA",), "to fine-tune it first", {"model": self.name})],
        )
