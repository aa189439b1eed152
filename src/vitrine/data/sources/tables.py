"""Read tables of images as people save them: any spreadsheet's CSV, TSV, and JSON lines.

Excel writes semicolons or tabs, a byte order mark, Windows-1252 or UTF-16, depending on its language and menu;
tables made on Windows have paths with backslashes and drive letters. The header decides the separator, the bytes the
encoding, and the files on disk how a path is to be read.
"""

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

from vitrine.errors import DataError
from vitrine.runtime.files import parse_json
from vitrine.spelling import printable

TABLES = (".csv", ".tsv", ".jsonl")
SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")
PATH_COLUMNS = (
    "path", "file_name", "filename", "image", "file", "filepath", "file_path", "image_path", "img", "image_name",
    "photo", "picture",
)  # fmt: skip
# Columns whose content decides whether it is a class or a number; columns of classes; columns of numbers.
LABEL_COLUMNS, CLASS_COLUMNS, NUMBER_COLUMNS = (
    ("label", "target"),
    ("class", "category", "class_name"),
    ("value", "number"),
)
SEVERAL_COLUMNS = ("labels", "tags", "classes", "categories")
SEPARATORS = (",", ";", "\t", "|")
# Bytes of a text that contain the header of a table.
HEADER_BYTES = 4096
Row = dict[str, Any]


def is_table(path: Path) -> bool:
    """Whether a file is a table of images: by its extension, or a .txt with columns, as Excel saves UTF-16."""
    if path.suffix.lower() in TABLES:
        return True
    if path.suffix.lower() != ".txt" or not path.is_file():
        return False
    with path.open("rb") as file:
        header = _without_hint(_decoded(file.read(HEADER_BYTES), path))[0].partition("\n")[0]
    columns = [_column_name(name) for name in header.split(_separator(header, path))]
    return len(columns) > 1 and not set(columns).isdisjoint(PATH_COLUMNS)


def rows_of(path: Path) -> Iterator[tuple[int, Row]]:
    """Read the rows of a table or a .jsonl file, each with its line number; column names in lower case."""
    return _json_rows(path) if path.suffix.lower() == ".jsonl" else _csv_rows(path)


def column_in(row: Row, names: Sequence[str]) -> str | None:
    """Return the first of `names` that is a column of the row."""
    return next((name for name in names if name in row), None)


def path_in(row: Row, number: int, path: Path) -> str:
    """Return the image path in row `number` of a table."""
    name = next((row[column] for column in PATH_COLUMNS if row.get(column)), None)
    if name is None:
        raise DataError(
            f"line {number} of {printable(str(path))} has no path; it needs a column such as "
            f"{', '.join(PATH_COLUMNS[:5])}, and has {', '.join(map(str, row))}"
        )
    return local_path(str(name).strip(), path.parent)


def local_path(name: str, base: Path) -> str:
    """Return a path of Windows as one of this system, relative to `base`; other paths stay as they are."""
    if "\\" not in name or (base / name).exists():
        return name
    parts = PureWindowsPath(name).parts
    if not PureWindowsPath(name).is_absolute():
        return "/".join(parts)
    # The folder was copied from elsewhere: the longest end of the path that exists here.
    ends = ("/".join(parts[start:]) for start in range(1, len(parts)))
    return next((end for end in ends if (base / end).exists()), "/".join(parts[1:]))


def separator_of(path: Path) -> str:
    """Return the separator of a table's columns."""
    return _separator(_without_hint(text_of(path))[0].partition("\n")[0], path)


def _csv_rows(path: Path) -> Iterator[tuple[int, Row]]:
    text, skipped_lines = _without_hint(text_of(path))
    separator = _separator(text.partition("\n")[0], path)
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
    reader.fieldnames = [_column_name(name) for name in reader.fieldnames or ()]
    try:
        for row in reader:
            row.pop(None, None)  # cells beyond the header
            if any(row.values()):  # spreadsheets save empty lines at the end
                yield reader.line_num + skipped_lines, row
    except csv.Error as error:
        raise DataError(f"line {reader.line_num} of {printable(str(path))}: {error}") from error


def _column_name(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _separator(header: str, path: Path) -> str:
    counts = {one: header.count(one) for one in SEPARATORS}
    best = max(SEPARATORS, key=lambda one: counts[one])
    if counts[best] == 0:
        return "\t" if path.suffix.lower() == ".tsv" else ","
    return best


def _without_hint(text: str) -> tuple[str, int]:
    """Remove the line `sep=;` that Excel reads, and return how many lines were removed."""
    first, _, rest = text.partition("\n")
    return (rest, 1) if re.fullmatch(r'"?sep=.?"?\s*', first) else (text, 0)


def text_of(path: Path) -> str:
    """Read a text in any encoding that a spreadsheet or an editor saves."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {printable(str(path))}: {error.strerror}") from error
    return _decoded(data, path)


def _decoded(data: bytes, path: Path) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    if data[1:2] == b"\0" and data[:1] != b"\0":
        return data.decode("utf-16-le", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        # File names of Linux may be any bytes: such a table names files that exist.
        escaped = data.decode("utf-8-sig", "surrogateescape")
        if _names_files(escaped, path):
            return escaped
        return data.decode("cp1252", "replace")


def _names_files(text: str, path: Path) -> bool:
    """Whether a cell with bytes that are not UTF-8 is the name of a file."""
    cells = (cell.strip(' "') for line in text.splitlines() for cell in re.split(r"[,;\t|]", line))
    odd = (cell for cell in cells if not cell.isascii() and cell.encode("utf-8", "replace").count(b"?"))
    return any((path.parent / cell).exists() for cell, _ in zip(odd, range(20), strict=False))


def _json_rows(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
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
