"""safetensors files, read directly into the destination tensor.

A memory map would count every page twice (map and copy) or tie the model to a file that others may overwrite. Reading
in place costs one copy and no memory besides the model's own.

SHA-256 identifies a file; it is recorded for people and checked by `convert`. A CRC-32 of each tensor finds damage
several times as fast and names the tensor; every load checks it, on another thread, while the bytes are in the cache.
"""

import os
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from vitrine.checkpoints.tensors import Index, Spec
from vitrine.errors import CheckpointError
from vitrine.runtime.files import parse_json, sha256_of

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Verifier:
    """Compares the CRC-32 of each tensor that is read with the recorded one."""

    def __init__(self, expected: Mapping[str, str], *, path: Path) -> None:
        self._expected, self._path = expected, path
        # One thread: zlib releases the GIL, so it runs while the next tensor is read.
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checksum")
        self._running: list[tuple[str, Future[int]]] = []

    def see(self, name: str, data: memoryview) -> None:
        """Queue a tensor's bytes; they must not change until `finish`."""
        if name in self._expected:
            self._running.append((name, self._pool.submit(zlib.crc32, data)))

    def finish(self) -> None:
        """Wait for all checksums and refuse the first tensor that differs from the one that was saved."""
        self._pool.shutdown(wait=True)
        for name, future in self._running:
            now = f"{future.result():08x}"
            if now != self._expected[name]:
                raise damaged(self._path, now=now, expected=self._expected[name], where=f" in {name}")
        self._running = []


def require_sha256(path: Path, expected: str) -> None:
    """Refuse a file that differs from the one that was saved."""
    now = sha256_of(path)
    if now != expected:
        raise damaged(path, now=now, expected=expected)


def damaged(path: Path, *, now: str, expected: str, where: str = "") -> CheckpointError:
    """Return the error of a file that has changed since it was saved."""
    return CheckpointError(
        f"{path} is not the file that was saved: its checksum{where} is {now[:12]}, its record says "
        f"{expected[:12]}; copy it again with its config.json"
    )


class SafetensorsFile:
    """One .safetensors file."""

    verifier: Verifier | None = None
    """Checks every tensor that is read whole and has a known checksum."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Opened once and kept open, so that a file replaced in the meantime is still read in its old version.
        self._file = path.open("rb")
        try:
            size = os.fstat(self._file.fileno()).st_size
            header, start = read_header(self._file, path=path, size=size)
            self.metadata: Mapping[str, str] = read_metadata(header, path=path)
            self.index: Index
            self.index, self._offset = read_index(header, path=path, start=start, size=size)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, name: str, *, row: int | None = None) -> Tensor:
        """Read one tensor, or one entry of its first axis."""
        spec = self.index[name]
        shape = spec.shape if row is None else spec.shape[1:]
        out = torch.empty(shape, dtype=spec.dtype)
        self.read_into(name, out, row=row)
        return out

    def read_into(self, name: str, out: Tensor, *, row: int | None = None) -> None:
        """Read into `out`, without an intermediate copy if its memory is contiguous."""
        spec = self.index[name]
        if out.dtype != spec.dtype or not out.is_contiguous() or out.device.type != "cpu":
            out.copy_(self.read(name, row=row))
            return
        if out.numel() == 0:
            return
        # A view of the tensor's memory as bytes (numpy has no bfloat16).
        memory = memoryview(out.detach().reshape(-1).view(torch.uint8).numpy().data)
        whole, offset = memory, self._offset[name] + (0 if row is None else row * len(memory))
        while memory:
            count = os.preadv(self._file.fileno(), [memory], offset)
            if count == 0:
                raise CheckpointError(f"{self.path} became shorter while {name} was read")
            memory, offset = memory[count:], offset + count
        if self.verifier is not None and row is None:
            self.verifier.see(name, whole)


class ShardedSafetensors:
    """Several .safetensors files joined by a `model.safetensors.index.json`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: Mapping[str, str] = {}
        names = read_weight_map(path)
        for shard in set(names.values()):
            if Path(shard).name != shard:
                raise CheckpointError(f"{path} names a shard outside its folder: {shard!r}")
            if not (path.parent / shard).is_file():
                raise CheckpointError(f"{path} names the shard {shard}, which is not in {path.parent}")
        shards = {shard: SafetensorsFile(path.parent / shard) for shard in sorted(set(names.values()))}
        self._shard_of = {name: shards[shard] for name, shard in names.items()}
        for name, file in self._shard_of.items():
            if name not in file.index:
                raise CheckpointError(
                    f"{file.path} does not contain the tensor {name}, which {path.name} lists"
                )
        self.index: Index = {name: file.index[name] for name, file in self._shard_of.items()}

    def read(self, name: str, *, row: int | None = None) -> Tensor:
        """Read one tensor from the shard that holds it."""
        return self._shard_of[name].read(name, row=row)

    def read_into(self, name: str, out: Tensor, *, row: int | None = None) -> None:
        """Read one tensor into `out` from the shard that holds it."""
        self._shard_of[name].read_into(name, out, row=row)


