"""The place of a training crop in its picture: drawn once, and applied to pixels, masks and boxes.

A crop is a box of the picture that is resized to some rows and columns in the upper left of the view, and flipped;
the rest of the view is padding. Shapes: M boxes as left, top, right, bottom.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vitrine.data.preparing.preprocess import resize
from vitrine.data.preparing.training_view import Numbers

NUM_UNIFORMS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A part of a picture (top, left, height, width) and the size (rows, columns) that it has in a view."""

    box: tuple[int, int, int, int]
    size: tuple[int, int]
    is_flipped: bool

    def of_pixels(self, pixels: torch.Tensor, *, interpolation: str = "bilinear") -> torch.Tensor:
        """Cut, resize and flip a picture (C, H, W) uint8: (C, rows, columns)."""
        top, left, height, width = self.box
        view = resize(pixels[:, top : top + height, left : left + width], self.size, interpolation)
        return view.flip(-1) if self.is_flipped else view

    def of_map(self, values: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Cut, resize and flip a map (..., H, W); each pixel of the view has the value at its centre."""
        (top, left, height, width), (rows, columns) = self.box, self.size
        down = top + (2 * np.arange(rows) + 1) * height // (2 * rows)
        across = left + (2 * np.arange(columns) + 1) * width // (2 * columns)
        if self.is_flipped:
            across = across[::-1]
        view: NDArray[np.uint8] = values[..., down[:, None], across[None, :]]
        return view

    def of_boxes(self, boxes: NDArray[np.float32]) -> NDArray[np.float32]:
        """Move boxes (M, 4) along and cut them at the border of the crop; those outside become empty."""
        (top, left, height, width), (rows, columns) = self.box, self.size
        moved = boxes - np.array([left, top, left, top], dtype=np.float32)
        moved = moved * np.array([columns / width, rows / height] * 2, dtype=np.float32)
        moved = np.clip(moved, 0, np.array([columns, rows] * 2, dtype=np.float32))
        if self.is_flipped:
            moved[:, [0, 2]] = columns - moved[:, [2, 0]]
        return moved.astype(np.float32)


def draw_placement(
    numbers: Numbers,
    height: int,
    width: int,
    *,
    size: tuple[int, int],
    scale: tuple[float, float],
    flip: bool,
) -> Placement:
    """Draw a crop of `size` from a picture whose shorter side is resized to the view's times a random scale.

    The scale is uniform in its logarithm. A picture smaller than the view is taken whole.
    """
    low, high = np.log(scale[0]), np.log(scale[1])
    factor = float(np.exp(low + (high - low) * numbers[0])) * min(size) / min(height, width)
    # Rows and columns of the picture that the view shows, and those of the view that they fill.
    box = [min(max(round(view / factor), 1), side) for view, side in zip(size, (height, width), strict=True)]
    filled = tuple(min(max(round(part * factor), 1), view) for part, view in zip(box, size, strict=True))
    top, left = (
        int(number * (side - part + 1))
        for number, side, part in zip(numbers[1:3], (height, width), box, strict=True)
    )
    return Placement(
        box=(top, left, box[0], box[1]),
        size=(filled[0], filled[1]),
        is_flipped=bool(flip and numbers[3] < 0.5),
    )


def whole(height: int, width: int) -> Placement:
    """Return the picture as it is."""
    return Placement(box=(0, 0, height, width), size=(height, width), is_flipped=False)
