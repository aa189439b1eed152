"""Archives of VTAB's structured tasks: CLEVR, KITTI, small NORB.

CLEVR v1.0: `images/train/*.png` and `scenes/CLEVR_train_scenes.json`; `val` is VTAB's test.

KITTI's object detection set: `training/image_2/*.png`, `training/label_2/*.txt`, the kit's `mapping/*.txt`.

With the mapping, whole drives go to one split, drawn as TensorFlow Datasets draws them (a tenth each for val
and test, NumPy's old generator with seed 123). Without it the images are not split here.

Small NORB: `smallnorb-*-{training,testing}-{dat,info}.mat`, a matrix format of its own (not MATLAB's).

A file is a magic number, the number of axes, their lengths (at least three of them), then the numbers, all little
endian. `dat` is (N, 2, 96, 96): pairs of which the first is used; `info` is (N, 4): instance, elevation,
azimuth, lighting. Half of `testing` is VTAB's val, the other half its test.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.sources.file_list import FileList
from vitrine.data.sources.in_memory import ArraySource
from vitrine.data.sources.source import Source, Subset
from vitrine.data.sources.vtab.labels import (
    clevr_count,
    clevr_distance,
    kitti_distance,
    norb_azimuth,
    norb_elevation,
)
from vitrine.data.sources.vtab.tasks import Task
from vitrine.errors import DataError

_CLEVR_PARTS = {"train": "train", "test": "val"}  # CLEVR's own test has no scenes


def open_clevr(folder: Path, task: Task) -> dict[str, Source] | None:
    """Read the scenes of train and val."""
    root = next((path for path in (folder, folder / "CLEVR_v1.0") if (path / "scenes").is_dir()), None)
    if root is None:
        return None
    label = clevr_count if task.name == "Clevr-Count" else clevr_distance
    splits: dict[str, Source] = {}
    for split, part in _CLEVR_PARTS.items():
        file = root / "scenes" / f"CLEVR_{part}_scenes.json"
        if not file.is_file():
            raise DataError(f"{file} is missing; {task.name} reads its labels from there")
        paths, labels = [], []
        for scene in _scenes(file):
            paths.append(f"images/{part}/{scene['image_filename']}")
            labels.append(label(scene["objects"]))
        classes = [str(number) for number in range(task.num_classes)]
        splits[split] = FileList(root, paths, labels=np.array(labels, dtype=np.int32), classes=classes)
    return splits


def _scenes(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the scenes one by one: all of them at once as Python objects would take gigabytes."""
    text = file.read_text(encoding="utf-8")
    decoder = json.JSONDecoder()
    try:
        position = text.index("[", text.index('"scenes"')) + 1
        while True:
            while text[position] in ", \r\n\t":
                position += 1
            if text[position] == "]":
                return
            scene, position = decoder.raw_decode(text, position)
            yield scene
    except (ValueError, IndexError) as error:
        raise DataError(f"{file} is not a complete file of CLEVR scenes: {error}") from error


_KITTI_SEED = 123
_HELD_OUT_PERCENT = 10


def open_kitti(folder: Path, task: Task) -> dict[str, Source] | None:
    """Read the labels of the training images; KITTI's own test has none."""
    if not (folder / "training" / "label_2").is_dir():
        return None
    files = sorted((folder / "training" / "label_2").glob("*.txt"))
    if not files:
        raise DataError(f"{folder / 'training' / 'label_2'} contains no label files; {task.name} needs them")
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
    generator = np.random.RandomState(_KITTI_SEED)
    names = sorted(set(drives.tolist()))
    num_held_out = max(1, _HELD_OUT_PERCENT * len(names) // 100)
    test = set(generator.choice(names, num_held_out, replace=False).tolist())
    rest = sorted(set(names) - test)
    val = set(generator.choice(rest, num_held_out, replace=False).tolist())
    side = np.array(["test" if drive in test else "val" if drive in val else "train" for drive in drives])
    return {split: np.flatnonzero(side == split) for split in ("train", "val", "test")}


_NORB_TYPES: dict[int, np.dtype[Any]] = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: np.dtype("<i4")}
_ELEVATION, _AZIMUTH = 1, 2


def open_smallnorb(folder: Path, task: Task, *, seed: int = 0) -> dict[str, Source] | None:
    """Map the images and read the labels."""
    files_of = {part: sorted(folder.glob(f"smallnorb-*-{part}-dat.mat")) for part in ("training", "testing")}
    if not any(files_of.values()):
        return None
    sources = {}
    for part, files in files_of.items():
        if not files:
            raise DataError(f"{folder} has no smallnorb-*-{part}-dat.mat; unpack all the .gz files there")
        sources[part] = _open_norb(files[0], task)
    halves = np.random.default_rng(seed).permutation(len(sources["testing"]))
    middle = len(halves) // 2
    return {
        "train": sources["training"],
        "val": Subset(sources["testing"], np.sort(halves[:middle])),
        "test": Subset(sources["testing"], np.sort(halves[middle:])),
    }


def read_norb_matrix(file: Path) -> np.ndarray:
    """Map a matrix of small NORB's format from disk."""
    try:
        with file.open("rb") as opened:
            magic, sides = struct.unpack("<II", opened.read(8))
            if magic not in _NORB_TYPES or not 1 <= sides <= 8:
                raise ValueError(f"its magic number is {magic:#x}")
            shape = struct.unpack(f"<{max(sides, 3)}I", opened.read(4 * max(sides, 3)))[:sides]
            start = opened.tell()
        return np.memmap(file, dtype=_NORB_TYPES[magic], mode="r", offset=start, shape=shape)
    except (OSError, ValueError, struct.error) as error:
        raise DataError(f"{file} is not a matrix of small NORB's format: {error}") from error


def _open_norb(file: Path, task: Task) -> Source:
    images = read_norb_matrix(file)
    info_file = file.with_name(file.name.replace("-dat.mat", "-info.mat"))
    if not info_file.is_file():
        raise DataError(f"{info_file} is missing; {task.name} reads its labels from there")
    info = np.asarray(read_norb_matrix(info_file))
    if images.ndim != 4 or info.shape != (len(images), 4):
        raise DataError(
            f"{file} is {images.shape} and its info {info.shape}; they must be (N, 2, 96, 96) and (N, 4)"
        )
    is_azimuth = task.name == "sNORB-Azimuth"
    labels = norb_azimuth(info[:, _AZIMUTH]) if is_azimuth else norb_elevation(info[:, _ELEVATION])
    return ArraySource(
        images[:, 0, :, :, None],  # (N, 96, 96, 1): the first of each stereo pair
        labels=labels,
        classes=[str(number) for number in range(task.num_classes)],
        address=str(file),
        root=file.parent,
        prefix="training/" if "training" in file.name else "testing/",
    )
