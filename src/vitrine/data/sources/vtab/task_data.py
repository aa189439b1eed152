"""From a folder to a task's 800, 200, 1,000 and test images, in any of the usual layouts.

The community's lists are used as they are. From an original archive or class folders, 800 and 200 images are drawn
with our own seed, since VTAB's draw follows the order inside TensorFlow's files: labels and sizes are VTAB's, the
choice of images is not, and `layout` records that.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrine.data.sources.file_list import FileList
from vitrine.data.sources.folder_walk import subfolders
from vitrine.data.sources.opening import open_kind
from vitrine.data.sources.source import ConcatSource, Source, Subset
from vitrine.data.sources.vtab.dmlab import open_dmlab
from vitrine.data.sources.vtab.dsprites import open_dsprites
from vitrine.data.sources.vtab.lists import LISTS, read_list
from vitrine.data.sources.vtab.natural import open_dtd, open_flowers, open_sun397, open_svhn
from vitrine.data.sources.vtab.specialized import open_camelyon, open_retinopathy
from vitrine.data.sources.vtab.structured import open_clevr, open_kitti, open_smallnorb
from vitrine.data.sources.vtab.tasks import TASKS, TRAIN_IMAGES, VAL_IMAGES, Task
from vitrine.errors import DataError, MissingDataError

Reader = Callable[[Path, Task], dict[str, Source] | None]
"""Opens the splits that an archive has (`train`, `val`, `test`, or `all`); None for another layout."""
READERS: list[Reader] = [
    open_clevr, open_dsprites, open_kitti, open_smallnorb, open_dmlab, open_retinopathy, open_svhn, open_camelyon,
    open_dtd, open_flowers, open_sun397,
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """The images of a task: 800 to train on, 200 to validate on, both together, and the test images."""

    task: Task
    layout: str
    train: Source
    val: Source
    trainval: Source
    test: Source


def find_folders(root: Path, tasks: Iterable[Task] = TASKS) -> dict[str, Path | None]:
    """Find each task's folder below `root`; None for a task that is missing."""
    if not root.is_dir():
        raise MissingDataError(
            f"no such folder {root}; pass the folder that contains one folder per VTAB task"
        )
    return {
        task.name: next((root / name for name in task.folders if (root / name).is_dir()), None)
        for task in tasks
    }


def open_task(
    folder: Path, task: Task, *, num_train: int = TRAIN_IMAGES, num_val: int = VAL_IMAGES, seed: int = 0
) -> TaskData:
    """Open the folder of a task; the error says what is missing."""
    if any((folder / name).is_file() for name in LISTS.values()):
        return _checked(_from_lists(folder, task))
    splits = _from_archive(folder, task)
    layout = "original archive" if splits is not None else "class folders"
    if splits is None:
        splits = {
            name: source for name, source in open_kind(_class_root(folder, task)).items() if name in _KNOWN
        }
    if not splits:
        raise DataError(f"{folder} has no known layout of {task.name}: lists, class folders or its archive")
    splits = complete_splits(splits, task, seed=seed)
    for name, wanted in (("train", num_train), ("val", num_val)):
        if len(splits[name]) < wanted:
            raise DataError(
                f"{folder} has {len(splits[name])} images of {task.name} for {name}, fewer than {wanted}; "
                "finish unpacking it"
            )
    train = Subset(splits["train"], _draw(len(splits["train"]), num_train, seed))
    val = Subset(splits["val"], _draw(len(splits["val"]), num_val, seed))
    return _checked(
        TaskData(
            task=task,
            layout=f"{layout}, images drawn with seed {seed}",
            train=train,
            val=val,
            trainval=ConcatSource([train, val]),
            test=splits["test"],
        )
    )


_KNOWN = ("all", "train", "val", "test")


def complete_splits(splits: dict[str, Source], task: Task, *, seed: int) -> dict[str, Source]:
    """Complete the splits to train, val and test, in VTAB's proportions."""
    generator = np.random.default_rng(seed)
    if set(splits) == {"all"}:
        source = splits["all"]
        order = generator.permutation(len(source))
        if task.train_per_class:
            first, rest = _some_of_each(source, order, task.train_per_class)
        else:
            cut = len(source) * sum(task.sizes[:2]) // sum(task.sizes)
            first, rest = order[:cut], order[cut:]
        splits = {"train": Subset(source, first), "test": Subset(source, rest)}
    if "train" not in splits or ("test" not in splits and "val" not in splits):
        have = ", ".join(splits)
        raise DataError(f"{task.name} has only {have}; it needs train and test, and may have val")
    if "test" not in splits:
        # Two splits, the second called val: it serves as the test set.
        splits = {"train": splits["train"], "test": splits["val"]}
    if "val" not in splits:
        source = splits["train"]
        order = generator.permutation(len(source))
        cut = len(source) * task.sizes[0] // sum(task.sizes[:2])
        splits = {**splits, "train": Subset(source, order[:cut]), "val": Subset(source, order[cut:])}
    return splits


def _from_lists(folder: Path, task: Task) -> TaskData:
    missing = [name for name in LISTS.values() if not (folder / name).is_file()]
    if missing:
        raise DataError(
            f"{folder} is incomplete: {missing[0]} is missing; {task.name} needs {', '.join(LISTS.values())}"
        )
    classes = [str(number) for number in range(task.num_classes)]
    parts = {}
    for split, name in LISTS.items():
        paths, labels = read_list(folder / name)
        parts[split] = FileList(folder, paths, labels=labels, classes=classes, address=str(folder))
    return TaskData(task=task, layout="lists", **parts)


def _from_archive(folder: Path, task: Task) -> dict[str, Source] | None:
    for read_splits in READERS:
        splits = read_splits(folder, task)
        if splits is not None:
            return splits
    return None


def _class_root(folder: Path, task: Task) -> Path:
    """Return the folder of the class folders: archives add one level (`101_ObjectCategories`, `2750`)."""
    for path in (folder, *(folder / name for name in subfolders(folder))):
        if len(subfolders(path)) == task.num_classes:
            return path
    return folder


def _checked(data: TaskData) -> TaskData:
    """Refuse other classes, labels outside them, and lists of missing files."""
    task = data.task
    for name in ("train", "val", "trainval", "test"):
        source: Source = getattr(data, name)
        if len(source) == 0:
            raise DataError(f"{source.address} has no images of {task.name} for {name}; finish unpacking it")
        if len(source.classes) != task.num_classes:
            raise DataError(
                f"{source.address} has {len(source.classes)} classes, but {task.name} has {task.num_classes}; "
                "it is another data set, or incomplete"
            )
        labels = source.labels
        if source.is_multi_label or labels.min() < 0 or labels.max() >= task.num_classes:
            raise DataError(
                f"{source.address} has labels from {labels.min()} to {labels.max()} for {name}, but {task.name} "
                f"has 0 to {task.num_classes - 1}"
            )
        _require_files(source, task, name)
    return data


def _require_files(source: Source, task: Task, split: str) -> None:
    for index in range(len(source)):
        path = source.path(index)
        if path is not None and not path.is_file():
            raise DataError(
                f"{task.name} is incomplete: {path} is listed for {split} and missing; finish unpacking it"
            )


def _draw(length: int, count: int, seed: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(seed).permutation(length)[:count])


def _some_of_each(
    source: Source, order: NDArray[np.int64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    labels = source.labels[order]
    is_first = np.zeros(len(order), dtype=bool)
    for number in range(len(source.classes)):
        is_first[np.flatnonzero(labels == number)[:count]] = True
    return order[is_first], order[~is_first]
