"""Parquet, or Arrow as `datasets` saves it, in Hugging Face's image schema: `image` {bytes, path}, `label`."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.sources.arrow import SUFFIX, ArrowFile, import_pyarrow, saved_files
from vitrine.data.sources.file_list import require_path
from vitrine.data.sources.labels import class_number, pack_labels, sorted_classes
from vitrine.data.sources.remote_files import content_of
from vitrine.data.sources.source import ALL, NO_LABEL, SPLIT_NAMES, Example, Labels, Source
from vitrine.errors import DataError
from vitrine.runtime.files import parse_json
from vitrine.runtime.places import Place, is_remote
from vitrine.runtime.remote_store import names_at, remote_stamp, remote_system
from vitrine.spelling import printable

LABEL_COLUMNS = ("label", "labels", "fine_label", "class")
# Row groups are read whole; this many bytes of them are cached. CIFAR fits, ImageNet does not: shard it first.
KEPT_BYTES = 2 * 2**30


def recognises(address: str) -> bool:
    """Accept a .parquet file, a folder of such files (or with them in `data`), or one that `datasets` saved."""
    if is_remote(address):
        return content_of(address) == "parquet"
    path = Path(address.partition("?")[0])
    return path.suffix.lower() == ".parquet" or (path.is_dir() and bool(_files(path)))


def open_all(address: str, *, needs_labels: bool = True) -> dict[str, Source]:
    """Open every split, by the names of the files; `?label=NAME` after the address chooses the label column."""
    place, _, query = address.partition("?")
    column = query.partition("label=")[2].partition("&")[0] or None
    path = None if is_remote(place) else require_path(Path(place))
    files = _remote_files(place) if path is None else _files(path) if path.is_dir() else [path]
    groups: dict[str, list[Place]] = {}
    for file in files:
        groups.setdefault(_split_of(str(file), str(path or place)), []).append(file)
    if ALL in groups and len(groups) > 1:
        raise DataError(
            f"{printable(place)} contains {name_of(groups[ALL][0])}, whose name does not show its split; "
            "names must begin with train, val or test"
        )
    read = {split: _read_labels(group, column, needs_labels=needs_labels) for split, group in groups.items()}
    names = next((names for _, names in read.values() if names), None)
    classes = names or sorted_classes(
        str(label)
        for rows, _ in read.values()
        for row in rows
        for label in _as_tuple(row)
        if label is not None
    )
    order = [split for split in (ALL, "train", "val", "test") if split in read]
    return {
        split: ParquetSource(
            groups[split],
            labels=_numbered(read[split][0], classes, has_names=names is not None, where=groups[split][0]),
            classes=classes,
            address=address,
            root=path,
        )
        for split in [*order, *(split for split in read if split not in order)]
    }


class ParquetSource(Source):
    """Rows of Parquet files; the row groups read last are cached, up to `KEPT_BYTES`."""

    def __init__(
        self,
        files: Sequence[Place],
        *,
        labels: Labels,
        classes: Sequence[str],
        address: str,
        root: Path | None,
    ) -> None:
        self.files, self.labels, self.classes = tuple(files), labels, tuple(classes)
        self.address, self.root = address, root
        groups = []  # file, row group, first row
        start = 0
        for number, file in enumerate(self.files):
            metadata = _open(file).metadata
            for group in range(metadata.num_row_groups):
                groups.append((number, group, start))
                start += metadata.row_group(group).num_rows
        self._groups = np.array(groups, dtype=np.int64).reshape(-1, 3)
        self._forget()

    def name(self, index: int) -> str:
        """File and row of example `index`."""
        number, row, _ = self._locate(index)
        return f"{name_of(self.files[number])}:{row}"

    def read(self, index: int) -> Example:
        """Return the encoded image of row `index`."""
        _, _, group = self._locate(index)
        value = self._column(group)[index - int(self._groups[group, 2])]
        if not value.is_valid or not len(value.as_buffer()):
            raise DataError(f"{printable(self.name(index))} contains no image: its bytes are null")
        return Example(data=value.as_py(), label=self.label(index), name=self.name(index))

    def size(self, index: int) -> int:
        """Bytes of the encoded image."""
        _, _, group = self._locate(index)
        value = self._column(group)[index - int(self._groups[group, 2])]
        return len(value.as_buffer()) if value.is_valid else 0

    def fingerprint(self) -> str:
        """Hash labels, classes and the files' names and sizes, without reading every image."""
        facts = [(name_of(file), _size(file)) for file in self.files]
        digest = hashlib.blake2b(json.dumps([facts, self.classes]).encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        return digest.hexdigest()

    def _locate(self, index: int) -> tuple[int, int, int]:
        group = int(np.searchsorted(self._groups[:, 2], index, side="right")) - 1
        number = int(self._groups[group, 0])
        first = int(self._groups[self._groups[:, 0] == number][0, 2])
        return number, index - first, group

    def _column(self, group: int) -> Any:
        with self._lock:
            if group in self._kept:
                self._kept.move_to_end(group)
                return self._kept[group]
            number, inner, _ = (int(value) for value in self._groups[group])
            file = _open(self.files[number])
            name = _image_column(file, self.files[number])
            column = file.read_row_group(inner, columns=[name]).column(0).combine_chunks()
            column = column.field("bytes") if hasattr(column, "field") else column
            self._kept[group] = column
            self._kept_bytes += column.nbytes
            while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
                self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes
            return column

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._kept_bytes = 0

    def __getstate__(self) -> dict[str, Any]:
        hidden = ("_lock", "_kept", "_kept_bytes")
        return {key: value for key, value in self.__dict__.items() if key not in hidden}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def name_of(file: Place) -> str:
    """Return the name of a file without its folder."""
    return str(file).rpartition("/")[2]


def _size(file: Place) -> int:
    return remote_stamp(file)[0] if isinstance(file, str) else file.stat().st_size


def _remote_files(place: str) -> list[Place]:
    if place.endswith(".parquet"):
        return [place]
    names = sorted(name for name in names_at(place) if name.endswith(".parquet"))
    return [f"{place.rstrip('/')}/{name}" for name in names]


def _open(file: Place) -> Any:
    if isinstance(file, str):
        system, path = remote_system(file)
        return import_pyarrow("reading Parquet").parquet.ParquetFile(system.open(path, "rb"))
    is_arrow = file.suffix == SUFFIX
    try:
        return ArrowFile(file) if is_arrow else import_pyarrow("reading Parquet").parquet.ParquetFile(file)
    except (OSError, ValueError) as error:  # pyarrow's own errors derive from these
        raise DataError(
            f"{printable(str(file))} cannot be read as {'Arrow' if is_arrow else 'Parquet'}: "
            f"{str(error).splitlines()[0]}"
        ) from error


def _files(folder: Path) -> list[Path]:
    return (
        sorted(folder.glob("*.parquet"))
        or sorted(folder.glob("data/*.parquet"))
        or sorted(folder.glob("*/*.parquet"))
        or saved_files(folder)
    )


def _split_of(file: str, root: str) -> str:
    folder, _, name = file.rpartition("/")
    words = [name.lower().replace("_", "-").partition("-")[0].partition(".")[0]]
    if folder != root.rstrip("/"):
        words.append(name_of(folder).lower())
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), ALL)


