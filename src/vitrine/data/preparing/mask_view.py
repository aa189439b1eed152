"""Crops of a picture and of its mask together, in the workers: to (C + 1, H, W) uint8, the mask last."""

from dataclasses import dataclass

import numpy as np
import torch

from vitrine.data.decoding.annotation import IGNORED, Annotation
from vitrine.data.decoding.decode import decode
from vitrine.data.decoding.image_file import Pixels
from vitrine.data.preparing.placement import NUM_UNIFORMS, Placement, draw_placement
from vitrine.data.preparing.preprocess import planes
from vitrine.data.preparing.training_view import Numbers
from vitrine.errors import ConfigError, ImageError
from vitrine.spelling import printable

# Grey padding is close to the mean of every preprocessing.
PADDING = 128


@dataclass(frozen=True, kw_only=True)
class MaskView:
    """A random scale, crop and flip. Padding is grey, and ignored in the mask."""

    size: tuple[int, int]
    image_channels: int = 3
    scale: tuple[float, float] = (0.5, 2.0)
    """Shorter side of the resized picture, in sides of the view."""
    flip: bool = True
    num_uniforms: int = NUM_UNIFORMS

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ConfigError(f"scale must be two factors above 0, the smaller first, got {self.scale}")

    @property
    def channels(self) -> int:
        """Planes of the result: those of the picture, and the mask."""
        return self.image_channels + 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the result."""
        return self.channels, *self.size

    def render_annotated(
        self,
        data: bytes | Pixels,
        annotation: Annotation,
        *,
        name: str,
        numbers: Numbers | None,
        out: torch.Tensor,
    ) -> None:
        """Decode a picture and write its crop and that of its mask into `out`, (C + 1, H, W) uint8."""
        assert annotation.classes is not None
        placed = place_picture(
            data, annotation, name=name, numbers=numbers, out=out[:-1], scale=self.scale, flip=self.flip
        )
        rows, columns = placed.size
        out[-1].fill_(IGNORED)
        out[-1, :rows, :columns] = torch.from_numpy(np.ascontiguousarray(placed.of_map(annotation.classes)))


def place_picture(
    data: bytes | Pixels,
    annotation: Annotation,
    *,
    name: str,
    numbers: Numbers | None,
    out: torch.Tensor,
    scale: tuple[float, float],
    flip: bool,
) -> Placement:
    """Decode a picture, draw its crop and write it into `out` (C, H, W) uint8; return where it was cut."""
    assert numbers is not None
    pixels = decode(data, name=name, channels=out.shape[0])
    require_same_size(pixels, annotation, name=name)
    size = (out.shape[1], out.shape[2])
    placed = draw_placement(numbers, *pixels.shape[:2], size=size, scale=scale, flip=flip)
    rows, columns = placed.size
    if placed.size != size:
        out.fill_(PADDING)
    out[:, :rows, :columns] = placed.of_pixels(planes(pixels, out.shape[0]))
    return placed


def require_same_size(pixels: Pixels, annotation: Annotation, *, name: str) -> None:
    """Refuse a mask, or labels, that do not have the size of their picture."""
    height, width = pixels.shape[:2]
    if annotation.size != (height, width):
        what = "its mask" if annotation.classes is not None else "its labels say"
        raise ImageError(
            f"{printable(name)} has {height} x {width} pixels and {what} {annotation.size[0]} x "
            f"{annotation.size[1]}; they must have the same size"
        )
