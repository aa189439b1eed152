"""Facts from a JPEG's header, without decoding: orientation, frame, and how to decode less of it.

There are two ways to decode less; both are exact in what they keep. Scaled: the inverse transform turns a block of
8x8 into 4x4, 2x2 or 1x1 pixels. Upper rows only: a baseline file with one scan stores its rows from top to bottom,
so a lower height in its header makes every decoder stop there; a crop that ends at 60 % of the height saves 40 % of
the time.
"""

import struct
from dataclasses import dataclass

MAGIC = b"\xff\xd8\xff"
_EXIF, _SCAN, _FILL = 0xE1, 0xDA, 0xFF
_BASELINE = (0xC0, 0xC1)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ORIENTATION_TAG, _LONG = 0x0112, 4
# Smooth chroma upsampling reads one more row of chroma, at most four rows of pixels; doubled for safety. Rows are
# mostly stored in blocks of 16, so that the rest of the last block costs nothing.
_MARGIN_ROWS, _BLOCK_ROWS = 8, 16


@dataclass(frozen=True, slots=True)
class JpegLayout:
    """Position and contents of the frame header; `can_stop` if the rows are stored in order in one scan."""

    orientation: int = 1
    height: int = 0
    width: int = 0
    height_at: int = 0
    can_stop: bool = False
    components: int = 0


def read_layout(data: bytes) -> JpegLayout:
    """Read the header segments up to the first scan; an invalid header gives an empty layout."""
    orientation, height, width, height_at, components = 1, 0, 0, 0, 0
    is_baseline = False
    position, end = 2, len(data) - 10
    while position < end and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == _FILL:
            position += 1
            continue
        if marker == _SCAN:
            # One scan with all components and a proper end, so that a truncated file does not pass as complete.
            can_stop = is_baseline and data[position + 4] == components and data[-2:] == b"\xff\xd9"
            return JpegLayout(orientation, height, width, height_at, can_stop, components)
        if marker == _EXIF and data[position + 4 : position + 10] == b"Exif\0\0":
            orientation = _orientation_in_tiff(data, position + 10)
        elif marker in _FRAMES:
            is_baseline, height_at = marker in _BASELINE, position + 5
            height = int.from_bytes(data[position + 5 : position + 7], "big")
            width = int.from_bytes(data[position + 7 : position + 9], "big")
            components = data[position + 9]
        position += 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return JpegLayout(orientation)


def upper_rows(data: bytes, layout: JpegLayout, *, rows: int) -> tuple[bytes, int] | None:
    """Lower the file's height so that it still contains `rows` unchanged; None if that saves nothing.

    Returns the file and its new height.
    """
    kept = -(-(rows + _MARGIN_ROWS) // _BLOCK_ROWS) * _BLOCK_ROWS
    if not layout.can_stop or layout.orientation != 1 or kept >= layout.height:
        return None
    at = layout.height_at
    return b"".join((data[:at], kept.to_bytes(2, "big"), data[at + 2 :])), kept


def scale_factor(height: int, width: int, *, min_size: tuple[int, int] | None, orientation: int = 1) -> int:
    """Return the largest of 8, 4, 2, 1 by which height x width may shrink and still cover `min_size` upright."""
    if min_size is None:
        return 1
    rows, columns = min_size if orientation < 5 else min_size[::-1]
    return next((f for f in (8, 4, 2) if height // f >= rows and width // f >= columns), 1)


def _orientation_in_tiff(data: bytes, base: int) -> int:
    order = {b"II": "<", b"MM": ">"}.get(data[base : base + 2])
    if order is None:
        return 1
    try:
        (offset,) = struct.unpack_from(order + "I", data, base + 4)
        (count,) = struct.unpack_from(order + "H", data, base + offset)
        for number in range(count):
            entry = base + offset + 2 + 12 * number
            tag, kind = struct.unpack_from(order + "HH", data, entry)
            if tag == _ORIENTATION_TAG:
                # The standard says short; some cameras write long.
                (value,) = struct.unpack_from(order + ("I" if kind == _LONG else "H"), data, entry + 8)
                return value if value in range(1, 9) else 1
    except struct.error:  # damaged EXIF; the picture itself may be fine
        pass
    return 1
