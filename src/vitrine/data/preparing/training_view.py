"""Random crop, resize and flip of a training image, in the workers: to (C, H, W) uint8.

A JPEG is decoded only down to the last row of the crop, and only as large as the crop needs.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from vitrine.data.decoding.decode import decode, decode_upper_rows, read_layout
from vitrine.data.decoding.image_file import JPEG_MAGIC, Pixels
from vitrine.data.preparing.preprocess import planes, resize
from vitrine.errors import ConfigError

Crop = Literal["inception", "random", "padded", "none"]
Numbers = NDArray[np.float64]
ATTEMPTS = 10  # as TensorFlow's and torchvision's inception crop


class View(Protocol):
    """Decodes one image and writes it into a row of a batch."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the result."""

    @property
    def channels(self) -> int:
        """Channels of the result."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the result."""

    @property
    def num_uniforms(self) -> int:
        """Number of random numbers per image."""

    def render(self, data: bytes | Pixels, *, name: str, numbers: Numbers | None, out: torch.Tensor) -> None:
        """Decode `data` and write it into `out`, (C, H, W) uint8."""


@dataclass(frozen=True, kw_only=True)
class TrainView:
    """Crop and flip of a training image; the paper's inception crop by default.

    `random` squashes the image to `resize_size` and crops `size` (BiT's rule); `padded` resizes to `size`, pads by an
    eighth and crops; `none` only squashes (for VTAB tasks whose labels a crop would change).
    """

    size: tuple[int, int] = (224, 224)
    channels: int = 3
    crop: Crop = "inception"
    area: tuple[float, float] = (0.05, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    resize_size: tuple[int, int] | None = None
    flip: bool = True
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    num_uniforms: int = 2 * ATTEMPTS + 3

    def __post_init__(self) -> None:
        if self.crop not in get_args(Crop):
            raise ConfigError(f"crop must be one of {', '.join(get_args(Crop))}, got {self.crop!r}")
        if self.interpolation not in ("bilinear", "bicubic"):
            raise ConfigError(f"interpolation must be bilinear or bicubic, got {self.interpolation!r}")
        if not 0 < self.area[0] <= self.area[1] <= 1 or not 0 < self.aspect[0] <= self.aspect[1]:
            raise ConfigError(
                f"area must be between 0 and 1 and aspect above 0, got {self.area}, {self.aspect}"
            )
        if self.crop == "random" and (
            self.resize_size is None or any(a < b for a, b in zip(self.resize_size, self.size, strict=True))
        ):
            raise ConfigError(
                f"a random crop of {self.size} needs a resize_size at least as large, got {self.resize_size}"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the result."""
        return self.channels, *self.size

    def render(self, data: bytes | Pixels, *, name: str, numbers: Numbers | None, out: torch.Tensor) -> None:
        """Decode, crop, resize and flip one image into `out`, (C, H, W) uint8."""
        assert numbers is not None
        if self.crop == "inception":
            view = self._inception(data, name, numbers)
        else:
            view = self._whole(data, name, numbers)
        out.copy_(view.flip(-1) if self.flip and numbers[0] < 0.5 else view)

    def _inception(self, data: bytes | Pixels, name: str, numbers: Numbers) -> torch.Tensor:
        layout = read_layout(data) if isinstance(data, bytes) and data[:3] == JPEG_MAGIC else None
        if isinstance(data, bytes) and layout is not None and layout.can_stop and layout.orientation == 1:
            height, width = layout.height, layout.width
            box = inception_box(numbers, height, width, area=self.area, aspect=self.aspect)
            pixels = decode_upper_rows(
                data, layout, rows=box[0] + box[2], name=name, min_size=self._needed(height, width, box)
            )
            scale = round(width / pixels.shape[1])
            box = _scaled_box(box, scale)
        else:
            pixels = decode(data, name=name, channels=self.channels)
            box = inception_box(numbers, *pixels.shape[:2], area=self.area, aspect=self.aspect)
        top, left, height, width = box
        cut = pixels[top : top + max(height, 1), left : left + max(width, 1)]
        return resize(planes(cut, self.channels), self.size, self.interpolation)

    def _needed(self, height: int, width: int, box: tuple[int, int, int, int]) -> tuple[int, int]:
        """Return the size of the whole image at which the box has twice the pixels of the view per side.

        With fewer, rounding to the coarser grid would move the box too far.
        """
        return (
            math.ceil(2 * height * self.size[0] / box[2]),
            math.ceil(2 * width * self.size[1] / box[3]),
        )

    def _whole(self, data: bytes | Pixels, name: str, numbers: Numbers) -> torch.Tensor:
        larger = self.resize_size if self.crop == "random" and self.resize_size else self.size
        pixels = decode(data, name=name, channels=self.channels, min_size=larger)
        view = resize(planes(pixels, self.channels), larger, self.interpolation)
        if self.crop == "padded":
            pad = [max(1, side // 8) for side in self.size]
            view = F.pad(view, (pad[1], pad[1], pad[0], pad[0]))
        if self.crop != "none":
            top, left = (
                int(number * (have - want + 1))
                for number, have, want in zip(numbers[1:3], view.shape[1:], self.size, strict=True)
            )
            view = view[:, top : top + self.size[0], left : left + self.size[1]]
        return view


def inception_box(
    numbers: Numbers, height: int, width: int, *, area: tuple[float, float], aspect: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Draw top, left, height, width of a crop: uniform area and log aspect, ten attempts, else the centre."""
    low, high = math.log(aspect[0]), math.log(aspect[1])
    for attempt in range(ATTEMPTS):
        target = height * width * (area[0] + (area[1] - area[0]) * numbers[3 + 2 * attempt])
        ratio = math.exp(low + (high - low) * numbers[4 + 2 * attempt])  # width over height
        columns, rows = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < columns <= width and 0 < rows <= height:
            return (
                int(numbers[1] * (height - rows + 1)),
                int(numbers[2] * (width - columns + 1)),
                rows,
                columns,
            )
    rows = min(height, max(1, round(width / aspect[0])))
    columns = min(width, max(1, round(height * aspect[1])))
    return (height - rows) // 2, (width - columns) // 2, rows, columns


def _scaled_box(box: tuple[int, int, int, int], scale: int) -> tuple[int, int, int, int]:
    """Return the box in an image smaller by `scale`, each edge rounded to a pixel."""
    if scale == 1:
        return box
    top, left = round(box[0] / scale), round(box[1] / scale)
    bottom, right = round((box[0] + box[2]) / scale), round((box[1] + box[3]) / scale)
    return top, left, bottom - top, right - left
