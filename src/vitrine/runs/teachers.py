"""The teacher of a distillation: loaded at the size that gives it the student's patches, asked, and remembered."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from vitrine.data.loading.order import Rows
    from vitrine.data.preparing.preprocess import Preprocess
    from vitrine.models import Model, ModelConfig, ViTConfig
    from vitrine.recipes import Recipe
    from vitrine.runs.training_run import Setting
    from vitrine.runtime.processes import Processes

# Images that a teacher looks at together: it keeps nothing for gradients, so memory is small.
MOST_AT_ONCE = 256
# Kept features above this are refused: they are held in memory.
LARGEST_BYTES = 16 << 30


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A trained model that tells a student what it sees."""

    name: str
    model: "Model"
    preprocess: "Preprocess"
    """Its own normalisation, at the size that it sees here."""
    classes: tuple[str, ...] | None
    weights: str
    """Hash of config and weights."""
    precision: str = "auto"

    def pieces(self, pixels: "Tensor") -> "Iterator[Tensor]":
        """Yield pixels (B, C, height, width), 0 to 255, as the teacher wants them, some at a time.

        They are those that the student sees, resampled on their device with antialias.
        """
        import torch
        from torch.nn import functional as F

        size = self.preprocess.size
        for piece in torch.split(pixels.float(), MOST_AT_ONCE):
            if tuple(piece.shape[2:]) != size:
                piece = F.interpolate(piece, size=size, mode="bilinear", antialias=True)  # noqa: PLW2901
            yield self.preprocess.normalise(piece)

    def ask(
        self, pixels: "Tensor", question: "Callable[[Tensor], tuple[Tensor, ...]]"
    ) -> "tuple[Tensor, ...]":
        """Put the teacher's view of the pixels to `question`, without gradients, in the run's precision."""
        import torch

        from vitrine.training.step import computing_in

        with torch.no_grad(), computing_in(self.precision, pixels.device.type):
            found = [question(piece) for piece in self.pieces(pixels)]
        return tuple(torch.cat(part) for part in zip(*found, strict=True))


def load_teacher(recipe: "Recipe", student: "ModelConfig") -> Teacher | None:
    """Load the teacher that a recipe names, at the size whose grid of patches is the student's; None without one."""
    from vitrine.checkpoints import load
    from vitrine.checkpoints.loading import open_weights
    from vitrine.errors import ConfigError
    from vitrine.evaluation.features import weights_hash
    from vitrine.models import ViTConfig
    from vitrine.models.config import as_size

    if recipe.objective != "distillation":
        return None
    how = recipe.distillation
    if how.teacher is None:
        raise ConfigError("objective distillation needs a teacher; give one, such as --teacher runs/latest")
    assert isinstance(student, ViTConfig)
    opened = open_weights(how.teacher)
    if opened.record.layout == "fresh":
        raise ConfigError(
            f"{how.teacher} has fresh weights and nothing to teach; give a run folder, a file or a hub id"
        )
    size = as_size(how.teacher_size) if how.teacher_size else fitting_size(opened.record.config, student)
    loaded = load(
        how.teacher, image_size=size, channels=student.channels, features_only=not how.learns_logits
    )
    return Teacher(
        name=how.teacher,
        model=loaded.model.eval().requires_grad_(False),
        preprocess=loaded.preprocess,
        classes=loaded.classes,
        weights=weights_hash(loaded.model, includes_head=True),
        precision=recipe.training.precision,
    )


def fitting_size(teacher: "ModelConfig", student: "ViTConfig") -> tuple[int, int]:
    """Return the size at which a teacher has as many patches as the student; a ResNet sees the student's images."""
    from vitrine.models import ViTConfig

    if not isinstance(teacher, ViTConfig):
        return student.image_size
    rows, columns = (
        count * step for count, step in zip(student.grid_size, teacher.token_stride, strict=True)
    )
    return rows, columns


