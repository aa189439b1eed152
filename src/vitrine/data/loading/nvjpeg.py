"""JPEGs decoded and cropped on a CUDA device: nvJPEG through torchvision, many at a time.

The CPU renders files that nvJPEG cannot decode (other formats, progressive or rotated files, grey and CMYK, very
large ones), and counts them. nvJPEG has its own inverse transform and upsampling: its pixels differ from the CPU's
by a few levels, `CUDA_TOLERANCE` on average. The choice depends on the file alone.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrine.data.decoding.decode import JpegLayout, read_layout
from vitrine.data.decoding.image_file import JPEG_MAGIC, Pixels
from vitrine.data.loading.device_crops import cut_all
from vitrine.data.loading.filling import Failures, one_thread
from vitrine.data.preparing.training_view import Numbers, TrainView, View, inception_box
from vitrine.data.sources.source import Example
from vitrine.errors import ConfigError, MissingExtraError, VitrineError
from vitrine.runtime.devices import copy_to_device

# Mean difference, in levels of 255, from the CPU's pixels of the same file.
CUDA_TOLERANCE = 2.0
# Pixels per image, and per call: 200 and 100 MB of device memory.
_MOST_PIXELS, _MOST_AT_ONCE = 2**26, 2**25
# Position of the colour transform in Adobe's marker, counted from its name; 1 is YCbCr.
_ADOBE, _ADOBE_TRANSFORM_AT, _YCBCR = b"Adobe\0", 11, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """Views (B, C, H, W) uint8 on the device, why rows could not be read, and how many rows the CPU rendered."""

    images: Tensor
    failures: Failures
    num_by_cpu: int


def can_render(view: View) -> bool:
    """Whether the device can render this view: the inception crop of colour images, bilinear."""
    return (
        isinstance(view, TrainView)
        and view.crop == "inception"
        and view.channels == 3
        and view.interpolation == "bilinear"
    )


def require_nvjpeg(device: torch.device) -> None:
    """Refuse a device that has no nvJPEG, before the first batch."""
    if device.type != "cuda":
        raise ConfigError(
            f"device_share needs a CUDA device, got {device.type}; with 0 the workers decode everything"
        )
    picture = io.BytesIO()
    Image.new("RGB", (64, 64)).save(picture, "JPEG")
    try:
        _decode([picture.getvalue()], device=device)
    except RuntimeError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"this torchvision has no working nvJPEG ({reason}); with device_share 0 the workers decode everything"
        ) from error


def render_rows(
    examples: Sequence[Example | VitrineError], *, numbers: Numbers, view: TrainView, device: torch.device
) -> Rendered:
    """Decode, crop and flip one example per row on the device; rows that could not be read are black and listed."""
    images = torch.zeros(len(examples), view.channels, *view.size, dtype=torch.uint8, device=device)
    failures = {
        row: str(example) for row, example in enumerate(examples) if isinstance(example, VitrineError)
    }
    read = {row: example for row, example in enumerate(examples) if isinstance(example, Example)}
    layouts = {row: layout for row, example in read.items() if (layout := fitting_layout(example.data))}
    for_cpu = sorted(read.keys() - layouts.keys())
    for group in _groups(layouts):
        images_or_none = nvjpeg([read[row].data for row in group], device=device)
        for_cpu += [row for row, image in zip(group, images_or_none, strict=True) if image is None]
        decoded = {row: image for row, image in zip(group, images_or_none, strict=True) if image is not None}
        if decoded:
            rows = np.array(list(decoded))
            views = _cut(list(decoded.values()), numbers[rows], view=view)
            images.index_copy_(0, copy_to_device(rows, device), views)
    if for_cpu:
        views, others = _render_on_cpu({row: read[row] for row in for_cpu}, numbers=numbers, view=view)
        images.index_copy_(0, copy_to_device(np.array(for_cpu), device), copy_to_device(views, device))
        failures |= others
    return Rendered(images=images, failures=failures, num_by_cpu=len(for_cpu))


def nvjpeg(files: Sequence[bytes | Pixels], *, device: torch.device) -> list[Tensor | None]:
    """Decode by nvJPEG to (3, H, W) uint8 on the device; None for a file that it refuses."""
    try:
        return list(_decode(files, device=device))
    except RuntimeError:
        if len(files) == 1:
            return [None]
    # One refused file fails the whole call.
    return [image for data in files for image in nvjpeg([data], device=device)]


def fitting_layout(data: bytes | Pixels) -> JpegLayout | None:
    """Return the layout of a file that nvJPEG decodes as the CPU does, else None."""
    if not isinstance(data, bytes) or data[:3] != JPEG_MAGIC:
        return None
    layout = read_layout(data)
    if not layout.can_stop or layout.orientation != 1 or layout.components != 3:
        return None
    if not 0 < layout.height * layout.width <= _MOST_PIXELS:
        return None  # the CPU decodes very large files at reduced size, or refuses them
    names = bytes(data[layout.height_at + at] for at in (5, 8, 11))
    adobe = data.find(_ADOBE, 0, layout.height_at)
    is_rgb = names == b"RGB" or (adobe >= 0 and data[adobe + _ADOBE_TRANSFORM_AT] != _YCBCR)
    return None if is_rgb else layout


def _decode(files: Sequence[bytes | Pixels], *, device: torch.device) -> list[Tensor]:
    decode_jpeg = _torchvision_io().decode_jpeg
    if device.type == "cuda":
        # It decodes on its own stream, so it must not get memory that this stream still reads.
        torch.cuda.current_stream(device).synchronize()
    packed = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
    images_or_none: list[Tensor] = decode_jpeg(packed, mode="RGB", device=device)
    return images_or_none


def _groups(layouts: Mapping[int, JpegLayout]) -> Iterator[list[int]]:
    """Divide the rows so that each call decodes a bounded number of pixels."""
    group: list[int] = []
    pixels = 0
    for row, layout in layouts.items():
        own = layout.height * layout.width
        if group and pixels + own > _MOST_AT_ONCE:
            yield group
            group, pixels = [], 0
        group.append(row)
        pixels += own
    if group:
        yield group


def _cut(images: Sequence[Tensor], numbers: Numbers, *, view: TrainView) -> Tensor:
    boxes = [
        inception_box(own, image.shape[1], image.shape[2], area=view.area, aspect=view.aspect)
        for own, image in zip(numbers, images, strict=True)
    ]
    is_flipped = (numbers[:, 0] < 0.5) & view.flip
    return cut_all(images, np.array(boxes), is_flipped, size=view.size)


def _render_on_cpu(
    examples: Mapping[int, Example], *, numbers: Numbers, view: TrainView
) -> tuple[Tensor, Failures]:
    views = torch.zeros(len(examples), view.channels, *view.size, dtype=torch.uint8)
    failures: Failures = {}
    with one_thread():
        for out, (row, example) in zip(views, examples.items(), strict=True):
            try:
                view.render(example.data, name=example.name, numbers=numbers[row], out=out)
            except VitrineError as error:
                out.zero_()
                failures[row] = str(error)
    return views, failures


def _torchvision_io() -> Any:
    try:
        import torchvision.io  # noqa: PLC0415 (an extra)
    except (ImportError, RuntimeError) as error:  # RuntimeError if it was built for another torch
        raise MissingExtraError("torchvision", extra="cuda-data", purpose="decoding JPEGs on CUDA") from error
    return torchvision.io
