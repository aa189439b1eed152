"""Weights files, written tensor by tensor and atomically, never as a pickle."""

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.checkpoints.reading.safetensors_file import DTYPE_NAMES
from vitrine.checkpoints.tensors import Spec
from vitrine.errors import CheckpointError, VitrineError
from vitrine.runtime.files import json_text, write_atomically

ALIGNMENT = 8  # alignment of the header, as in the format's own writer
CHUNK_BYTES = 16 << 20
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # zip's earliest date: equal weights give equal files


def write_safetensors(
    path: Path,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    specs: Mapping[str, Spec],
    metadata: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write tensors that come one at a time in the order of `specs`; return the file's checksums."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    offset = 0
    for name, spec in specs.items():
        header[name] = {
            "dtype": DTYPE_NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.num_bytes],
        }
        offset += spec.num_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    digest, sums = hashlib.sha256(), {}
    with refusing_in_words(path), write_atomically(path) as file:
        for piece in (len(text).to_bytes(8, "little"), text):
            file.write(piece)
            digest.update(piece)
        expected = iter(specs.items())
        for name, tensor in tensors:
            wanted, spec = next(expected)
            assert (name, tuple(tensor.shape), tensor.dtype) == (wanted, spec.shape, spec.dtype)
            sum_so_far = 0
            for chunk in chunks(tensor):
                file.write(chunk)
                digest.update(chunk)
                sum_so_far = zlib.crc32(chunk, sum_so_far)
            sums[name] = f"{sum_so_far:08x}"
        assert next(expected, None) is None
    return {"sha256": digest.hexdigest(), "crc32": sums}


def write_npz(path: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write a .npz array by array, stored as numpy.savez does."""
    with (
        refusing_in_words(path),
        write_atomically(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
    ):
        for name, tensor in tensors:
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=LONG_AGO)
            with archive.open(entry, "w", force_zip64=True) as member:
                member.write(npy_header(tensor))
                for chunk in chunks(tensor):
                    member.write(chunk)


def write_text(path: Path, text: str) -> None:
    """Write a small file atomically."""
    with refusing_in_words(path), write_atomically(path, mode="w") as file:
        file.write(text)


def write_json(path: Path, values: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write a small JSON file atomically, indented."""
    write_text(path, json_text(values, indent=2) + "\n")


def chunks(tensor: Tensor) -> Iterable[memoryview]:
    """Yield a tensor's bytes in C order, in pieces that a progress line can follow."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.numel() == 0:
        return
    data = memoryview(flat.view(torch.uint8).numpy().data)
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


def npy_header(tensor: Tensor) -> bytes:
    """Return the .npy header of an array; numpy stores bfloat16 as two raw bytes, as in JAX's files."""
    is_brain_float = tensor.dtype == torch.bfloat16
    dtype = np.dtype("V2") if is_brain_float else torch.empty(0, dtype=tensor.dtype).numpy().dtype
    described = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": tuple(tensor.shape),
    }
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, described)
    return out.getvalue()


@contextmanager
def refusing_in_words(path: Path) -> Iterator[None]:
    """Turn an OSError into a one-sentence error; our own errors, some of which are OSErrors too, pass unchanged."""
    try:
        yield
    except VitrineError:
        raise
    except PermissionError:
        raise CheckpointError(f"no permission to write {path}; nothing was written") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from None
