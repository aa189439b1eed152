"""From a run's data, model and recipe to the functions that the loop takes."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitrine.data.loading.loader import Batch
    from vitrine.recipes.recipe import Objective
    from vitrine.runs.training_run import Setting
    from vitrine.runtime.processes import Processes
    from vitrine.training.step import LossOf
    from vitrine.training.task import Evaluate, Task


def trained_module(setting: "Setting") -> "nn.Module":
    """Return what the loop trains: the model itself or, without labels, a module that holds it as `vit`."""
    if setting.recipe.objective == "labels":
        return setting.model
    from vitrine.runs.unlabelled_task import wrapped

    return wrapped(setting)


def weights_of_model(weights: "dict[str, Tensor]", objective: "Objective") -> "dict[str, Tensor]":
    """Pick the model's own weights out of those of the trained module; of self-distillation the teacher's."""
    if objective == "labels":
        return weights
    prefix = "teacher.vit." if objective == "dino" else "vit."
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def make_task(setting: "Setting", processes: "Processes") -> "Task":
    """Wire loader, augmentation, loss and evaluation into what the loop takes: one maker for each kind of task."""
    if setting.recipe.objective == "labels":
        return make_labels_task(setting, processes)
    if setting.recipe.needs_labels:
        from vitrine.runs.distillation_task import make_logits_task

        return make_logits_task(setting, processes)
    from vitrine.runs.unlabelled_task import make_unlabelled_task

    return make_unlabelled_task(setting, processes)


def make_labels_task(setting: "Setting", processes: "Processes") -> "Task":
    """Learn labels: images are augmented, mixed where the recipe says so, and classified."""
    import torch
    from torch import nn

    from vitrine.data.augmenting.augment import augment
    from vitrine.data.loading.loader import Batch
    from vitrine.objectives.classification import classification_loss, num_correct

    recipe, preprocess = setting.recipe, setting.preprocess
    config, num_classes = recipe.training, len(setting.splits["train"].classes)

    def prepare(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        pixels, targets = augment(
            batch.images,
            batch.labels,
            batch.rows,
            how=recipe.augment,
            num_classes=num_classes,
            seed=config.seed,
            progress=batch.rows.step / config.total_steps,
        )
        return preprocess.normalise(pixels), targets

    def loss_of(
        module: nn.Module, parts: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        images, targets = parts
        logits = module(images)
        return classification_loss(logits, targets, kind=recipe.loss), {
            "accuracy": num_correct(logits, targets)
        }

    return labelled_task(setting, processes, prepare=prepare, loss_of=loss_of)


def labelled_task(
    setting: "Setting",
    processes: "Processes",
    *,
    prepare: "Callable[[Batch], tuple[Tensor, ...]]",
    loss_of: "LossOf",
) -> "Task":
    """Put together what all tasks that read labels share: batches, judging by accuracy, names of images."""
    from vitrine.errors import ConfigError
    from vitrine.runs.training_batches import make_batches, make_names
    from vitrine.training.task import Task

    batch_size, count = setting.recipe.training.batch_size, processes.world_size
    if setting.recipe.augment.mixes and batch_size // count % 2:
        raise ConfigError(
            f"mixup and cutmix mix images in pairs, so each of {count} processes must have an even number of the "
            f"{batch_size} images of a batch; give a --batch-size that is a multiple of {2 * count}"
        )
    return Task(
        batches=make_batches(setting, processes),
        prepare=prepare,
        loss_of=loss_of,
        evaluate=make_evaluation(setting, processes) if "val" in setting.splits else None,
        names_of=make_names(setting),
    )


def make_evaluation(setting: "Setting", processes: "Processes") -> "Evaluate":
    """Return the function that judges a model on the validation split: loss and accuracy, every image once."""
    import torch
    from torch import nn

    from vitrine.objectives.classification import classification_loss, num_correct
    from vitrine.runs.validation import validation_passes
    from vitrine.runtime.processes import mean_over

    preprocess = setting.preprocess

    def evaluate(model: nn.Module) -> dict[str, float]:
        sums = torch.zeros(3, device=processes.device, dtype=torch.float64)
        for found in validation_passes(setting, processes):
            if found is None:
                model(torch.zeros(1, preprocess.channels, *preprocess.size, device=processes.device))
                continue
            logits = model(preprocess.normalise(found.images))
            losses = classification_loss(logits, found.labels, kind=setting.recipe.loss)
            correct = num_correct(logits, found.labels)
            sums += torch.stack([losses.sum().double(), correct.double(), sums.new_tensor(len(found))])
        loss, correct, count = mean_over(sums, processes).tolist()
        return {"loss": loss / count, "accuracy": correct / count}

    return evaluate
