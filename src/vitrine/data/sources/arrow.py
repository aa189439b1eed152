"""Folders written by `datasets.save_to_disk`: Arrow tables, read as if they were Parquet files.

Such a folder has state.json, which names the data files; a dictionary of splits has dataset_dict.json and one such
folder per split. The tables are mapped into memory, so that only the rows that are asked for are read.
"""

from pathlib import Path
from typing import Any

from vitrine.data.sources.file_list import require_inside
from vitrine.errors import DataError
from vitrine.runtime.files import parse_json
from vitrine.runtime.optional import optional
from vitrine.spelling import printable

STATE, SPLITS = "state.json", "dataset_dict.json"
SUFFIX = ".arrow"
FILE_START = b"ARROW1"  # of the file format; streams, which `datasets` writes, have no such mark


def saved_files(folder: Path) -> list[Path]:
    """Return the data files of a folder that `datasets` saved, split by split; none for any other folder."""
    if (folder / SPLITS).is_file():
        splits = _names(folder / SPLITS, "splits")
        return [file for split in splits for file in saved_files(_inside(folder, split, listing=SPLITS))]
    if not (folder / STATE).is_file() or not any(folder.glob(f"*{SUFFIX}")):
        return []
    return [_inside(folder, name, listing=STATE) for name in _names(folder / STATE, "_data_files")]


def _inside(folder: Path, name: str, *, listing: str) -> Path:
    require_inside(name, folder, listing=str(folder / listing))
    return folder / name


def _names(file: Path, key: str) -> list[str]:
    try:
        entries = parse_json(file.read_bytes())[key]
        return [str(entry["filename"] if isinstance(entry, dict) else entry) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{printable(str(file))} does not list the files of a saved data set: {error}"
        ) from None


class ArrowFile:
    """An Arrow table with the interface of pyarrow's ParquetFile, one row group per record batch."""

    def __init__(self, path: Path) -> None:
        pyarrow = import_pyarrow("reading Arrow")
        source = pyarrow.memory_map(str(path))
        is_file = source.read(len(FILE_START)) == FILE_START
        source.seek(0)
        reader = pyarrow.ipc.open_file(source) if is_file else pyarrow.ipc.open_stream(source)
        self._table = reader.read_all()
        self._batches = self._table.to_batches()
        self.schema_arrow = self._table.schema

    @property
    def metadata(self) -> "ArrowFile":
        """The counts of row groups and their rows, as in a Parquet file's metadata."""
        return self

    @property
    def num_row_groups(self) -> int:
        """How many record batches there are."""
        return len(self._batches)

    def row_group(self, number: int) -> Any:
        """Return one record batch, which has `num_rows`."""
        return self._batches[number]

    def read_row_group(self, number: int, *, columns: list[str]) -> Any:
        """Return columns of one record batch as a table."""
        return self._table.from_batches([self._batches[number]]).select(columns)

    def read(self, *, columns: list[str]) -> Any:
        """Return columns of the whole table."""
        return self._table.select(columns)


def import_pyarrow(purpose: str, *, extra: str = "data") -> Any:
    """Import pyarrow with its readers of Arrow and Parquet; the error names the purpose and the extra."""
    optional("pyarrow.parquet", extra=extra, purpose=purpose)
    return optional("pyarrow", extra=extra, purpose=purpose)
