"""Boxes drawn on a picture, each in the colour of its class with its name."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrine.data.decoding.image_file import Pixels
from vitrine.data.decoding.mask_file import voc_palette

# Width of lines and height of letters, as shares of the picture's longer side.
LINE, LETTERS = 1 / 250, 1 / 40
LEAST_LETTERS = 9
# Minimum brightness of a colour for black letters on it.
BRIGHT = 140


def drawn(
    pixels: Pixels,
    boxes: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    classes: Sequence[str],
    scores: NDArray[np.float32] | None = None,
) -> Pixels:
    """Draw boxes (n, 4) with their classes, and scores if given, on a picture (H, W, 3)."""
    from PIL import ImageDraw, ImageFont  # noqa: PLC0415 (few pictures have boxes)

    image = Image.fromarray(
        pixels[:, :, :3] if pixels.shape[2] >= 3 else np.repeat(pixels[:, :, :1], 3, axis=2)
    )
    longer = max(image.size)
    line = max(round(LINE * longer), 1)
    canvas, palette = ImageDraw.Draw(image), voc_palette()
    font = ImageFont.load_default(size=max(round(LETTERS * longer), LEAST_LETTERS))
    # The best boxes come first, and are drawn last.
    for row in reversed(range(len(boxes))):
        number = int(labels[row])
        red, green, blue = (int(value) for value in palette[number % 254 + 1])
        left, top, right, bottom = (float(side) for side in boxes[row])
        if right - left < 1 or bottom - top < 1:
            continue
        canvas.rectangle((left, top, right - 1, bottom - 1), outline=(red, green, blue), width=line)
        words = classes[number] if scores is None else f"{classes[number]} {scores[row]:.2f}"
        place = canvas.textbbox((left, top), words, font=font)
        canvas.rectangle((place[0] - 1, place[1] - 1, place[2] + 1, place[3] + 1), fill=(red, green, blue))
        ink = (0, 0, 0) if 0.3 * red + 0.6 * green + 0.1 * blue > BRIGHT else (255, 255, 255)
        canvas.text((left, top), words, fill=ink, font=font)
    result: Pixels = np.asarray(image)
    return result
