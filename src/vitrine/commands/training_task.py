"""From a run's data, model and recipe to the functions that the loop takes."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from vitrine.commands.training_run import Setting
    from vitrine.training.loop import Evaluate, Task
    from vitrine.training.processes import Processes


def make_task(setting: "Setting", processes: "Processes") -> "Task":
    """Wire loader, augmentation, loss and evaluation into what the loop takes."""
    import torch
    from torch import nn

    from vitrine.data.augment import augment
    from vitrine.data.loader import Batch, Loader
    from vitrine.data.order import training_rows
    from vitrine.data.resident import ResidentLoader, can_reside
    from vitrine.data.view import TrainView
    from vitrine.objectives.classification import classification_loss, num_correct
    from vitrine.training.loop import Task

    recipe, preprocess, train_split = setting.recipe, setting.preprocess, setting.splits["train"]
    config, views = recipe.training, recipe.views
    num_classes = len(train_split.classes)
    resize = None if views.resize_size is None else (views.resize_size, views.resize_size)
    view = TrainView(
        size=preprocess.size,
        channels=preprocess.channels,
        crop=views.crop,
        area=views.area,
        flip=views.flip,
        resize_size=resize,
    )
    sharing: dict[str, Any] = {
        "batch_size": config.batch_size,
        "seed": config.seed,
        "rank": processes.rank,
        "world_size": processes.world_size,
        "device": processes.device,
    }
    loader: Loader | ResidentLoader
    if processes.device.type == "cuda" and can_reside(train_split, view):
        loader = ResidentLoader(train_split, view, **sharing)
    else:
        # Beside a GPU, more than two threads fight for Python's lock with the one that launches kernels: on one
        # H200 machine 15 threads read 841 images/s, 15 processes 3,351.
        is_busy = processes.device.type == "cuda" and setting.workers > 2
        kind: Literal["threads", "processes"] = "processes" if is_busy else "threads"
        loader = Loader(train_split, view, num_workers=setting.workers, worker_kind=kind, **sharing)

    def batches(start: int, stop: int) -> Iterator[Batch]:
        try:
            yield from loader.training_batches(start_step=start, stop_step=stop)
        finally:
            loader.close()

    def prepare(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        pixels, targets = augment(
            batch.images,
            batch.labels,
            batch.rows,
            how=recipe.augment,
            num_classes=num_classes,
            seed=config.seed,
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

    def names_of(step: int) -> list[str]:
        rows = training_rows(step, length=len(train_split), batch_size=config.batch_size, seed=config.seed)
        return [train_split.name(int(index)) for index in rows.indices]

    return Task(
        batches=batches,
        prepare=prepare,
        loss_of=loss_of,
        evaluate=make_evaluation(setting, processes) if "val" in setting.splits else None,
        names_of=names_of,
    )


def make_evaluation(setting: "Setting", processes: "Processes") -> "Evaluate":
    """Return the function that judges a model on the validation split: loss and accuracy, every image once."""
    import torch
    from torch import nn

    from vitrine.data.loader import Loader
    from vitrine.objectives.classification import classification_loss, num_correct
    from vitrine.training.processes import mean_over

    source, preprocess = setting.splits["val"], setting.preprocess
    world_size = processes.world_size
    batch = min(setting.recipe.training.batch_size, 64 * world_size) // world_size * world_size or world_size
    most_batches = math.ceil(math.ceil(len(source) / world_size) / (batch // world_size))

    def evaluate(model: nn.Module) -> dict[str, float]:
        sums = torch.zeros(3, device=processes.device, dtype=torch.float64)
        with Loader(
            source, preprocess, batch_size=batch, rank=processes.rank, world_size=world_size,
            num_workers=setting.workers, device=processes.device,
        ) as loader:  # fmt: skip
            own = 0
            for found in loader.evaluation_batches():
                logits = model(preprocess.normalise(found.images))
                losses = classification_loss(logits, found.labels, kind=setting.recipe.loss)
                correct = num_correct(logits, found.labels)
                sums += torch.stack([losses.sum().double(), correct.double(), sums.new_tensor(len(found))])
                own += 1
        # A sharded model gathers its weights in every pass, so all processes must make equally many.
        for _ in range(most_batches - own):
            model(torch.zeros(1, preprocess.channels, *preprocess.size, device=processes.device))
        loss, correct, count = mean_over(sums, processes).tolist()
        return {"loss": loss / count, "accuracy": correct / count}

    return evaluate
