"""The table of contents of a sharded training state, read without running anything in it.

torch writes it as a pickle. Here it is read into temporary records, checked, and only then converted to torch's own
classes: every entry must be a tensor, every part a regular file inside the folder. Tensors themselves are read by
torch with `weights_only`.
"""

import io
import math
import pickle
import stat
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem

from vitrine.errors import CheckpointError

CONTENTS = ".metadata"
# Classes in tables of contents that torch writes, beside plain values and dtypes.
_KNOWN_CLASSES = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
    "pathlib": ("PosixPath", "WindowsPath"),
    "pathlib._local": ("PosixPath", "WindowsPath"),
}  # fmt: skip


class TensorReader(FileSystemReader):
    """torch's reader, with a table of contents that was checked and parts that are regular files."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the table of contents."""
        return read_contents(Path(self.path))


class TensorPlanner(DefaultLoadPlanner):
    """torch's planner, which would unpickle entries that are not tensors: here they are an error."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> NoReturn:
        """Refuse an entry that is not a tensor."""
        raise CheckpointError(f"entry {read_item.storage_index.fqn} is not a tensor")


def read_contents(folder: Path) -> Metadata:
    """Read the table of contents of a sharded state; refuse every entry that is not a tensor."""
    try:
        require_regular_file(folder / CONTENTS)
        contents = _fields(_ContentsUnpickler((folder / CONTENTS).read_bytes()).load(), "Metadata")
        tensors = {
            _text(name): _tensor(name, entry) for name, entry in contents["state_dict_metadata"].items()
        }
        parts = {_index(index): _part(part) for index, part in contents["storage_data"].items()}
        _require_parts(folder, tensors, parts)
    except Exception as error:  # a damaged pickle may raise anything
        raise unreadable(folder, error) from error
    return Metadata(state_dict_metadata=dict(tensors), storage_data=parts)


def require_regular_file(path: Path) -> None:
    """Refuse links, pipes and devices in a folder that may come from elsewhere."""
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
        raise CheckpointError(f"{path.name} is {kind}")


def unreadable(path: Path, error: BaseException) -> CheckpointError:
    """Return the error for a state that is damaged or was not written by Vitrine."""
    reason = str(error) or type(error).__name__
    return CheckpointError(f"{path} is not a training state that can be read: {reason}")


class _Record:
    """Holds the fields of a torch class that was found in a table of contents."""

    name: str

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, fields: Any) -> None:
        self.fields = fields


class _ContentsUnpickler(pickle._Unpickler):
    """Python's unpickler in Python: the one in C allocates any size that a damaged file names.

    Classes are replaced by records that live for one load, so that nothing in the file can change or call our code.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._records: dict[str, type[_Record]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Return a dtype, or a record in place of a class that torch writes; refuse everything else."""
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name not in _KNOWN_CLASSES.get(module, ()):
            raise CheckpointError(f"it asks for {module}.{name}, which may run code")
        if name not in self._records:
            self._records[name] = type(name, (_Record,), {"name": name})
        return self._records[name]

    def persistent_load(self, identity: Any) -> NoReturn:
        """Refuse references to objects outside the file."""
        raise CheckpointError("it refers to objects outside the file")


def _fields(record: Any, name: str) -> dict[str, Any]:
    """Return the fields of a record read in place of the class called `name`."""
    if not isinstance(record, _Record) or record.name != name:
        kind = record.name if isinstance(record, _Record) else type(record).__name__
        raise CheckpointError(f"it contains {kind} instead of {name}")
    return dict(record.fields)


def _tensor(name: str, entry: Any) -> TensorStorageMetadata:
    if not isinstance(entry, _Record) or entry.name != "TensorStorageMetadata":
        raise CheckpointError(f"entry {name} is not a tensor")
    fields = _fields(entry, "TensorStorageMetadata")
    dtype = fields["properties"].fields[0]
    if fields["properties"].name != "TensorProperties" or not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"entry {name} has no dtype")
    chunks = [_fields(chunk, "ChunkStorageMetadata") for chunk in fields["chunks"]]
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=dtype),
        size=_size(fields["size"]),
        chunks=[ChunkStorageMetadata(_size(chunk["offsets"]), _size(chunk["sizes"])) for chunk in chunks],
    )


def _size(record: Any) -> torch.Size:
    if not isinstance(record, _Record) or record.name != "Size":
        raise CheckpointError("a size is not a torch.Size")
    return torch.Size(_count(length) for length in (record.arguments[0] if record.arguments else ()))


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise CheckpointError(f"{value!r} is not a length")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise CheckpointError(f"{value!r} is not a name")
    return value


def _index(record: Any) -> MetadataIndex:
    fields = _fields(record, "MetadataIndex")
    offset, index = fields.get("offset"), fields.get("index")
    return MetadataIndex(
        _text(fields["fqn"]),
        None if offset is None else _size(offset),
        None if index is None else _count(index),
    )


def _part(record: Any) -> _StorageInfo:
    fields = _fields(record, "_StorageInfo")
    name = _text(fields["relative_path"])
    if name != Path(name).name or name in ("", ".", ".."):
        raise CheckpointError(f"it names the file {name!r} outside the folder")
    if fields.get("transform_descriptors"):
        raise CheckpointError(f"{name} is compressed or transformed")
    return _StorageInfo(name, _count(fields["offset"]), _count(fields["length"]))


def _require_parts(
    folder: Path, tensors: dict[str, TensorStorageMetadata], parts: dict[MetadataIndex, _StorageInfo]
) -> None:
    """Refuse parts that are not files of the folder, and tensors larger than all of them together."""
    names = {part.relative_path for part in parts.values()}
    for name in names:
        require_regular_file(folder / name)
    held = sum((folder / name).stat().st_size for name in names)
    claimed = sum(math.prod(entry.size) * entry.properties.dtype.itemsize for entry in tensors.values())
    if claimed > held:
        raise CheckpointError(f"it names tensors of {claimed:,} bytes, and its files hold {held:,}")
