"""Random crop and flip of a training image at its own aspect ratio, written as patches."""

from dataclasses import dataclass
from typing import Literal

import torch

from vitrine.data.decoding.decode import decode
from vitrine.data.decoding.image_file import Pixels
from vitrine.data.preparing.native import native_shape, native_size, written_as_patches
from vitrine.data.preparing.preprocess import planes, resize
from vitrine.data.preparing.training_view import ATTEMPTS, Crop, Numbers, inception_box
from vitrine.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class NativeView:
    """Crop and flip of a training image at its own aspect ratio; `none` keeps the whole image."""

    patch: tuple[int, int]
    max_patches: int
    image_channels: int = 3
    crop: Crop = "inception"
    area: tuple[float, float] = (0.05, 1.0)
    flip: bool = True
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    num_uniforms: int = 2 * ATTEMPTS + 3
    channels = 1

    def __post_init__(self) -> None:
        if self.crop not in ("inception", "none"):
            raise ConfigError(
                f"max_patches goes with the crops inception and none, got {self.crop!r}", option="max_patches"
            )

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the result: one row per patch."""
        return native_shape(self.patch, self.max_patches, channels=self.image_channels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the result."""
        return self.channels, *self.size

    def render(self, data: bytes | Pixels, *, name: str, numbers: Numbers | None, out: torch.Tensor) -> None:
        """Decode, crop, resize and flip one image, and write its patches into `out`."""
        assert numbers is not None
        pixels = decode(data, name=name, channels=self.image_channels)
        if self.crop == "inception":
            height, width = pixels.shape[:2]
            # The crop has the aspect ratio of the picture: that is what the model sees in evaluation.
            aspect = (width / height, width / height)
            top, left, rows, columns = inception_box(numbers, height, width, area=self.area, aspect=aspect)
            pixels = pixels[top : top + max(rows, 1), left : left + max(columns, 1)]
        image = planes(pixels, self.image_channels)
        if self.flip and numbers[0] < 0.5:
            image = image.flip(-1)
        size = native_size(*image.shape[1:], patch=self.patch, max_patches=self.max_patches)
        image = resize(image, size, self.interpolation)
        out.copy_(written_as_patches(image, patch=self.patch, max_patches=self.max_patches))
