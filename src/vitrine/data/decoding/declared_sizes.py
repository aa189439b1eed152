"""Sizes that the parts of a file declare: the canvas of a WebP, the pictures of an ICO, the AV1 frames of an AVIF.

A container may contradict its parts; decoders make room for the parts.

An AVIF is a tree of boxes (ISO/IEC 14496-12). The box `iloc` lists where pictures lie, `stco` or `co64` where the
frames of a sequence lie. Each begins with AV1 units (OBUs), one of which is the sequence header.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_CONTAINERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl")
_SEQUENCE_HEADER, _TEMPORAL_DELIMITER, _PADDING, _METADATA = 1, 2, 15, 5
# Units that may come before the sequence header.
_SKIPPED = (_TEMPORAL_DELIMITER, _PADDING, _METADATA)
# Pictures, grid cells and frames to read at most; a file with more is not an image.
_MOST_EXTENTS = 4096


def webp_size(data: bytes) -> tuple[int, int]:
    """Read height and width of a WebP's canvas from its first chunk; 0, 0 if they are missing."""
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return 0, 0
    if kind == b"VP8X":
        return 1 + int.from_bytes(body[7:10], "little"), 1 + int.from_bytes(body[4:7], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    return int.from_bytes(body[8:10], "little") & 0x3FFF, int.from_bytes(body[6:8], "little") & 0x3FFF


def icon_sizes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the sizes that the pictures inside an ICO declare themselves; its directory may say otherwise."""
    (count,) = struct.unpack_from("<H", data, 4)
    for number in range(count):
        entry = data[6 + 16 * number : 22 + 16 * number]
        if len(entry) < 16:
            return
        (offset,) = struct.unpack_from("<I", entry, 12)
        head = data[offset : offset + 24]
        if len(head) < 24:
            continue
        if head.startswith(_PNG_MAGIC):
            width, height = struct.unpack_from(">II", head, 16)
        else:  # a bitmap without its file header; its height counts the mask, too
            width, height = (abs(side) for side in struct.unpack_from("<ii", head, 4))
        yield height, width


def av1_frame_sizes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the largest frame (height, width) that each AV1 sequence header in the file allows."""
    for number, offset in enumerate(_extents(data, 0, len(data))):
        if number >= _MOST_EXTENTS:
            return
        size = _frame_size(data, offset)
        if size is not None:
            yield size


def _extents(data: bytes, start: int, end: int) -> Iterator[int]:
    """Yield where pictures and frames begin, from all boxes in a range of the file."""
    while start + 8 <= end:
        size, kind, head = int.from_bytes(data[start : start + 4], "big"), data[start + 4 : start + 8], 8
        if size == 1:
            size, head = int.from_bytes(data[start + 8 : start + 16], "big"), 16
        stop = end if size == 0 else min(start + size, end)
        if stop < start + head:
            return
        body = start + head
        if kind in _CONTAINERS:
            yield from _extents(data, body, stop)
        elif kind == b"meta":
            yield from _extents(data, body + 4, stop)  # a full box: version and flags first
        elif kind == b"iloc":
            yield from _item_offsets(data[body:stop])
        elif kind in (b"stco", b"co64"):
            yield from _chunk_offsets(data[body:stop], width=4 if kind == b"stco" else 8)
        start = stop


def _chunk_offsets(box: bytes, *, width: int) -> Iterator[int]:
    count = int.from_bytes(box[4:8], "big")
    for place in range(8, min(len(box), 8 + count * width), width):
        yield int.from_bytes(box[place : place + width], "big")


def _item_offsets(box: bytes) -> Iterator[int]:
    """Yield the file offsets of the extents that a box `iloc` lists."""
    bits = _Bits(box)
    version = bits.take(8)
    bits.take(24)
    offset_size, length_size, base_size, index_size = (8 * bits.take(4) for _ in range(4))
    for _ in range(bits.take(16 if version < 2 else 32)):
        if bits.is_spent():
            return
        bits.take(16 if version < 2 else 32)  # the item's number
        method = bits.take(16) & 0xF if version else 0
        bits.take(16)  # the file: always this one
        base = bits.take(base_size)
        for _ in range(bits.take(16)):
            if bits.is_spent():
                return
            if version:
                bits.take(index_size)
            offset = bits.take(offset_size)
            bits.take(length_size)
            if method == 0:
                yield base + offset


def _frame_size(data: bytes, offset: int) -> tuple[int, int] | None:
    """Read the sequence header of the AV1 units at `offset`: (height, width), or None if there is none."""
    while offset + 2 <= len(data):
        head = data[offset]
        unit = head >> 3 & 0xF
        has_extension, has_size = head >> 2 & 1, head >> 1 & 1
        if head & 0x81 or not has_size:  # a forbidden or reserved bit: this is not AV1
            return None
        length, body = _leb128(data, offset + 1 + has_extension)
        if unit == _SEQUENCE_HEADER:
            return _sequence_size(data[body : body + length])
        if unit not in _SKIPPED:
            return None
        offset = body + length
    return None


def _leb128(data: bytes, offset: int) -> tuple[int, int]:
    """Read a number of seven bits per byte; return it and the offset behind it."""
    value = 0
    for place in range(8):
        if offset + place >= len(data):
            break
        byte = data[offset + place]
        value |= (byte & 0x7F) << 7 * place
        if not byte & 0x80:
            return value, offset + place + 1
    return value, len(data)


def _sequence_size(unit: bytes) -> tuple[int, int] | None:
    """Read the largest frame of a sequence header (AV1 specification, section 5.5.1): (height, width)."""
    bits = _Bits(unit)
    bits.take(4)  # profile, still picture
    if bits.take(1):  # the reduced header of a still picture
        bits.take(5)
    else:
        _skip_operating_points(bits)
    width_bits, height_bits = bits.take(4) + 1, bits.take(4) + 1
    width, height = bits.take(width_bits) + 1, bits.take(height_bits) + 1
    return None if bits.is_spent() else (height, width)


def _skip_operating_points(bits: "_Bits") -> None:
    delay_bits = 0
    if bits.take(1):  # timing information
        bits.take(64)
        if bits.take(1):  # equal picture interval, as a number of leading zeros and as many bits
            zeros = 0
            while not bits.take(1) and not bits.is_spent():
                zeros += 1
            bits.take(zeros)
        if bits.take(1):  # decoder model
            delay_bits = bits.take(5) + 1
            bits.take(32 + 10)
    has_display_delay = bits.take(1)
    for _ in range(bits.take(5) + 1):
        bits.take(12)
        if bits.take(5) > 7:  # only higher levels have a tier
            bits.take(1)
        if delay_bits and bits.take(1):
            bits.take(2 * delay_bits + 1)
        if has_display_delay and bits.take(1):
            bits.take(4)


@dataclass
class _Bits:
    """Reads numbers bit by bit, the highest first; past the end all bits are 0."""

    data: bytes
    position: int = 0

    def is_spent(self) -> bool:
        """Whether more bits were read than there are."""
        return self.position > 8 * len(self.data)

    def take(self, count: int) -> int:
        first, last = self.position // 8, (self.position + count + 7) // 8
        value = int.from_bytes(self.data[first:last].ljust(last - first, b"\0"), "big")
        self.position += count
        return value >> (8 * last - self.position) & ((1 << count) - 1)
