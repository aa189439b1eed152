"""The record of how a picture becomes the model's input; it is stored with the weights everywhere.

Test-time rules: `squash` resizes straight to the size (the official fine-tuning rule), `shorter` resizes the
shorter side and crops the centre (big_vision's pre-training, timm).

uint8 images are resampled with antialias, the same for training, evaluation, export and serving: by torch's kernel,
five times as fast as Pillow's and equal to it within one level in 255 (two in a few samples of bicubic) if Pillow
resizes along the rows first, as it did before version 13. Memory stays bounded whatever the shape of an image: of a
picture of 1 x 60,000 pixels that must cover 256 x 256, only the part that is kept is resized.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from vitrine.data.decoding.decode import decode, to_channels
from vitrine.data.decoding.image_file import MAX_PIXELS, Pixels
from vitrine.data.decoding.picture_input import Picture, read_picture
from vitrine.data.preparing.native import native_shape, native_size, normalised_patches, written_as_patches
from vitrine.errors import ConfigError
from vitrine.runtime.devices import device_constant

Rule = Literal["squash", "shorter"]
Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
# A scaled JPEG keeps at least twice the pixels that the resize needs in each direction: measured on Oxford
# Pets, the result then differs from the full decode by less than one level in 255 on average.
SCALED_DECODE_GAP = 2
BY_TORCH = ("bilinear", "bicubic")
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
# How far each filter reaches from its centre, in pixels of the coarser image.
SUPPORT = {"nearest": 1, "bilinear": 1, "bicubic": 2, "lanczos": 3}
# Largest difference of a sample from Pillow's, in levels of 255: Pillow's weights have more bits.
PILLOW_TOLERANCE = 2
# Pixels of a resized image, or of the half-resized one between both passes, up to which it is computed whole.
# 2**22 are 12 MB of RGB: at 256 pixels any shape up to 1 : 64 is within it.
WHOLE_PIXELS = 2**22


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """Size (height, width), resize rule, crop, interpolation and normalisation of a model's input.

    The image is first resized to `size / crop_fraction` by the rule, then its centre is cropped.
    """

    size: tuple[int, int] = (224, 224)
    rule: Rule = "squash"
    crop_fraction: float = 1.0
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    max_patches: int | None = None
    """Keep the aspect ratio, with at most this many patches, in place of `size`, `rule` and crop."""
    patch: tuple[int, int] | None = None
    """With `max_patches`: height and width of a patch in pixels."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", tuple(int(side) for side in self.size))
        object.__setattr__(self, "mean", tuple(float(value) for value in self.mean))
        object.__setattr__(self, "std", tuple(float(value) for value in self.std))
        if len(self.size) != 2 or min(self.size) < 1:
            raise ConfigError(f"size must be two positive numbers (height, width), got {self.size}")
        if self.rule not in get_args(Rule):
            raise ConfigError(f"rule must be squash or shorter, got {self.rule!r}")
        if not 0 < self.crop_fraction <= 1:
            raise ConfigError(f"crop_fraction must be above 0 and at most 1, got {self.crop_fraction}")
        if self.interpolation not in get_args(Interpolation):
            names = ", ".join(get_args(Interpolation))
            raise ConfigError(f"interpolation must be one of {names}, got {self.interpolation!r}")
        if self.patch is not None:
            object.__setattr__(self, "patch", tuple(int(side) for side in self.patch))
        if (self.max_patches is None) != (self.patch is None):
            raise ConfigError(f"max_patches and patch go together, got {self.max_patches} and {self.patch}")
        if len(self.mean) != len(self.std) or not self.mean or min(self.std) <= 0:
            raise ConfigError(
                f"mean and std need one value per channel and std above 0, got {self.mean} and {self.std}"
            )

    @property
    def channels(self) -> int:
        """Channels of the model's input."""
        return len(self.mean)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the pixels: (C, height, width), or (1, 1 + patches, values per patch) at native aspect ratio."""
        if self.max_patches is None or self.patch is None:
            return self.channels, *self.size
        return 1, *native_shape(self.patch, self.max_patches, channels=self.channels)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one picture as the model takes it: normalised pixels, or patches after a row with their grid."""
        return self.shape if self.max_patches is None else self.shape[1:]

    @property
    def resize_size(self) -> tuple[int, int]:
        """Height and width that the image has, or covers, before the centre is cropped."""
        height, width = (math.floor(side / self.crop_fraction + 1e-6) for side in self.size)
        return height, width

    def with_size(self, size: tuple[int, int] | int) -> Self:
        """Return the same rules at another size, which is no longer the native aspect ratio."""
        size = (size, size) if isinstance(size, int) else size
        return dataclasses.replace(self, size=size, max_patches=None, patch=None)

    # The loader treats this record as a view: nothing about a test image is random.
    num_uniforms = 0

    def render(
        self, data: bytes | Pixels, *, name: str, numbers: np.ndarray[Any, Any] | None, out: torch.Tensor
    ) -> None:
        """Decode one image and write it into `out`, (C, H, W) uint8."""
        out.copy_(self.pixels(self.decode(data, name=name)))

    def decode(self, data: bytes | Pixels, *, name: str = "image", max_pixels: int = MAX_PIXELS) -> Pixels:
        """Decode one image; large JPEGs by their scaled transform."""
        if self.max_patches is not None:  # the size depends on the picture's shape
            return decode(data, name=name, channels=self.channels, max_pixels=max_pixels)
        height, width = self.resize_size
        enough = (SCALED_DECODE_GAP * height, SCALED_DECODE_GAP * width)
        return decode(data, name=name, channels=self.channels, min_size=enough, max_pixels=max_pixels)

    def pixels(self, image: Pixels) -> torch.Tensor:
        """Resize and crop a decoded image (H, W, C): uint8 (C, height, width), or its patches."""
        height, width = image.shape[:2]
        if self.max_patches is not None and self.patch is not None:
            native = native_size(height, width, patch=self.patch, max_patches=self.max_patches)
            resized = resize(planes(image, self.channels), native, self.interpolation)
            return written_as_patches(resized, patch=self.patch, max_patches=self.max_patches)
        rows, columns = target_size(height, width, size=self.resize_size, rule=self.rule)
        top, left = (round((have - want) / 2) for have, want in zip((rows, columns), self.size, strict=True))
        kept = resize_and_crop(
            planes(image, self.channels), (rows, columns), (top, left, *self.size), self.interpolation
        )
        return kept.contiguous()

    def normalise(self, images: torch.Tensor, *, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Turn pixels (..., C, H, W) from 0 to 255 into the model's input, on their own device."""
        mean = device_constant(self.mean, images.device).view(-1, 1, 1) * 255
        std = device_constant(self.std, images.device).view(-1, 1, 1) * 255
        if self.max_patches is not None:
            return normalised_patches(images, mean.flatten(), std.flatten()).to(dtype)
        return ((images.float() - mean) / std).to(dtype)

    def denormalise(self, images: torch.Tensor) -> torch.Tensor:
        """Turn the model's input (..., C, H, W) back into uint8 pixels."""
        mean = torch.tensor(self.mean, device=images.device).view(-1, 1, 1)
        std = torch.tensor(self.std, device=images.device).view(-1, 1, 1)
        return ((images.float() * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def __call__(self, picture: Picture, *, name: str = "image") -> torch.Tensor:
        """Turn a picture of any kind (path, bytes, array...) into the model's input: float (C, height, width)."""
        return self.normalise(self.pixels(self.decode(read_picture(picture, name=name), name=name)))

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain values."""
        values = dataclasses.asdict(self)
        if self.max_patches is None:  # earlier versions do not know these
            del values["max_patches"], values["patch"]
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Build the record from plain values; refuse unknown names."""
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(f"preprocess has no {unknown[0]!r}, only {', '.join(sorted(known))}")
        return cls(**dict(values))


def target_size(height: int, width: int, *, size: tuple[int, int], rule: Rule) -> tuple[int, int]:
    """Return the size to resize an image to: exactly `size`, or covering it with the same aspect ratio."""
    if rule == "squash":
        return size
    rows, columns = size
    if height * columns <= width * rows:  # the height is the tighter side
        return rows, max(columns, int(rows * width / height))
    return max(rows, int(columns * height / width)), columns


def planes(pixels: Pixels, channels: int) -> torch.Tensor:
    """See (H, W, C) as (channels, H, W), in the memory layout for which torch has its fast kernel."""
    pixels = to_channels(pixels, channels)
    if not pixels.flags.writeable:  # Pillow's arrays are read-only, which torch does not know
        pixels = pixels.copy()
    return torch.from_numpy(pixels).permute(2, 0, 1)


def resize(image: torch.Tensor, size: tuple[int, int], interpolation: str) -> torch.Tensor:
    """Resample a uint8 image (C, H, W) to (C, *size)."""
    _, height, width = image.shape
    if (height, width) == tuple(size):
        return image
    if interpolation not in BY_TORCH:
        return _resize_by_pillow(image, size, (0.0, 0.0, float(height), float(width)), interpolation)
    if height * size[1] > max(WHOLE_PIXELS, height * width):
        # torch resizes along the rows first: a tall narrow image would grow before it shrinks.
        image = F.interpolate(image[None], size=(size[0], width), mode=interpolation, antialias=True)[0]
    return F.interpolate(image[None], size=size, mode=interpolation, antialias=True)[0]


def resize_and_crop(
    image: torch.Tensor, size: tuple[int, int], box: tuple[int, int, int, int], interpolation: str
) -> torch.Tensor:
    """Return the box (top, left, height, width) of a uint8 image (C, H, W) resized to `size`: (C, height, width).

    If the resized image would have more than `WHOLE_PIXELS`, only the box is computed. The result is then equal
    within `PILLOW_TOLERANCE` (`nearest` may choose the pixel beside), else exactly.
    """
    top, left, height, width = box
    rows, columns = size
    if rows * columns <= max(WHOLE_PIXELS, 2 * height * width):
        return resize(image, size, interpolation)[:, top : top + height, left : left + width]
    down, across = image.shape[1] / rows, image.shape[2] / columns
    first, last = top * down, min((top + height) * down, image.shape[1])
    # All rows that the filter reaches: nothing beyond them counts.
    reach = SUPPORT[interpolation] * max(down, 1) + 1
    start, stop = max(0, math.floor(first - reach)), min(image.shape[1], math.ceil(last + reach))
    band = image[:, start:stop]
    right = min((left + width) * across, image.shape[2])
    band = _resize_by_pillow(
        band, (stop - start, width), (0, left * across, stop - start, right), interpolation
    )
    return _resize_by_pillow(band, (height, width), (first - start, 0, last - start, width), interpolation)


def _resize_by_pillow(
    image: torch.Tensor, size: tuple[int, int], part: tuple[float, float, float, float], interpolation: str
) -> torch.Tensor:
    """Resample the part (top, left, bottom, right) of an image; pixels beyond its border count at its edge."""
    height, width = size
    top, left, bottom, right = part
    resized = [
        np.array(
            Image.fromarray(np.ascontiguousarray(plane)).resize(
                (width, height), FILTERS[interpolation], box=(left, top, right, bottom)
            )
        )
        for plane in image.numpy()
    ]
    return torch.from_numpy(np.stack(resized))


def resampling(start: torch.Tensor, extent: torch.Tensor, *, length: int, count: int) -> torch.Tensor:
    """Return the weights (..., count, length) that resize the part [start, start + extent) of a line of pixels.

    Bilinear with antialias, as Pillow and torch do it: a triangle as wide as the scale, nothing from outside.
    """
    step = (extent / count)[..., None, None]
    start, end = start[..., None, None], (start + extent)[..., None, None]
    centre = start + (torch.arange(count, device=start.device)[:, None] + 0.5) * step
    pixel = torch.arange(length, device=start.device)
    weights = (1 - (pixel + 0.5 - centre).abs() / step.clamp(min=1)).clamp(min=0)
    weights = torch.where((pixel >= start.floor()) & (pixel < end.ceil()), weights, 0)
    return weights / weights.sum(dim=-1, keepdim=True)
