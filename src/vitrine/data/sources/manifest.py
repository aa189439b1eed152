"""CSV and JSONL manifests, and Hugging Face's imagefolder metadata: one row per image.

Columns: `path` (or `file_name`, `filename`, `image`), `label` or `labels` (several, separated by `;` in a
CSV, a list in JSONL), and `split` if the file contains several splits. Paths are relative to the manifest.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitrine.data.sources.file_list import FileList, require_path, subfolders
from vitrine.data.sources.labels import pack_labels, sorted_classes
from vitrine.data.sources.source import ALL, SPLIT_NAMES, Source
from vitrine.errors import DataError
from vitrine.runtime.files import parse_json
from vitrine.spelling import printable

PATH_COLUMNS = ("path", "file_name", "filename", "image")
METADATA = ("metadata.csv", "metadata.jsonl")
_Row = tuple[str, tuple[str, ...], str]


def recognises(address: str) -> bool:
    """Take .csv, .tsv and .jsonl files, and folders with metadata in them or in their split folders."""
    path = Path(address)
    if path.is_dir():
        return bool(_metadata_files(path))
    return path.suffix.lower() in (".csv", ".tsv", ".jsonl")


def open_all(address: str) -> dict[str, Source]:
    """Read the rows; splits come from the `split` column or from the folders that contain metadata."""
    path = require_path(Path(address))
    if not path.is_dir():
        return _sources(path, list(_read(path, split=ALL, prefix="")), address=address, base=path.parent)
    rows: list[_Row] = []
    for split, file in _metadata_files(path).items():
        prefix = "" if file.parent == path else f"{file.parent.name}/"
        rows.extend(_read(file, split=split, prefix=prefix))
    return _sources(path, rows, address=address, base=path)


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the rows of a .csv, .tsv or .jsonl file, each with its line number."""
    return _json_rows(path) if path.suffix.lower() == ".jsonl" else _csv_rows(path)


def columns_of(address: str) -> tuple[str, ...]:
    """Return the columns of the manifest at `address`; none if it is no manifest."""
    for file in _files_of(address).values():
        for _, row in rows_of(file):
            return tuple(map(str, row))
    return ()


def column(address: str, name: str) -> dict[str, str]:
    """Return one column of the manifest at `address`, by the names of its images."""
    values: dict[str, str] = {}
    for file in _files_of(address).values():
        is_below = Path(address).is_dir() and file.parent != Path(address)
        prefix = f"{file.parent.name}/" if is_below else ""
        values |= {
            prefix + path_in(row, number, file): str(row.get(name, "")) for number, row in rows_of(file)
        }
    return values


def _files_of(address: str) -> dict[str, Path]:
    path = Path(address)
    if not recognises(address) or not path.exists():
        return {}
    return _metadata_files(path) if path.is_dir() else {ALL: path}


def path_in(row: dict[str, Any], number: int, path: Path) -> str:
    """Return the image path in row `number` of a table."""
    name = next((row[column] for column in PATH_COLUMNS if row.get(column)), None)
    if name is None:
        raise DataError(
            f"line {number} of {printable(str(path))} has no path; it needs a column "
            f"{' or '.join(PATH_COLUMNS)}, and has {', '.join(map(str, row))}"
        )
    return str(name)


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
    if not any((base / name).exists() for name, _, _ in rows[:5]):
        raise DataError(
            f"{printable(str(root))} names {printable(rows[0][0])}, which is not in "
            f"{printable(str(base))}; paths must be relative to the folder of the manifest"
        )
    is_multi_label = any(len(labels) != 1 for _, labels, _ in rows)
    classes = sorted_classes(label for _, labels, _ in rows for label in labels)
    number = {name: index for index, name in enumerate(classes)}
    splits: dict[str, Source] = {}
    for split in dict.fromkeys(split for _, _, split in rows):
        chosen = [row for row in rows if row[2] == split]
        numbered = [[number[label] for label in labels] for _, labels, _ in chosen]
        labels = pack_labels(
            numbered if is_multi_label else [row[0] for row in numbered], is_multi_label=is_multi_label
        )
        splits[split] = FileList(
            root,
            (name for name, _, _ in chosen),
            labels=labels,
            classes=classes,
            address=address,
            base=base,
        )
    order = ("train", "val", "test")
    return {name: splits[name] for name in sorted(splits, key=lambda n: order.index(n) if n in order else 9)}


def _read(path: Path, *, split: str, prefix: str) -> Iterator[_Row]:
    for number, row in rows_of(path):
        name = path_in(row, number, path)
        if "label" not in row and "labels" not in row:
            raise DataError(
                f"line {number} of {printable(str(path))} has no label; it needs a column label or labels, "
                f"and has {', '.join(map(str, row))}"
            )
        own = str(row.get("split") or split)
        yield (
            prefix + name,
            _labels(row, where=f"line {number} of {path}"),
            SPLIT_NAMES.get(own.lower(), own),
        )


def _labels(row: dict[str, Any], *, where: str) -> tuple[str, ...]:
    if "labels" in row:
        value = row["labels"]
        words = value if isinstance(value, list) else str(value or "").split(";")
        return tuple(str(word).strip() for word in words if str(word).strip())
    value = row["label"]
    if isinstance(value, list):
        return tuple(str(word) for word in value)
    if value is None or str(value).strip() == "":
        raise DataError(f"{printable(where)} has an empty label; images without labels go into `labels` rows")
    return (str(value).strip(),)


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
        reader = csv.DictReader(file, delimiter=delimiter)
        reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
        try:
            for row in reader:
                row.pop(None, None)
                yield reader.line_num, row
        except csv.Error as error:
            raise DataError(f"line {reader.line_num} of {printable(str(path))}: {error}") from error


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = parse_json(line)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"line {number} of {printable(str(path))} is not JSON: {error.msg}"
                ) from error
            if not isinstance(row, dict):
                raise DataError(f"line {number} of {printable(str(path))} is not a JSON object")
            yield number, row
