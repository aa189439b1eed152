"""IDX files, the format of MNIST: `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, plain or gzipped."""

import gzip
import math
import struct
from pathlib import Path

import numpy as np

from vitrine.data.decoding.image_file import Pixels
from vitrine.data.sources.in_memory import ArraySource
from vitrine.data.sources.source import Source
from vitrine.errors import DataError
from vitrine.spelling import printable

PREFIXES = {"train": "train", "test": "t10k"}
FASHION = (
    "T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag".replace(" ", "|") + "|Ankle boot"
).split("|")
_UNSIGNED_BYTE = 0x08


def recognises(address: str) -> bool:
    """Accept a folder with IDX images."""
    return Path(address).is_dir() and any(
        _file(Path(address), prefix, "images", 3) for prefix in PREFIXES.values()
    )


def open_all(address: str) -> dict[str, Source]:
    """Read both files of each split; the classes are named as clothing if the path contains `fashion`."""
    root = Path(address)
    splits: dict[str, Source] = {}
    for split, prefix in PREFIXES.items():
        images_file, labels_file = _file(root, prefix, "images", 3), _file(root, prefix, "labels", 1)
        if images_file is None:
            continue
        if labels_file is None:
            raise DataError(
                f"{printable(str(images_file))} has no labels file beside it ({prefix}-labels-idx1-ubyte)"
            )
        images, labels = read_idx(images_file), read_idx(labels_file)
        if len(images) != len(labels):
            raise DataError(
                f"{images_file} has {len(images)} images, but {labels_file} has {len(labels)} labels"
            )
        is_fashion = "fashion" in str(root.resolve()).lower() and int(labels.max()) < len(FASHION)
        names = FASHION if is_fashion else [str(number) for number in range(max(10, int(labels.max()) + 1))]
        splits[split] = ArraySource(
            images[..., None],
            labels=labels.astype(np.int32),
            classes=names,
            address=address,
            root=root,
            prefix=f"{split}/",
        )
    return splits


def read_idx(file: Path) -> Pixels:
    """Read an IDX file of bytes; its unpacked size must match its header."""
    opener = gzip.open if file.suffix == ".gz" else open
    try:
        with opener(file, "rb") as stream:
            zero, kind, num_sides = struct.unpack(">HBB", stream.read(4))
            if zero or kind != _UNSIGNED_BYTE or not 1 <= num_sides <= 4:
                raise DataError(f"{printable(str(file))} is not an IDX file of bytes")
            shape = struct.unpack(f">{num_sides}I", stream.read(4 * num_sides))
            wanted = math.prod(shape)
            # A compressed file may expand without limit: never read more than the header declares.
            data = stream.read(wanted + 1) if wanted < 2**34 else b""
    except (OSError, EOFError, struct.error) as error:
        raise DataError(f"{printable(str(file))} cannot be read as IDX: {error}") from error
    if len(data) != wanted:
        raise DataError(
            f"{printable(str(file))} should contain {wanted} bytes of data, but contains {len(data)}"
        )
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _file(root: Path, prefix: str, what: str, sides: int) -> Path | None:
    for separator in ("-", "."):
        for packed in ("", ".gz"):
            path = root / f"{prefix}-{what}{separator}idx{sides}-ubyte{packed}"
            if path.is_file():
                return path
    return None