def _features(file: Any) -> dict[str, Any]:
    raw = (file.schema_arrow.metadata or {}).get(b"huggingface")
    try:
        return dict(parse_json(raw)["info"]["features"]) if raw else {}
    except (ValueError, KeyError, TypeError):
        return {}


def _image_column(file: Any, path: Place) -> str:
    features = _features(file)
    for field in file.schema_arrow:
        is_image = isinstance(features.get(field.name), dict) and features[field.name].get("_type") == "Image"
        has_bytes = field.type.num_fields and any(
            field.type[n].name == "bytes" for n in range(field.type.num_fields)
        )
        if is_image or has_bytes or (field.name in ("image", "img") and "binary" in str(field.type)):
            return str(field.name)
    raise DataError(f"{printable(str(path))} has no image column, only {', '.join(file.schema_arrow.names)}")


def _read_labels(
    files: list[Place], column: str | None, *, needs_labels: bool
) -> tuple[list[Any], list[str] | None]:
    """Return the labels of all rows as stored, and the class names if the schema has them."""
    rows: list[Any] = []
    names: list[str] | None = None
    for path in files:
        file = _open(path)
        _image_column(file, path)
        features, columns = _features(file), file.schema_arrow.names
        chosen = column or next((name for name in LABEL_COLUMNS if name in columns), None)
        if chosen is None and not needs_labels:
            rows.extend([None] * file.metadata.num_rows)
            continue
        if chosen is None or chosen not in columns:
            raise DataError(
                f"{printable(str(path))} has no column {column or 'label'}, only {', '.join(columns)}; "
                "choose one with ?label=NAME after the address"
            )
        values = file.read(columns=[chosen]).column(0)
        if values.null_count:
            row = next(number for number, value in enumerate(values) if not value.is_valid)
            raise DataError(f"row {row} of {printable(str(path))} has no {chosen}: it is null")
        rows.extend(values.to_pylist())
        feature = features.get(chosen)
        if isinstance(feature, dict):
            inner = feature.get("feature", feature)
            names = list(inner["names"]) if isinstance(inner, dict) and inner.get("names") else names
    return rows, names


def _numbered(rows: list[Any], classes: Sequence[str], *, has_names: bool, where: Place) -> Labels:
    number = {name: index for index, name in enumerate(classes)}
    is_multi_label = any(isinstance(row, list) for row in rows)

    def of(label: Any) -> int:
        if label is None:
            return NO_LABEL
        is_number = has_names and isinstance(label, int)
        if is_number and 0 <= label < len(classes):
            return int(label)
        if is_number and str(label) in number:
            raise DataError(
                f"{printable(str(where))} numbers its classes from 0 to {len(classes) - 1} and has the label {label}"
            )
        return class_number(str(label), number, where=str(where))

    if is_multi_label:
        return pack_labels([[of(label) for label in row] for row in rows], is_multi_label=True)
    return pack_labels([of(row) for row in rows], is_multi_label=False)


def _as_tuple(row: Any) -> tuple[Any, ...]:
    return tuple(row) if isinstance(row, list) else (row,)
