"""Learning a teacher's answers beside the labels: soft or hard logits, with a distillation token or without."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitrine.runs.training_run import Setting
    from vitrine.runtime.processes import Processes
    from vitrine.training.task import Task


def make_logits_task(setting: "Setting", processes: "Processes") -> "Task":
    """Learn labels and what the teacher says of the same augmented (and mixed) images."""
    import torch
    from torch import nn

    from vitrine.data.augmenting.augment import augment
    from vitrine.data.loading.loader import Batch
    from vitrine.runs.teachers import fetched, kept_rows, require_classes_of
    from vitrine.runs.training_task import labelled_task

    recipe, preprocess, teacher = setting.recipe, setting.preprocess, setting.teacher
    classes = setting.splits["train"].classes
    assert teacher is not None
    require_classes_of(teacher, tuple(classes))
    answer = teacher.model.to(processes.device)
    kept = kept_rows(setting, processes, answer, output="logits") if recipe.distillation.caches else None

    def prepare(batch: Batch) -> tuple[torch.Tensor, ...]:
        pixels, targets = augment(
            batch.images, batch.labels, batch.rows, how=recipe.augment, num_classes=len(classes),
            seed=recipe.training.seed, progress=batch.rows.step / recipe.training.total_steps,
        )  # fmt: skip
        if kept is not None:
            told = fetched(kept, batch.rows, processes)
        else:
            (told,) = teacher.ask(pixels, lambda images: (answer(images),))
        return preprocess.normalise(pixels), targets, told

    def loss_of(
        module: nn.Module, parts: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        losses, sums = module(*parts)
        return losses, sums

    return labelled_task(setting, processes, prepare=prepare, loss_of=loss_of)
