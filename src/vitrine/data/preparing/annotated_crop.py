"""A random crop of a picture together with its labels: what views of masks, of boxes and of objects share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from vitrine.data.decoding.annotation import Annotation
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
class AnnotatedCrop(ABC):
    """A random scale, crop and flip of a picture, with planes for its labels behind it. Padding is grey."""

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
    @abstractmethod
    def channels(self) -> int:
        """Planes of the result: those of the picture, and those of its labels."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the result."""
        return self.channels, *self.size

    @abstractmethod
    def render_annotated(
        self,
        data: bytes | Pixels,
        annotation: Annotation,
        *,
        name: str,
        numbers: Numbers | None,
        out: torch.Tensor,
    ) -> None:
        """Decode a picture and write its crop, and its labels there, into `out` uint8 of `shape`."""

    def place(
        self,
        data: bytes | Pixels,
        annotation: Annotation,
        *,
        name: str,
        numbers: Numbers | None,
        out: torch.Tensor,
    ) -> Placement:
        """Decode a picture, draw its crop and write it into the first planes of `out`; return where it was cut."""
        assert numbers is not None
        crop = out[: self.image_channels]
        pixels = decode(data, name=name, channels=self.image_channels)
        require_same_size(pixels, annotation, name=name)
        placed = draw_placement(numbers, *pixels.shape[:2], size=self.size, scale=self.scale, flip=self.flip)
        rows, columns = placed.size
        if placed.size != self.size:
            crop.fill_(PADDING)
        crop[:, :rows, :columns] = placed.of_pixels(planes(pixels, self.image_channels))
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