def require_classes_of(teacher: Teacher, classes: tuple[str, ...]) -> None:
    """Refuse a teacher whose answers mean other classes than the data's."""
    from vitrine.errors import ConfigError

    count = teacher.model.config.num_classes
    if count is None:
        reason = "it has no head"
    elif count != len(classes):
        reason = f"it knows {count} and the data has {len(classes)}"
    elif teacher.classes is not None and tuple(teacher.classes) != tuple(classes):
        pair = next((a, b) for a, b in zip(teacher.classes, classes, strict=True) if a != b)
        reason = f"where it knows {pair[0]!r} the data has {pair[1]!r}"
    else:
        return
    raise ConfigError(
        f"{teacher.name} cannot teach logits of these classes: {reason}; fine-tune it first (vitrine finetune DATA "
        f"--model {teacher.name}), or learn features"
    )


def make_kept_features(setting: "Setting", processes: "Processes") -> "Callable[[Rows], tuple[Tensor, ...]]":
    """Let the teacher look at every training image once; return the function from a batch's rows to its features.

    They are kept by content (weights, preprocessing, data, precision), so that another run finds them. The teacher
    reads the files by its own preprocessing, where otherwise it sees the student's pixels.
    """
    import torch

    from vitrine.errors import ConfigError
    from vitrine.models import ViTConfig
    from vitrine.objectives.distillation import teacher_features, teacher_width

    config, teacher, source = setting.model.config, setting.teacher, setting.splits["train"]
    assert isinstance(config, ViTConfig) and teacher is not None
    grid, width = config.grid_size, teacher_width(teacher.model)
    count = grid[0] * grid[1] if setting.recipe.distillation.patch_weight else 0
    needed = len(source) * (1 + count) * width * 4
    if needed > LARGEST_BYTES:
        raise ConfigError(
            f"the features of {len(source):,} images take {needed / 1e9:.0f} GB, and {LARGEST_BYTES / 1e9:.0f} are "
            "held at most; leave distillation.caches=false, or keep summaries alone with distillation.patch_weight=0"
        )

    def features(images: "Tensor") -> "Tensor":
        summary, patches = teacher_features(teacher.model, images, grid=grid)
        return torch.cat([summary[:, None], patches[:, :count]], dim=1).flatten(1)  # (B, (1 + N) x E)

    rows = kept_rows(
        setting, processes, features, output=f"summary and {count} patches on {grid[0]}x{grid[1]}"
    )

    def look_up(wanted: "Rows") -> "tuple[Tensor, ...]":
        found = fetched(rows, wanted, processes).view(len(wanted.indices), 1 + count, width)
        return found[:, 0], found[:, 1:]

    return look_up


def kept_rows(
    setting: "Setting", processes: "Processes", question: "Callable[[Tensor], Tensor]", *, output: str
) -> "Tensor":
    """Return what the teacher says of every training image, recalled where it was kept before: (N, ...)."""
    from vitrine.errors import DataError
    from vitrine.evaluation.features import extract_features
    from vitrine.training.config import is_bf16

    teacher, source = setting.teacher, setting.splits["train"]
    assert teacher is not None
    found = extract_features(
        teacher.model.to(processes.device), source, preprocess=teacher.preprocess, num_workers=setting.workers,
        device=processes.device, what="Asking the teacher",
        precision="bf16" if is_bf16(teacher.precision, device=processes.device.type) else "fp32",
        function=question, output=f"{output} {teacher.weights}",
    )  # fmt: skip
    if found.failures:
        name = source.name(next(iter(found.failures)))
        raise DataError(f"the teacher cannot read {name}; leave it out with --exclude, or leave caches=false")
    return found.rows


def fetched(rows: "Tensor", wanted: "Rows", processes: "Processes") -> "Tensor":
    """Pick the rows of a batch and bring them to the device."""
    import torch

    from vitrine.runtime.devices import copy_to_device

    return copy_to_device(rows[torch.from_numpy(wanted.indices)], processes.device)
