"""Weights files, recognised by their content; nothing in them is ever executed."""

import zipfile
from pathlib import Path

from vitrine.checkpoints.reading.npz_file import NpzFile
from vitrine.checkpoints.reading.onnx_file import OnnxFile
from vitrine.checkpoints.reading.safetensors_file import SafetensorsFile, ShardedSafetensors
from vitrine.checkpoints.reading.torch_file import TorchFile
from vitrine.checkpoints.tensors import TensorFile, require_readable
from vitrine.errors import CheckpointError

PICKLE_START = b"\x80"  # the opcode PROTO, the first byte of torch's oldest files
ONNX_START = b"\x08"  # the field ir_version


def open_tensors(path: Path) -> TensorFile:
    """Open a weights file of any format: safetensors (also sharded), npz, torch, ONNX."""
    require_readable(path)
    if path.name.endswith(".safetensors.index.json"):
        return ShardedSafetensors(path)
    with path.open("rb") as file:
        start = file.read(9)
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return NpzFile(path) if is_npz(path) else TorchFile(path)
    if start[8:9] == b"{":  # eight bytes of length, then JSON
        return SafetensorsFile(path)
    if start[:1] == PICKLE_START:
        return TorchFile(path)
    if start[:1] == ONNX_START and path.suffix == ".onnx":
        return OnnxFile(path)
    if path.suffix == ".safetensors":
        return SafetensorsFile(path)  # raises the error that explains the problem
    raise CheckpointError(
        f"{path} is not a weights file: it begins with {start[:8]!r}; "
        "safetensors, .npz, torch (.pt, .pth, .bin) and .onnx files can be read"
    )


def is_npz(path: Path) -> bool:
    """Return whether a zip file is one of numpy's, not of torch's."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise CheckpointError(
            f"{path} is truncated or damaged ({error}); download or copy it again"
        ) from None
    if any(name.endswith("data.pkl") for name in names):
        return False
    if names and all(name.endswith(".npy") for name in names):
        return True
    raise CheckpointError(
        f"{path} is a zip file without weights; its first entry is {names[0]!r}"
        if names
        else f"{path} is an empty zip file; download or copy it again"
    )
