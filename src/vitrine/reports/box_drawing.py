"""Objects drawn on a picture: boxes in the colour of their class, masks each in a colour of its own, with names."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrine.data.decoding.annotation import Map, Planes
from vitrine.data.decoding.image_file import Pixels
from vitrine.data.decoding.mask_file import OPACITY, voc_palette
from vitrine.data.decoding.mask_planes import mask_in

# Width of lines and height of letters, as shares of the picture's longer side.
LINE, LETTERS = 1 / 250, 1 / 40
LEAST_LETTERS = 9
# Minimum brightness of a colour for black letters on it.
BRIGHT = 140
MOST_NUMBERED = 255
# Where the pixels above, below, left and right of each one are in a map with a border of one pixel.
INNER = slice(1, -1)
NEIGHBOURS = (
    (slice(None, -2), INNER),
    (slice(2, None), INNER),
    (INNER, slice(None, -2)),
    (INNER, slice(2, None)),
)


def drawn(
    pixels: Pixels,
    boxes: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    classes: Sequence[str],
    scores: NDArray[np.float32] | None = None,
    planes: Planes | None = None,
    shown_at: int | None = None,
) -> Pixels:
    """Draw boxes (n, 4), or masks, with their classes, and scores if given, on a picture (H, W, 3).

    Names can be read if the longer side is shown at `shown_at` pixels.
    """
    from PIL import ImageDraw, ImageFont  # noqa: PLC0415 (few pictures have boxes)

    plain = pixels[:, :, :3] if pixels.shape[2] >= 3 else np.repeat(pixels[:, :, :1], 3, axis=2)
    image = Image.fromarray(plain if planes is None else tinted(plain, numbered(planes, len(labels))))
    longer = max(image.size)
    line = max(round(LINE * longer), 1)
    canvas, palette = ImageDraw.Draw(image), voc_palette()
    least = LEAST_LETTERS * max(longer / (shown_at or longer), 1)
    font = ImageFont.load_default(size=max(round(LETTERS * longer), round(least)))
    # The best boxes come first, and are drawn last.
    for row in reversed(range(len(boxes))):
        number = int(labels[row])
        colour = number if planes is None else row
        red, green, blue = (int(value) for value in palette[colour % 254 + 1])
        left, top, right, bottom = (float(side) for side in boxes[row])
        if right - left < 1 or bottom - top < 1:
            continue
        if planes is None:
            canvas.rectangle((left, top, right - 1, bottom - 1), outline=(red, green, blue), width=line)
        else:  # the name stands on the mask, whose box may begin far from it
            left = float(np.flatnonzero(mask_in(planes, row)[int(top)])[0])
        words = classes[number] if scores is None else f"{classes[number]} {scores[row]:.2f}"
        place = canvas.textbbox((left, top), words, font=font)
        canvas.rectangle((place[0] - 1, place[1] - 1, place[2] + 1, place[3] + 1), fill=(red, green, blue))
        ink = (0, 0, 0) if 0.3 * red + 0.6 * green + 0.1 * blue > BRIGHT else (255, 255, 255)
        canvas.text((left, top), words, fill=ink, font=font)
    result: Pixels = np.asarray(image)
    return result


def numbered(planes: Planes, count: int) -> Map:
    """Return the number of the object of every pixel (H, W) from masks, best first: from 1, and 0 for none.

    Where masks overlap, the best one is on top. One byte counts 255 objects.
    """
    numbers = np.zeros(planes.shape[1:], dtype=np.uint8)
    for place in reversed(range(min(count, MOST_NUMBERED))):
        numbers[mask_in(planes, place)] = place + 1
    return numbers


def tinted(pixels: Pixels, numbers: Map) -> Pixels:
    """Colour a picture (H, W, 3) by the objects of its pixels (H, W), with a line around each."""
    colours = voc_palette()[(numbers.astype(np.int64) - 1) % 254 + 1].astype(np.float32)
    mixed = (1 - OPACITY) * pixels + OPACITY * colours
    padded = np.pad(numbers, 1, mode="edge")
    is_border = np.any([padded[rows, columns] != numbers for rows, columns in NEIGHBOURS], axis=0) & (
        numbers > 0
    )
    mixed[is_border] = colours[is_border]
    result: Pixels = np.where((numbers > 0)[..., None], mixed, pixels).round().astype(np.uint8)
    return result
