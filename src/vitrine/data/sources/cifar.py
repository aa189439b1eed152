"""CIFAR-10 and CIFAR-100 as their authors publish them: the binary version and the Python version.

The Python version is a pickle, which may run code when it is read. The unpickler here accepts numpy arrays of bytes
and plain values, and refuses everything else.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.decoding.image_file import Pixels
from vitrine.data.sources.in_memory import ArraySource
from vitrine.data.sources.source import Labels, Source
from vitrine.errors import DataError
from vitrine.spelling import printable

_IMAGE_BYTES = 3 * 32 * 32
_FOLDERS = ("", "cifar-10-batches-bin", "cifar-100-binary", "cifar-10-batches-py", "cifar-100-python")
_TEN = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
_HUNDRED = {"train": ["train"], "test": ["test"]}


def recognises(address: str) -> bool:
    """Accept a folder with CIFAR's files in it, or in the folder of their archive."""
    return Path(address).is_dir() and _find(Path(address)) is not None


def open_all(address: str) -> dict[str, Source]:
    """Read `train` and `test`; CIFAR-100 by its fine labels."""
    root = Path(address)
    layout = _find(root)
    assert layout is not None
    folder, files, suffix = layout
    is_hundred = files is _HUNDRED
    classes = _class_names(folder, is_hundred=is_hundred, is_binary=bool(suffix))
    splits: dict[str, Source] = {}
    for split, names in files.items():
        read = _read_binary if suffix else _read_pickled
        parts = [read(folder / (name + suffix), is_hundred=is_hundred) for name in names]
        splits[split] = ArraySource(
            np.concatenate([images for images, _ in parts]),
            labels=np.concatenate([labels for _, labels in parts]),
            classes=classes,
            address=address,
            root=root,
            prefix=f"{split}/",
        )
    return splits


def _find(root: Path) -> tuple[Path, dict[str, list[str]], str] | None:
    for name in _FOLDERS:
        folder = root / name
        for files, meta in ((_TEN, "batches.meta"), (_HUNDRED, "meta")):
            if (folder / f"{files['train'][0]}.bin").is_file():
                return folder, files, ".bin"
            if (folder / files["train"][0]).is_file() and (folder / meta).is_file():
                return folder, files, ""
    return None


def _read_binary(file: Path, *, is_hundred: bool) -> tuple[Pixels, Labels]:
    record = _IMAGE_BYTES + (2 if is_hundred else 1)
    try:
        data = np.fromfile(file, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"cannot read {printable(str(file))}: {error.strerror}") from error
    if len(data) == 0 or len(data) % record:
        raise DataError(
            f"{printable(str(file))} is truncated: {len(data)} bytes are not a whole number of "
            f"records of {record}"
        )
    rows = data.reshape(-1, record)
    return _images(rows[:, -_IMAGE_BYTES:]), rows[:, -_IMAGE_BYTES - 1].astype(np.int32)


def _read_pickled(file: Path, *, is_hundred: bool) -> tuple[Pixels, Labels]:
    content = load_plain_pickle(file)
    labels = content.get(b"fine_labels" if is_hundred else b"labels") if isinstance(content, dict) else None
    data = content.get(b"data") if isinstance(content, dict) else None
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != _IMAGE_BYTES or labels is None:
        raise DataError(f"{printable(str(file))} is not a batch of CIFAR images")
    return _images(data), np.asarray(labels, dtype=np.int32)


def _images(rows: np.ndarray) -> Pixels:
    planes = rows.reshape(-1, 3, 32, 32)  # red, green, blue, each row by row
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1))


def _class_names(folder: Path, *, is_hundred: bool, is_binary: bool) -> list[str]:
    if is_binary:
        file = folder / ("fine_label_names.txt" if is_hundred else "batches.meta.txt")
        names = file.read_text(encoding="utf-8").split() if file.is_file() else []
    else:
        meta = load_plain_pickle(folder / ("meta" if is_hundred else "batches.meta"))
        names = [name.decode() for name in meta[b"fine_label_names" if is_hundred else b"label_names"]]
    return names or [str(number) for number in range(100 if is_hundred else 10)]


def load_plain_pickle(file: Path) -> Any:
    """Read a pickle of dicts, lists, numbers, strings and arrays of bytes; refuse anything else."""
    try:
        content = _PlainUnpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle may raise any exception
        raise DataError(
            f"{printable(str(file))} cannot be read as a pickle of plain values: {error}"
        ) from error
    return _arrays_of(content)


class _Kind:
    """Placeholder for a numpy dtype; only bytes are accepted."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Placeholder for a numpy array until its shape and type are checked."""

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, data = state
        if not isinstance(kind, _Kind) or kind.name not in (b"u1", "u1") or not isinstance(data, bytes):
            raise DataError("the pickle contains an array that is not of bytes")
        array = np.frombuffer(data, dtype=np.uint8)
        self.value = array.reshape(shape, order="F" if is_fortran else "C")


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = {"_reconstruct": lambda *_: _Array(), "ndarray": object, "dtype": _Kind, "encode": _encode}
        if (
            module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "_codecs")
            and name in known
        ):
            return known[name]
        raise DataError(f"the pickle refers to {module}.{name}, which may run code; it is not read")


def _encode(text: str, encoding: Any = "latin1") -> bytes:
    return text.encode("latin1")


def _arrays_of(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: value.value if isinstance(value, _Array) else value for key, value in content.items()}
    return content
