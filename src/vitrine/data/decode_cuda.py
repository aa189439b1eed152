"""JPEGs decoded and cut on a CUDA device: nvJPEG through torchvision, a batch at a time.

What nvJPEG cannot take (other formats, progressive or turned files, CMYK) is decoded by the CPU as ever, and
counted. nvJPEG's inverse transform and upsampling are its own: its pixels differ from the CPU's by a few
levels, `CUDA_TOLERANCE` on average.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vitrine.data.decode import check_size, decode
from vitrine.data.jpeg import MAGIC, read_layout
from vitrine.data.resampling import resize
from vitrine.data.source import Pixels
from vitrine.data.view import Numbers, TrainView, inception_box
from vitrine.errors import MissingExtraError

# Mean difference, in levels of 255, from the CPU's pixels of the same file.
CUDA_TOLERANCE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """Images (C, H, W) uint8 on the device, of different sizes, and how many the CPU had to decode."""

    images: list[torch.Tensor]
    num_by_cpu: int


def decode_batch(
    files: Sequence[bytes | Pixels], *, names: Sequence[str], device: torch.device, channels: int = 3
) -> DecodedBatch:
    """Decode a batch on the device, by nvJPEG where it can."""
    images: list[torch.Tensor | None] = [None] * len(files)
    for_device = [
        number for number, data in enumerate(files) if channels == 3 and _suits(data, names[number])
    ]
    if for_device:
        packed = [torch.frombuffer(bytearray(files[number]), dtype=torch.uint8) for number in for_device]
        try:
            decoded = _torchvision_io().decode_jpeg(packed, mode="RGB", device=device)
        except RuntimeError:
            decoded = []  # one file that nvJPEG refuses fails the whole call: the CPU takes them all
        for number, image in zip(for_device, decoded, strict=False):
            images[number] = image
    num_by_cpu = 0
    for number, image in enumerate(images):
        if image is None:
            num_by_cpu += 1
            pixels = decode(files[number], name=names[number], channels=channels)
            planes = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
            images[number] = planes.to(device)
    return DecodedBatch(images=[image for image in images if image is not None], num_by_cpu=num_by_cpu)


def render_batch(
    view: TrainView,
    files: Sequence[bytes | Pixels],
    *,
    names: Sequence[str],
    numbers: Numbers,
    device: torch.device,
) -> tuple[torch.Tensor, int]:
    """Decode, cut and flip a batch on the device: uint8 (B, C, H, W), and how many the CPU decoded."""
    batch = decode_batch(files, names=names, device=device, channels=view.channels)
    out = torch.empty(len(files), view.channels, *view.size, dtype=torch.uint8, device=device)
    for row, (image, own) in enumerate(zip(batch.images, numbers, strict=True)):
        top, left, height, width = inception_box(
            own, image.shape[1], image.shape[2], area=view.area, aspect=view.aspect
        )
        cut = image[:, top : top + height, left : left + width].float()
        resized = resize(cut, view.size, view.interpolation).round_().clamp_(0, 255)
        out[row] = resized.flip(-1) if view.flip and own[0] < 0.5 else resized
    return out, batch.num_by_cpu


def _suits(data: bytes | Pixels, name: str) -> bool:
    if not isinstance(data, bytes) or data[:3] != MAGIC:
        return False
    layout = read_layout(data)
    if not layout.can_stop or layout.orientation != 1 or layout.components != 3:
        return False
    check_size(layout.height, layout.width, name=name)
    return True


def _torchvision_io() -> Any:
    try:
        import torchvision.io
    except ImportError as error:
        raise MissingExtraError("torchvision", extra="cuda-data", purpose="decoding JPEGs on CUDA") from error
    return torchvision.io
