"""The training batches of a run, whatever is learned from them: loader, augmentation, names for messages."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from vitrine.data.loading.loader import Batch
    from vitrine.data.preparing.training_view import TrainView
    from vitrine.runs.training_run import Setting
    from vitrine.runtime.processes import Processes


def make_batches(setting: "Setting", processes: "Processes") -> "Callable[[int, int], Iterator[Batch]]":
    """Return the function from (start, stop) to the batches of these steps."""
    from vitrine.data.loading.loader import Loader
    from vitrine.data.loading.resident import ResidentLoader

    train_split, config, view = setting.splits["train"], setting.recipe.training, train_view(setting)
    sharing: dict[str, Any] = {
        "batch_size": config.batch_size,
        "seed": config.seed,
        "rank": processes.rank,
        "world_size": processes.world_size,
        "device": processes.device,
    }
    loader: Loader | ResidentLoader
    if is_resident(setting, processes):
        loader = ResidentLoader(train_split, view, **sharing)
    else:
        # Beside a GPU, more than two threads fight for Python's lock with the one that launches kernels: on one
        # H200 machine 15 threads read 841 images/s, 15 processes 3,351.
        is_busy = processes.device.type == "cuda" and setting.workers > 2
        kind: Literal["threads", "processes"] = "processes" if is_busy else "threads"
        loader = Loader(
            train_split,
            view,
            num_workers=setting.workers,
            worker_kind=kind,
            # A run that began on a GPU may go on without one; then the workers decode all.
            device_share=setting.recipe.views.device_share if processes.device.type == "cuda" else 0.0,
            **sharing,
        )

    def batches(start: int, stop: int) -> "Iterator[Batch]":
        try:
            yield from loader.training_batches(start_step=start, stop_step=stop)
        finally:
            loader.close()

    return batches


def is_resident(setting: "Setting", processes: "Processes") -> bool:
    """Whether the whole set is held in the device's memory, so that no file is read while a run goes on."""
    from vitrine.data.loading.resident import can_reside

    return processes.device.type == "cuda" and can_reside(setting.splits["train"], train_view(setting))


def train_view(setting: "Setting") -> "TrainView":
    """Return what is cut out of a training image."""
    from vitrine.data.preparing.training_view import TrainView

    preprocess, views = setting.preprocess, setting.recipe.views
    source_size = setting.recipe.multi_crop.source_size if setting.recipe.objective == "dino" else None
    return TrainView(
        size=preprocess.size if source_size is None else (source_size, source_size),
        channels=preprocess.channels,
        crop=views.crop,
        area=views.area,
        flip=views.flip,
        resize_size=None if views.resize_size is None else (views.resize_size, views.resize_size),
    )


def make_names(setting: "Setting") -> Callable[[int], list[str]]:
    """Return the function from a step to the files of its batch."""
    from vitrine.data.loading.order import training_rows

    train_split, config = setting.splits["train"], setting.recipe.training

    def names_of(step: int) -> list[str]:
        rows = training_rows(step, length=len(train_split), batch_size=config.batch_size, seed=config.seed)
        return [train_split.name(int(index)) for index in rows.indices]

    return names_of
