"""From an encoded mask to a class per pixel: palette, grey or colour PNG, (H, W) uint8 with 255 for ignored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrine.data.decoding.annotation import IGNORED, Map
from vitrine.data.decoding.image_file import Pixels, open_image
from vitrine.errors import ImageError
from vitrine.spelling import printable

Colour = tuple[int, int, int]
# Pillow modes whose stored numbers are the values of the mask: palettes are not looked up.
NUMBERED = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")

# Names of classes that overlays leave clear.
BACKGROUNDS = ("background", "bg", "backdrop", "nothing")
# How much of a pixel's colour in an overlay is that of its class.
OPACITY = 0.55


@dataclass(frozen=True)
class MaskValues:
    """The meaning of a mask's values: for each stored number, or each colour, a class or 255."""

    numbers: Mapping[int, int] = field(default_factory=dict)
    colours: Mapping[Colour, int] = field(default_factory=dict)

    @classmethod
    def in_order(cls, num_classes: int) -> "MaskValues":
        """Let the stored number be the class; 255 is ignored."""
        return cls(numbers={IGNORED: IGNORED, **{number: number for number in range(num_classes)}})


def stored_values(data: bytes, *, name: str) -> NDArray[np.int64]:
    """Return the numbers of a mask as they are stored (H, W), or its colours as 0xRRGGBB."""
    with open_image(data, name=name) as image:
        if image.mode in NUMBERED:
            return np.asarray(image).astype(np.int64)
        red, green, blue = np.moveaxis(np.asarray(image.convert("RGB")).astype(np.int64), 2, 0)
        return red << 16 | green << 8 | blue


def is_coloured(data: bytes, *, name: str) -> bool:
    """Whether a mask stores colours instead of numbers."""
    with open_image(data, name=name) as image:
        return image.mode not in NUMBERED


def decode_mask(data: bytes, values: MaskValues, *, name: str) -> Map:
    """Decode a mask to the class of each pixel (H, W); refuse a value without a meaning."""
    with open_image(data, name=name) as image:
        coloured = image.mode not in NUMBERED
        if not coloured and image.mode in ("L", "P"):
            return looked_up(np.asarray(image), values.numbers, name=name)
    stored = stored_values(data, name=name)
    if coloured and not values.colours:
        raise ImageError(
            f"{printable(name)} is a mask in colours, and nothing says what they mean; list them in classes.txt as "
            "name:red,green,blue"
        )
    meanings = (
        {red << 16 | green << 8 | blue: number for (red, green, blue), number in values.colours.items()}
        if coloured
        else values.numbers
    )
    known, place = np.unique(stored, return_inverse=True)
    unknown = [int(value) for value in known if int(value) not in meanings]
    if unknown:
        raise unknown_value(f"#{unknown[0]:06x}" if coloured else str(unknown[0]), name=name)
    table = np.array([meanings[int(value)] for value in known], dtype=np.uint8)
    return table[place].reshape(stored.shape)


def looked_up(stored: NDArray[np.uint8], meanings: Mapping[int, int], *, name: str) -> Map:
    """Map stored bytes to classes."""
    table = np.full(256, -1, dtype=np.int16)
    table[list(meanings)] = list(meanings.values())
    classes = table[stored]
    if (classes < 0).any():
        raise unknown_value(str(int(stored[classes < 0][0])), name=name)
    return classes.astype(np.uint8)


def unknown_value(value: str, *, name: str) -> ImageError:
    """Return the error for a value that belongs to no class."""
    return ImageError(
        f"{printable(name)} has the label value {value}, which is not a class; list it in classes.txt"
    )


def as_palette(classes: Map, colours: NDArray[np.uint8] | None = None) -> Image.Image:
    """Return a class map as a palette image, in the colours of VOC if none are given: any viewer shows it."""
    height, width = classes.shape
    shown = Image.frombytes("P", (width, height), classes.tobytes())
    shown.putpalette((voc_palette() if colours is None else colours).reshape(-1).tolist())
    return shown


def background_of(classes: Sequence[str | None]) -> int:
    """Return the class that overlays leave clear: the one with a name of a background, else the first."""
    names = [(name or "").strip("_ ").lower() for name in classes]
    return next((number for number, name in enumerate(names) if name in BACKGROUNDS), 0)


def class_colours(classes: Sequence[str | None]) -> NDArray[np.uint8]:
    """Return VOC's colours (256, 3) with black for the background, wherever among the classes it is."""
    colours, background = voc_palette(), background_of(classes)
    colours[[0, background]] = colours[[background, 0]]
    return colours


def voc_palette() -> NDArray[np.uint8]:
    """Return VOC's 256 colours (256, 3): bits 0, 3 and 6 of a number make its red, from the highest bit down."""
    numbers, colours = np.arange(256), np.zeros((256, 3), dtype=np.uint8)
    for step in range(8):
        for channel in range(3):
            bit = numbers >> (3 * step + channel) & 1
            colours[:, channel] |= (bit << (7 - step)).astype(np.uint8)
    return colours


def overlaid(pixels: Pixels, classes: Map, names: Sequence[str | None] = ()) -> Pixels:
    """Colour a picture (H, W, 3) by its classes (H, W); background and ignored pixels keep their own colour."""
    colours = class_colours(names)[classes].astype(np.float32)
    is_shown = ((classes != background_of(names)) & (classes != IGNORED))[..., None]
    mixed = (1 - OPACITY) * pixels + OPACITY * colours
    result: Pixels = np.where(is_shown, mixed, pixels).round().astype(np.uint8)
    return result
