"""CSV and JSONL manifests, and Hugging Face's imagefolder metadata: one row per image.

Columns: `path` (or `file_name`, `filename`, `image`, `file`), `label` (or `class`, `category`) or `labels` (several,
separated by `;` in a CSV, a list in JSONL), and `split` if the file contains several splits. Paths are relative to
the manifest, or to the one folder beside it that contains the images. Numbers in `label` that hardly repeat are
measurements (`Source.values`), not classes; a column `class` always holds classes, `value` always numbers.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vitrine.data.sources.file_list import FileList, require_path
from vitrine.data.sources.folder_walk import subfolders
from vitrine.data.sources.labels import pack_labels, sorted_classes
from vitrine.data.sources.source import ALL, SPLIT_NAMES, Source
from vitrine.data.sources.tables import (
    CLASS_COLUMNS,
    LABEL_COLUMNS,
    NUMBER_COLUMNS,
    PATH_COLUMNS,
    SEVERAL_COLUMNS,
    column_in,
    is_table,
    path_in,
    rows_of,
    separator_of,
)
from vitrine.errors import DataError
from vitrine.runtime.progress import notice
from vitrine.spelling import printable

METADATA = ("metadata.csv", "metadata.jsonl")
# Up to this many different numbers are classes, however few images each has.
MOST_NUMBERED_CLASSES = 20
# Rows whose files are looked for to decide whether a table belongs to a folder.
LOOKED_AT = 5
# Path, labels, split, column of the label.
_Row = tuple[str, tuple[str, ...], str, str]


def recognises(address: str) -> bool:
    """Accept tables, .jsonl files, and folders with metadata in them or in their split folders."""
    path = Path(address)
    if path.is_dir():
        return bool(_metadata_files(path)) or table_beside(path) is not None
    return is_table(path)


def open_all(address: str) -> dict[str, Source]:
    """Read the rows; splits come from the `split` column or from the folders that contain metadata."""
    path = require_path(Path(address))
    if not path.is_dir():
        rows = list(_read(path, split=ALL, prefix=""))
        return _sources(path, rows, address=address, base=_folder_of(rows, path.parent))
    files = _metadata_files(path)
    if not files:
        table = table_beside(path)
        assert table is not None
        notice(f"Labels are read from {printable(str(table))}")
        files = {ALL: table}
    rows = []
    for split, file in files.items():
        prefix = "" if file.parent == path else f"{file.parent.name}/"
        rows.extend(_read(file, split=split, prefix=prefix))
    return _sources(path, rows, address=address, base=_folder_of(rows, path))


def table_beside(folder: Path) -> Path | None:
    """Return the table of labels in a folder of photos without class folders; None if there is none, or several."""
    names = subfolders(folder)
    are_splits = all(name.lower() in SPLIT_NAMES and not subfolders(folder / name) for name in names)
    if len(names) > 1 and not are_splits:
        return None
    tables = tables_in(folder)
    return tables[0] if len(tables) == 1 else None


def tables_in(folder: Path) -> list[Path]:
    """Return the tables in a folder that label images in it."""
    tables = [one for one in sorted(folder.iterdir()) if one.is_file() and is_table(one)]
    return [table for table in tables if _names_images(table, folder)]


def files_of(address: str) -> dict[str, Path]:
    """Return the tables of the manifest at `address`, by split; none if it is not a manifest."""
    path = Path(address)
    if not recognises(address) or not path.exists():
        return {}
    if not path.is_dir():
        return {ALL: path}
    table = table_beside(path)
    return _metadata_files(path) or ({} if table is None else {ALL: table})


def columns_of(address: str) -> tuple[str, ...]:
    """Return the columns of the manifest at `address`; none if it is not a manifest."""
    for file in files_of(address).values():
        for _, row in rows_of(file):
            return tuple(map(str, row))
    return ()


def column(address: str, name: str) -> dict[str, str]:
    """Return one column of the manifest at `address`, by the names of its images."""
    values: dict[str, str] = {}
    for file in files_of(address).values():
        is_below = Path(address).is_dir() and file.parent != Path(address)
        prefix = f"{file.parent.name}/" if is_below else ""
        values |= {
            prefix + path_in(row, number, file): str(row.get(name, "")) for number, row in rows_of(file)
        }
    return values


def _names_images(table: Path, folder: Path) -> bool:
    """Whether a table has columns of paths and labels, and its first rows name files in the folder."""
    columns = (*LABEL_COLUMNS, *CLASS_COLUMNS, *NUMBER_COLUMNS, *SEVERAL_COLUMNS)
    try:
        rows = [row for _, row in zip(range(LOOKED_AT), rows_of(table), strict=False)]
        if not rows or column_in(rows[0][1], PATH_COLUMNS) is None or column_in(rows[0][1], columns) is None:
            return False
        names = [path_in(row, number, table) for number, row in rows]
    except DataError:
        return False
    return any((place / name).is_file() for name in names for place in _places(folder))


def _places(folder: Path) -> list[Path]:
    """Return the folders that paths of a table may be relative to: its own, then those in it."""
    return [folder, *(folder / name for name in subfolders(folder))]


def _folder_of(rows: list[_Row], folder: Path) -> Path:
    """Return the folder that the paths of a table are relative to."""
    names = [row[0] for row in rows[:LOOKED_AT]]
    if any((folder / name).exists() for name in names):
        return folder
    inner = [place for place in _places(folder) if any((place / name).is_file() for name in names)]
    return inner[0] if len(inner) == 1 else folder


def _metadata_files(folder: Path) -> dict[str, Path]:
    for name in METADATA:
        if (folder / name).is_file():
            return {ALL: folder / name}
    metadata_files = {}
    for name in subfolders(folder):
        split = SPLIT_NAMES.get(name.lower())
        files = [folder / name / metadata for metadata in METADATA if (folder / name / metadata).is_file()]
        if split and files:
            metadata_files[split] = files[0]
    return metadata_files


def _sources(root: Path, rows: list[_Row], *, address: str, base: Path) -> dict[str, Source]:
    if not rows:
        raise DataError(f"{printable(str(root))} has no rows")
    if not any((base / row[0]).exists() for row in rows[:LOOKED_AT]):
        raise DataError(
            f"{printable(str(root))} names {printable(rows[0][0])}, which is not in "
            f"{printable(str(base))}; paths must be relative to the folder of the manifest"
        )
    is_multi_label = any(len(row[1]) != 1 for row in rows)
    is_numeric = not is_multi_label and are_measurements(
        [row[1][0] for row in rows], column=rows[0][3], where=address
    )
    classes = [rows[0][3]] if is_numeric else sorted_classes(label for row in rows for label in row[1])
    number = {name: index for index, name in enumerate(classes)}
    splits: dict[str, Source] = {}
    for split in dict.fromkeys(row[2] for row in rows):
        chosen = [row for row in rows if row[2] == split]
        numbered = [[0 if is_numeric else number[label] for label in row[1]] for row in chosen]
        labels = pack_labels(
            numbered if is_multi_label else [row[0] for row in numbered], is_multi_label=is_multi_label
        )
        splits[split] = FileList(
            root,
            (row[0] for row in chosen),
            labels=labels,
            classes=classes,
            address=address,
            base=base,
            is_whole_folder=root.is_dir(),
        )
        if is_numeric:
            splits[split].values = np.array([as_number(row[1][0]) for row in chosen], dtype=np.float32)
    order = ("train", "val", "test")
    return {name: splits[name] for name in sorted(splits, key=lambda n: order.index(n) if n in order else 9)}


def _read(path: Path, *, split: str, prefix: str) -> Iterator[_Row]:
    separator = "," if path.suffix.lower() == ".jsonl" else separator_of(path)
    for number, row in rows_of(path):
        name = path_in(row, number, path)
        column = column_in(row, (*SEVERAL_COLUMNS, *LABEL_COLUMNS, *CLASS_COLUMNS, *NUMBER_COLUMNS))
        if column is None:
            raise DataError(
                f"line {number} of {printable(str(path))} has no label; it needs a column label, class or category, "
                f"or labels for several, and has {', '.join(map(str, row))}"
            )
        own = str(row.get("split") or split)
        labels = _labels(row, column, separator=separator, where=f"line {number} of {path}")
        yield prefix + name, labels, SPLIT_NAMES.get(own.lower(), own), column


def are_measurements(labels: list[str], *, column: str, where: str) -> bool:
    """Whether labels are numbers to predict: by the name of their column, or because they hardly repeat.

    Classes may be numbered, but not with decimals, nor with more than half as many different numbers as images.
    """
    if column in CLASS_COLUMNS:
        return False
    values = [as_number(label) for label in labels]
    if column in NUMBER_COLUMNS:
        if None in values:
            wrong = labels[values.index(None)]
            raise DataError(
                f"{printable(where)} has {printable(wrong)} in the column {column}, which is not a number; for "
                "classes, call the column class"
            )
        return True
    different = set(values)
    if None in different or len(different) <= MOST_NUMBERED_CLASSES:
        return False
    has_decimals = any(value is not None and value != round(value) for value in different)
    return has_decimals or 2 * len(different) > len(values)


def as_number(text: str) -> float | None:
    """Return the number that a text is, with a decimal point or a decimal comma; None if it is not a number."""
    plain = text.strip()
    if re.fullmatch(r"[+-]?\d+,\d+", plain):
        plain = plain.replace(",", ".")
    try:
        value = float(plain)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _labels(row: dict[str, Any], column: str, *, separator: str, where: str) -> tuple[str, ...]:
    value = row[column]
    if column in SEVERAL_COLUMNS:
        # If `;` separates columns, a cell of several labels has another separator, or quotes.
        pattern = ";" if separator == "," else r"[;,|]"
        words = value if isinstance(value, list) else re.split(pattern, str(value or ""))
        return tuple(str(word).strip() for word in words if str(word).strip())
    if isinstance(value, list):
        return tuple(str(word) for word in value)
    if value is None or str(value).strip() == "":
        raise DataError(
            f"{printable(where)} has an empty label; name the column labels if images may have none"
        )
    return (str(value).strip(),)