def read_weight_map(path: Path) -> dict[str, str]:
    """Read which shard holds which tensor from a `model.safetensors.index.json`."""
    try:
        names = parse_json(path.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError):
        names = None
    if not isinstance(names, dict) or not all(isinstance(shard, str) for shard in names.values()):
        raise CheckpointError(f"{path} is not an index of shards: it has no weight_map")
    return names


def read_header(file: IO[bytes], *, path: Path, size: int) -> tuple[dict[str, Any], int]:
    """Return the header and the byte where the tensors begin."""
    length = file.read(8)
    count = int.from_bytes(length, "little")
    if len(length) < 8 or count > min(size - 8, MAX_HEADER_BYTES):
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file: it has {size:,} bytes and declares a header of "
            f"{count:,}; download or copy it again"
        )
    try:
        header = parse_json(file.read(count))
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} is not a safetensors file: its header is not a JSON object")
    return header, 8 + count


def read_metadata(header: dict[str, Any], *, path: Path) -> dict[str, str]:
    """Remove the metadata from the header and return it."""
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(word, str) for word in metadata.values()):
        raise CheckpointError(f"{path} is damaged: its __metadata__ is not an object of words")
    return metadata


def read_index(
    header: dict[str, Any], *, path: Path, start: int, size: int
) -> tuple[dict[str, Spec], dict[str, int]]:
    """Return shape, type and first byte of every tensor; all must lie within the file."""
    index: dict[str, Spec] = {}
    offsets: dict[str, int] = {}
    for name, entry in header.items():
        spec, begin, end = read_entry(name, entry, path=path)
        if end - begin != spec.num_bytes or begin < 0 or min(spec.shape, default=0) < 0:
            raise CheckpointError(
                f"{path} is damaged: its tensor {name} of {spec} needs {spec.num_bytes:,} bytes, "
                f"the header gives it {end - begin:,}"
            )
        if start + end > size:
            raise CheckpointError(
                f"{path} is truncated: its tensor {name} of {spec} ends at byte {start + end:,}, "
                f"the file at {size:,}; download or copy it again"
            )
        index[name], offsets[name] = spec, start + begin
    return index, offsets


def read_entry(name: str, entry: Any, *, path: Path) -> tuple[Spec, int, int]:
    """Return shape, first and last byte of one tensor from its entry in the header."""
    try:
        dtype, shape = str(entry["dtype"]), tuple(map(int, entry["shape"]))
        begin, end = map(int, entry["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError):  # JSON may contain 1e999
        raise CheckpointError(f"{path} is damaged: its header has no shape for the tensor {name}") from None
    if dtype not in DTYPES:
        raise CheckpointError(f"{path} holds {name} as {dtype}; known types: {', '.join(DTYPES)}")
    return Spec(shape, DTYPES[dtype]), begin, end
