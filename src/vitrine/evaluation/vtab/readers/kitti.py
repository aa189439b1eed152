"""KITTI's object detection set: `training/image_2/*.png`, `training/label_2/*.txt`, the kit's `mapping/*.txt`.

With the mapping, whole drives go to one split, drawn as TensorFlow Datasets draws them (a tenth each for val
and test, NumPy's old generator with seed 123). Without it the images are not split here.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitrine.data.file_list import FileList
from vitrine.data.source import Source, Subset
from vitrine.errors import DataError
from vitrine.evaluation.vtab.labels import kitti_distance
from vitrine.evaluation.vtab.tasks import Task

_SEED = 123
_PERCENT = 10


def open_splits(folder: Path, task: Task) -> dict[str, Source] | None:
    """Read the labels of the training images; KITTI's own test has none."""
    if not (folder / "training" / "label_2").is_dir():
        return None
    files = sorted((folder / "training" / "label_2").glob("*.txt"))
    if not files:
        raise DataError(f"{folder / 'training' / 'label_2'} holds no label files; {task.name} needs them")
    labels = [kitti_distance(file.read_text(encoding="utf-8").splitlines()) for file in files]
    whole = FileList(
        folder,
        (f"training/image_2/{file.stem}.png" for file in files),
        labels=np.array(labels, dtype=np.int32),
        classes=("up to 8 m", "up to 20 m", "farther", "no vehicle"),
    )
    mapping = next(
        (path for path in (folder / "mapping", folder / "devkit_object" / "mapping", folder / "devkit" / "mapping")
         if (path / "train_mapping.txt").is_file() and (path / "train_rand.txt").is_file()),
        None,
    )  # fmt: skip
    if mapping is None:
        return {"all": whole}
    return {split: Subset(whole, rows) for split, rows in _by_drive(mapping, len(files)).items()}


def _by_drive(mapping: Path, count: int) -> dict[str, NDArray[np.int64]]:
    lines = (mapping / "train_mapping.txt").read_text(encoding="utf-8").splitlines()
    numbers = [int(word) - 1 for word in (mapping / "train_rand.txt").read_text(encoding="utf-8").split(",")]
    if len(numbers) != count:
        raise DataError(
            f"{mapping / 'train_rand.txt'} maps {len(numbers)} images, but there are {count} label files; "
            "both must be of the same release"
        )
    drives = np.array([lines[number].split(" ")[1] for number in numbers])
    generator = np.random.RandomState(_SEED)
    names = sorted(set(drives.tolist()))
    num_held_out = max(1, _PERCENT * len(names) // 100)
    test = set(generator.choice(names, num_held_out, replace=False).tolist())
    rest = sorted(set(names) - test)
    val = set(generator.choice(rest, num_held_out, replace=False).tolist())
    side = np.array(["test" if drive in test else "val" if drive in val else "train" for drive in drives])
    return {split: np.flatnonzero(side == split) for split in ("train", "val", "test")}
