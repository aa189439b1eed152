"""Small NORB: `smallnorb-*-{training,testing}-{dat,info}.mat`, a matrix format of its own (not MATLAB's).

A file is a magic number, the number of sides, the sides (three of them at least), then the numbers, all little
endian. `dat` is (N, 2, 96, 96): pairs of which the first is used; `info` is (N, 4): instance, elevation,
azimuth, lighting. Half of `testing` is VTAB's val, the other half its test.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.arrays import ArraySource
from vitrine.data.source import Source, Subset
from vitrine.errors import DataError
from vitrine.evaluation.vtab.labels import norb_azimuth, norb_elevation
from vitrine.evaluation.vtab.tasks import Task

_KINDS: dict[int, np.dtype[Any]] = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: np.dtype("<i4")}
_ELEVATION, _AZIMUTH = 1, 2


def open_splits(folder: Path, task: Task, *, seed: int = 0) -> dict[str, Source] | None:
    """Map the images and read the labels."""
    found = {part: sorted(folder.glob(f"smallnorb-*-{part}-dat.mat")) for part in ("training", "testing")}
    if not any(found.values()):
        return None
    sources = {}
    for part, files in found.items():
        if not files:
            raise DataError(f"{folder} has no smallnorb-*-{part}-dat.mat; unpack all the .gz files there")
        sources[part] = _open(files[0], task)
    halves = np.random.default_rng(seed).permutation(len(sources["testing"]))
    middle = len(halves) // 2
    return {
        "train": sources["training"],
        "val": Subset(sources["testing"], np.sort(halves[:middle])),
        "test": Subset(sources["testing"], np.sort(halves[middle:])),
    }


def read_matrix(file: Path) -> np.ndarray:
    """Map a matrix of small NORB's format from disk."""
    try:
        with file.open("rb") as opened:
            magic, sides = struct.unpack("<II", opened.read(8))
            if magic not in _KINDS or not 1 <= sides <= 8:
                raise ValueError(f"its magic number is {magic:#x}")
            shape = struct.unpack(f"<{max(sides, 3)}I", opened.read(4 * max(sides, 3)))[:sides]
            start = opened.tell()
        return np.memmap(file, dtype=_KINDS[magic], mode="r", offset=start, shape=shape)
    except (OSError, ValueError, struct.error) as error:
        raise DataError(f"{file} is not a matrix of small NORB's format: {error}") from error


def _open(file: Path, task: Task) -> Source:
    images = read_matrix(file)
    info_file = file.with_name(file.name.replace("-dat.mat", "-info.mat"))
    if not info_file.is_file():
        raise DataError(f"{info_file} is missing; {task.name} reads its labels from there")
    info = np.asarray(read_matrix(info_file))
    if images.ndim != 4 or info.shape != (len(images), 4):
        raise DataError(f"{file} is {images.shape} and its info {info.shape}; (N, 2, 96, 96) and (N, 4) fit")
    is_azimuth = task.name == "sNORB-Azimuth"
    labels = norb_azimuth(info[:, _AZIMUTH]) if is_azimuth else norb_elevation(info[:, _ELEVATION])
    return ArraySource(
        images[:, 0, :, :, None],  # (N, 96, 96, 1): of each stereo pair the first
        labels=labels,
        classes=[str(number) for number in range(task.num_classes)],
        address=str(file),
        root=file.parent,
        prefix="training/" if "training" in file.name else "testing/",
    )
