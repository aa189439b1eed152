"""Equal subsets of labelled sets as files small enough to send to another machine.

A pack is CIFAR-100's binary layout (`train.bin`, `test.bin`, `fine_label_names.txt`), which Vitrine opens as it is,
in one tar whose binaries are compressed with xz after a byte-wise difference.
"""

import io
import lzma
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from vitrine.data.sources.opening import open_splits
from vitrine.data.sources.source import Source

SIDE = 32
# Planes of 32 x 32 bytes: the difference to the pixel on the left halves what is left to compress.
FILTERS = [{"id": lzma.FILTER_DELTA, "dist": 1}, {"id": lzma.FILTER_LZMA2, "preset": 6}]
NAMES = "fine_label_names.txt"


def pack(address: str, file: Path, *, num_train: int, num_test: int, seed: int = 0) -> None:
    """Write a pack of this many training (and held-out) and test images, equally many of every class."""
    splits = open_splits(address, val_fraction=0)
    test = next(splits[name] for name in ("test", "val") if name in splits and splits[name].is_labelled)
    parts = {"train.bin": (splits["train"], num_train), "test.bin": (test, num_test)}
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for name, (source, count) in parts.items():
            add(
                tar,
                f"{name}.xz",
                lzma.compress(records(source, count, seed=seed), lzma.FORMAT_XZ, filters=FILTERS),
            )
        add(tar, NAMES, "\n".join(name.replace(" ", "_") for name in splits["train"].classes).encode())


def records(source: Source, count: int, *, seed: int) -> bytes:
    """Return images of 32 pixels as CIFAR-100's records: two labels, then three planes."""
    rows = drawn(np.asarray(source.labels), count, num_classes=len(source.classes), seed=seed)
    written = np.empty((len(rows), 2 + 3 * SIDE * SIDE), dtype=np.uint8)
    for place, row in enumerate(rows):
        data = source.read(int(row)).data
        image = Image.open(io.BytesIO(data)) if isinstance(data, bytes) else Image.fromarray(data)
        small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        written[place, :2] = 0, source.labels[row]
        written[place, 2:] = np.asarray(small).transpose(2, 0, 1).ravel()
    return written.tobytes()


def drawn(labels: np.ndarray, count: int, *, num_classes: int, seed: int) -> np.ndarray:
    """Draw equally many rows of every class, in random order."""
    random, each = np.random.default_rng(seed), count // num_classes
    chosen = [random.permutation(np.flatnonzero(labels == number))[:each] for number in range(num_classes)]
    return random.permutation(np.concatenate(chosen))


def unpack(file: Path, folder: Path) -> None:
    """Write a pack's files to a folder that Vitrine opens; what is there already is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file) as tar:
        for member in tar.getmembers():
            to = folder / Path(member.name).name.removesuffix(".xz")
            opened = tar.extractfile(member)
            if to.exists() or opened is None:
                continue
            data = opened.read()
            part = to.with_suffix(".part")
            part.write_bytes(lzma.decompress(data) if member.name.endswith(".xz") else data)
            part.rename(to)


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    """Add bytes to a tar, with nothing in it that changes from call to call."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))
