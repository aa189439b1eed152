"""dSprites: `dsprites_*.npz` or `.hdf5` with `imgs` (N, 64, 64) of 0 and 1 and the classes of six factors."""

import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vitrine.data.decoding.image_file import Pixels
from vitrine.data.sources.array_files import opened
from vitrine.data.sources.source import Example, Labels, Source
from vitrine.data.sources.vtab.labels import dsprites_location, dsprites_orientation
from vitrine.data.sources.vtab.tasks import Task
from vitrine.errors import DataError

# Columns of `latents_classes`: colour, shape, scale, orientation, x position, y position.
_ORIENTATION, _ACROSS = 3, 4
_ROWS = 4096


def open_dsprites(folder: Path, task: Task) -> dict[str, Source] | None:
    """Read the archive; it is not split."""
    archives = sorted(path for path in folder.glob("*dsprites*") if path.suffix in (".npz", ".hdf5", ".h5"))
    if not archives:
        return None
    file = archives[0]
    packed, factors = _from_npz(file) if file.suffix == ".npz" else _from_hdf5(file)
    if task.name == "dSprites-Location":
        labels = dsprites_location(factors[:, _ACROSS])
    else:
        labels = dsprites_orientation(factors[:, _ORIENTATION])
    return {"all": Sprites(packed, labels=labels, num_classes=task.num_classes, root=folder)}


class Sprites(Source):
    """Black and white pictures, eight pixels per byte: all 737,280 of them take 377 MB instead of 3 GB."""

    def __init__(
        self, packed: NDArray[np.uint8], *, labels: Labels, num_classes: int, root: Path | None
    ) -> None:
        self.packed, self.labels, self.root = packed, labels, root
        self.classes = tuple(str(number) for number in range(num_classes))
        self.address = str(root)

    def name(self, index: int) -> str:
        """Name picture `index` by its number in the archive."""
        return f"{index:06d}"

    def read(self, index: int) -> Example:
        """Return the pixels of picture `index`, 0 or 255: (S, S, 1)."""
        bits = np.unpackbits(self.packed[index])
        side = int(len(bits) ** 0.5)
        pixels: Pixels = (bits * np.uint8(255)).reshape(side, side, 1)
        return Example(data=pixels, label=self.label(index), name=self.name(index))

    def size(self, index: int) -> int:
        """Bytes of one picture: the same for all."""
        return int(self.packed.shape[1])


def _from_npz(file: Path) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    try:
        with zipfile.ZipFile(file) as archive:
            with archive.open("latents_classes.npy") as member:
                factors = np.lib.format.read_array(member, allow_pickle=False)
            with archive.open("imgs.npy") as member:
                return _packed(member), factors
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} cannot be read as dSprites: {error}") from error


def _packed(member: IO[bytes]) -> NDArray[np.uint8]:
    """Pack pictures into bits while they are unpacked from the archive, a few thousand at a time."""
    version = np.lib.format.read_magic(member)
    if version != (1, 0):
        raise ValueError(f"imgs is stored in version {version} of the npy format, not 1.0")
    (count, height, width), is_fortran, dtype = np.lib.format.read_array_header_1_0(member)
    if dtype != np.uint8 or is_fortran or height != width or height * width % 8:
        raise ValueError(f"imgs is {dtype} of {height} x {width}, not square pictures of uint8")
    packed = np.empty((count, height * width // 8), dtype=np.uint8)
    for start in range(0, count, _ROWS):
        rows = min(_ROWS, count - start)
        data = member.read(rows * height * width)
        pixels = np.frombuffer(data, dtype=np.uint8).reshape(rows, height * width)
        packed[start : start + rows] = np.packbits(pixels != 0, axis=1)
    return packed


def _from_hdf5(file: Path) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    with opened(file) as archive:
        try:
            images, factors = archive["imgs"], archive["latents/classes"][:]
        except KeyError as error:
            raise DataError(f"{file} cannot be read as dSprites: {error}") from error
        packed = np.empty((len(images), images.shape[1] * images.shape[2] // 8), dtype=np.uint8)
        for start in range(0, len(images), _ROWS):
            block = images[start : start + _ROWS]
            packed[start : start + _ROWS] = np.packbits(block.reshape(len(block), -1) != 0, axis=1)
    return packed, factors
