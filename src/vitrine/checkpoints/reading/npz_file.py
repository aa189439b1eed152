"""numpy's .npz, safely: no pickles, no bombs, one array in memory at a time."""

import math
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.checkpoints.tensors import Index, Spec, shown_shape
from vitrine.errors import CheckpointError

# Weights hardly compress. A file that is not small and expands a hundredfold is a zip bomb.
MAX_GROWTH = 100
ALWAYS_FINE_BYTES = 64 << 20
MAX_ARRAYS = 100_000
LOCAL_HEADER_BYTES = 30
MAX_NPY_HEADER_BYTES = 10_000


class NpzFile:
    """One .npz file; bfloat16 arrays, which numpy stores as two raw bytes, are read as bfloat16."""

    metadata: Mapping[str, str]

    def __init__(self, path: Path) -> None:
        self.path, self.metadata = path, {}
        try:
            self._archive = zipfile.ZipFile(path)
            require_no_bomb(self._archive, path)
            self._dtype: dict[str, np.dtype[Any]] = {}
            self._data_at: dict[str, int] = {}
            self.index: Index = {
                entry.filename.removesuffix(".npy"): self._read_spec(entry)
                for entry in self._archive.infolist()
            }
        except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
            raise CheckpointError(
                f"{path} is truncated or damaged ({error}); download or copy it again"
            ) from None

    def read(self, name: str, *, row: int | None = None) -> Tensor:
        """Read one array, or one entry of its first axis."""
        spec, dtype = self.index[name], self._dtype[name]
        entry = self._archive.getinfo(f"{name}.npy")
        shape = spec.shape if row is None else spec.shape[1:]
        count = math.prod(shape) * dtype.itemsize
        skip = self._data_at[name] + (0 if row is None else row * count)
        try:
            data = self._read_row(entry, skip, count) if row is not None else self._read_all(entry, skip)
        except (zipfile.BadZipFile, EOFError, OSError) as error:
            raise CheckpointError(f"{self.path} is damaged in its array {name}: {error}") from None
        if len(data) != count:
            raise CheckpointError(
                f"{self.path} is truncated: its array {name} of {spec} needs {count:,} bytes and has {len(data):,}"
            )
        array = np.frombuffer(data, dtype=dtype).reshape(shape)
        if spec.dtype == torch.bfloat16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))

    def read_into(self, name: str, out: Tensor, *, row: int | None = None) -> None:
        """Read one array into `out`."""
        out.copy_(self.read(name, row=row))

    def _read_all(self, entry: zipfile.ZipInfo, skip: int) -> bytearray:
        # Read to the end: zipfile compares the checksum there.
        data = bytearray(entry.file_size - skip)
        with self._archive.open(entry) as file:
            file.read(skip)
            filled, view = 0, memoryview(data)
            while filled < len(data):
                count = file.readinto(view[filled : filled + (1 << 20)])  # type: ignore[attr-defined]
                if not count:
                    break
                filled += count
            del view
        return data[:filled] if filled < len(data) else data

    def _read_row(self, entry: zipfile.ZipInfo, skip: int, count: int) -> bytearray:
        if entry.compress_type != zipfile.ZIP_STORED:
            with self._archive.open(entry) as file:
                file.seek(skip)
                return bytearray(file.read(count))
        with self.path.open("rb") as raw:
            raw.seek(entry.header_offset)
            name_bytes, extra_bytes = struct.unpack("<26xHH", raw.read(LOCAL_HEADER_BYTES))
            raw.seek(entry.header_offset + LOCAL_HEADER_BYTES + name_bytes + extra_bytes + skip)
            return bytearray(raw.read(count))

    def _read_spec(self, entry: zipfile.ZipInfo) -> Spec:
        name = entry.filename.removesuffix(".npy")
        with self._archive.open(entry) as file:
            shape, is_fortran, dtype = read_npy_header(file, name=name, path=self.path)
            self._data_at[name] = file.tell()
        if dtype.hasobject:
            raise CheckpointError(
                f"{self.path} holds Python objects in {name}, which could run code when read; "
                "only plain arrays are read"
            )
        if is_fortran and len(shape) > 1:
            raise CheckpointError(f"{self.path} holds {name} in Fortran order; save it in C order")
        needed = math.prod(shape) * dtype.itemsize
        if entry.file_size - self._data_at[name] != needed:
            raise CheckpointError(
                f"{self.path} is damaged: its array {name} of {shown_shape(shape)} {dtype} needs {needed:,} "
                f"bytes and has {entry.file_size - self._data_at[name]:,}"
            )
        self._dtype[name] = dtype
        return Spec(shape, torch_dtype(dtype, name=name, path=self.path))


def require_no_bomb(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse a zip bomb."""
    entries = archive.infolist()
    if len(entries) > MAX_ARRAYS:
        raise CheckpointError(f"{path} holds {len(entries):,} entries; at most {MAX_ARRAYS:,} are read")
    total, on_disk = sum(entry.file_size for entry in entries), path.stat().st_size
    if total > max(ALWAYS_FINE_BYTES, MAX_GROWTH * on_disk):
        largest = max(entries, key=lambda entry: entry.file_size)
        raise CheckpointError(
            f"{path} would grow from {on_disk:,} to {total:,} bytes ({largest.filename} alone to "
            f"{largest.file_size:,}), which weights never do; refused as a zip bomb"
        )


def read_npy_header(file: Any, *, name: str, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type from the header of an .npy."""
    try:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        return read(file, max_header_size=MAX_NPY_HEADER_BYTES)
    except ValueError as error:
        raise CheckpointError(f"{path} holds no array in {name}: {error}") from None


def torch_dtype(dtype: np.dtype[Any], *, name: str, path: Path) -> torch.dtype:
    """Return the torch type of a numpy type."""
    if dtype.kind == "V" and dtype.itemsize == 2:
        return torch.bfloat16
    try:
        return torch.from_numpy(np.empty(0, dtype=dtype.newbyteorder("="))).dtype
    except TypeError:
        raise CheckpointError(f"{path} holds {name} as {dtype}, which torch does not support") from None
