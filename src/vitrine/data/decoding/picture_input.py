"""Turn anything that a program holds or names as a picture into an encoded file or pixels: the one place that does.

| input | read as |
|---|---|
| path | the bytes of the file |
| URL (http, https) | downloaded within `URL_LIMITS` |
| bytes, bytearray, memoryview, file object | an encoded image |
| Pillow image | its pixels, made upright |
| NumPy array or torch tensor | pixels: (H, W), or with 1, 3 (RGB) or 4 (RGBA) channels first or last |

Samples are integers from 0 to 255, floats from 0 to 1, or booleans. If both the first and the last side could be
channels, as in (3, 3, 3), each library's own convention holds: last in NumPy, first in torch.
"""

import io
import os
import threading
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitrine.data.decoding.decode import load_frame, read_file
from vitrine.data.decoding.image_file import Pixels, check_parts, check_size
from vitrine.errors import DataError
from vitrine.runtime.download import Limits, read_url
from vitrine.runtime.places import is_remote
from vitrine.runtime.remote_store import read_remote
from vitrine.spelling import printable


@runtime_checkable
class FileObject(Protocol):
    """An open file, a response, a `BytesIO`."""

    def read(self) -> bytes:
        """Return the rest of the file."""


Picture: TypeAlias = (
    str
    | os.PathLike[str]
    | bytes
    | bytearray
    | memoryview
    | FileObject
    | Image.Image
    | NDArray[Any]
    | torch.Tensor
)
"""One picture, as the table of this module lists."""

URL_LIMITS = Limits(max_bytes=64 * 2**20, max_seconds=60.0, silence_seconds=15.0, max_redirects=5)
_CHANNELS = (1, 3, 4)
_RGBA = 4
# Floats that were computed may miss 0 and 1 by rounding.
_TOLERANCE = 1e-3
# Pillow decodes an image when it is first used, and the same one may occur in a list twice.
_LOADING = threading.Lock()


def read_picture(picture: object, *, name: str = "image") -> bytes | Pixels:
    """Return a picture of any kind as an encoded file, or as pixels (H, W, 1 or 3) uint8."""
    if isinstance(picture, bytes | bytearray | memoryview):
        return bytes(picture)
    if isinstance(picture, str | os.PathLike):
        place = os.fspath(picture)
        if is_url(place):
            return read_url(place, limits=URL_LIMITS)
        return read_remote(place) if is_remote(place) else read_file(place)
    if isinstance(picture, Image.Image):
        with _LOADING:
            return pixels_of(picture, name=name)
    if isinstance(picture, torch.Tensor | np.ndarray):
        return array_pixels(picture, name=name)
    if isinstance(picture, FileObject):
        return read_file_object(picture, name=name)
    raise DataError(
        f"{printable(name)} is a {type(picture).__name__}; pass a path, a URL, bytes, a file object, a Pillow image, "
        "an array or a tensor"
    )


def is_url(text: object) -> bool:
    """Whether a picture is named by a web address."""
    return isinstance(text, str) and text[:8].lower().startswith(("http://", "https://"))


def read_file_object(file: FileObject, *, name: str = "image") -> bytes:
    """Read a file object from its beginning, as `Image.open` does."""
    try:
        if isinstance(file, io.IOBase) and file.seekable():
            file.seek(0)
        data: object = file.read()
    except (OSError, ValueError) as error:
        raise DataError(f"{printable(name)} cannot be read: {error}") from error
    if not isinstance(data, bytes):
        raise DataError(f"{printable(name)} is opened as text; open it with mode 'rb'")
    return data


def pixels_of(picture: Image.Image, *, name: str = "image") -> Pixels:
    """Turn a Pillow image into (H, W, 1) or (H, W, 3) uint8, as `decode` does."""
    check_size(picture.height, picture.width, name=name)
    check_parts(picture, name=name)
    return load_frame(picture, name=name, min_size=None)


def array_pixels(array: NDArray[Any] | torch.Tensor, *, name: str = "image") -> Pixels:
    """Turn an array of any supported layout and type into (H, W, 1 or 3) uint8; RGBA is composited on white."""
    is_tensor = isinstance(array, torch.Tensor)
    values = _as_array(array) if isinstance(array, torch.Tensor) else array
    pixels = _as_bytes(_channels_last(values, name=name, channels_first=is_tensor), name=name)
    if pixels.shape[2] == _RGBA:
        return pixels_of(Image.fromarray(pixels), name=name)
    return pixels


def is_single_array(array: NDArray[Any] | torch.Tensor) -> bool:
    """Whether an array is one picture rather than a stack of them; (3, H, W) could be either and counts as one."""
    if array.ndim <= 2:
        return True
    return array.ndim == 3 and (array.shape[0] in _CHANNELS or array.shape[2] in _CHANNELS)


def _as_array(tensor: torch.Tensor) -> NDArray[Any]:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy()


def _channels_last(array: NDArray[Any], *, name: str, channels_first: bool) -> NDArray[Any]:
    if array.ndim == 2:
        return array[:, :, None]
    if array.ndim == 3:
        is_first, is_last = array.shape[0] in _CHANNELS, array.shape[2] in _CHANNELS
        if is_first and (channels_first or not is_last):
            return array.transpose(1, 2, 0)
        if is_last:
            return array
    raise DataError(
        f"{printable(name)} has shape {tuple(array.shape)}; a picture is (H, W), or has 1, 3 or 4 channels as its "
        "first or last side"
    )


def _as_bytes(array: NDArray[Any], *, name: str) -> Pixels:
    """Scale samples to 0 to 255 by their type."""
    if array.size == 0:
        raise DataError(f"{printable(name)} has shape {array.shape}; it contains no picture")
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype == np.bool_:
        return np.ascontiguousarray(array).astype(np.uint8) * np.uint8(255)
    low, high = array.min(), array.max()
    if array.dtype.kind in "iu" and low >= 0 and high <= 255:
        return np.ascontiguousarray(array).astype(np.uint8)
    if array.dtype.kind == "f" and low >= -_TOLERANCE and high <= 1 + _TOLERANCE:  # False for NaN
        return np.ascontiguousarray(np.rint(np.clip(array, 0, 1) * 255)).astype(np.uint8)
    raise DataError(
        f"{printable(name)} has values from {low:g} to {high:g} of type {array.dtype}; pixels are integers from 0 to "
        "255 or floats from 0 to 1, before any normalisation"
    )
