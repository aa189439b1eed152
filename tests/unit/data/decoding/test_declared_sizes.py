"""Sizes that files declare, in files written bit by bit from the specifications."""

import struct

import pytest

from vitrine.data.decoding.declared_sizes import av1_frame_sizes, icon_sizes, webp_size

HEIGHT, WIDTH = 50, 70
SIZE_BITS = f"{6:04b}{5:04b}" + f"{WIDTH - 1:07b}{HEIGHT - 1:06b}"


def packed(bits: str) -> bytes:
    padded = bits + "0" * (-len(bits) % 8)
    return int(padded, 2).to_bytes(len(padded) // 8, "big")


def unit(kind: int, body: bytes) -> bytes:
    """Write an AV1 unit (OBU) with its size."""
    return bytes([kind << 3 | 2, len(body)]) + body


# AV1 specification, section 5.5: what may come between the start of a sequence header and the frame's size.
TIMING = f"1{1:032b}{30:032b}"  # ticks and time scale
DECODER_MODEL = f"1{3:05b}{1:032b}{0:010b}"  # delays of four bits
HEADERS = {
    "still picture": "00011" + "00000",
    "video": "00000" + "0" + "0" + "00000" + f"{0:012b}{4:05b}",
    "a level with a tier": "00000" + "0" + "0" + "00000" + f"{0:012b}{8:05b}1",
    "two operating points with display delays": "00000"
    + "0"
    + "1"
    + "00001"
    + 2 * f"{0:012b}{4:05b}1{9:04b}",
    # An interval of 5 pictures: two leading zeros, a one, two bits.
    "equal intervals": "00000" + TIMING + "1" + "00101" + "0" + "0" + "00000" + f"{0:012b}{4:05b}",
    "decoder model": "00000" + TIMING + "0" + DECODER_MODEL + "0" + "00000" + f"{0:012b}{4:05b}1{0:09b}",
}


@pytest.fixture(params=HEADERS, ids=lambda name: name)
def frame(request: pytest.FixtureRequest) -> bytes:
    """A temporal delimiter and a sequence header."""
    return unit(2, b"") + unit(1, packed(HEADERS[request.param] + SIZE_BITS))


def box(kind: bytes, body: bytes, *, is_long: bool = False) -> bytes:
    if is_long:
        return struct.pack(">I4sQ", 1, kind, 16 + len(body)) + body
    return struct.pack(">I4s", 8 + len(body), kind) + body


def item_location(version: int, offset: int) -> bytes:
    """A list of one item with one extent, all numbers of 32 bits."""
    sizes = packed(f"{4:04b}{4:04b}{4:04b}{0:04b}")
    head = bytes([version, 0, 0, 0]) + sizes
    item = struct.pack(">H" if version < 2 else ">I", 1)
    method = struct.pack(">H", 0) if version else b""
    place = struct.pack(">HIHII", 0, 0, 1, offset, 100)  # file, base, count, offset, length
    return head + item + item + method + place


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_picture_is_found_by_the_list_of_items(frame: bytes, version: int) -> None:
    length = len(box(b"meta", bytes(4) + box(b"iloc", item_location(version, 0))))
    data = box(b"meta", bytes(4) + box(b"iloc", item_location(version, length))) + frame
    assert list(av1_frame_sizes(data)) == [(HEIGHT, WIDTH)]


@pytest.mark.parametrize(("kind", "number"), [(b"stco", ">I"), (b"co64", ">Q")])
@pytest.mark.parametrize("is_long", [False, True])
def test_frames_of_a_sequence_are_found_by_their_chunks(
    frame: bytes, kind: bytes, number: str, is_long: bool
) -> None:
    def boxes(offset: int) -> bytes:
        inner = box(kind, bytes(4) + struct.pack(">I", 1) + struct.pack(number, offset))
        for outer in (b"stbl", b"minf", b"mdia", b"trak", b"moov"):
            inner = box(outer, inner, is_long=is_long)
        return inner

    data = boxes(len(boxes(0))) + frame
    assert list(av1_frame_sizes(data)) == [(HEIGHT, WIDTH)]


@pytest.mark.parametrize(
    "not_av1",
    [b"", b"\x80\x00", unit(6, b"frame"), bytes([1 << 3, 0]), unit(1, b"\0\0"), unit(2, b"")],
    ids=["nothing", "forbidden bit", "a frame first", "no size", "a short header", "no header"],
)
def test_what_is_no_sequence_header_declares_no_size(not_av1: bytes) -> None:
    length = len(box(b"meta", bytes(4) + box(b"iloc", item_location(0, 0))))
    data = box(b"meta", bytes(4) + box(b"iloc", item_location(0, length))) + not_av1
    assert list(av1_frame_sizes(data)) == []


def test_boxes_that_contradict_themselves_end_the_search() -> None:
    assert list(av1_frame_sizes(struct.pack(">I4s", 4, b"moov") + bytes(40))) == []
    assert list(av1_frame_sizes(box(b"meta", bytes(4) + box(b"iloc", item_location(0, 9)[:9])))) == []


def test_an_icon_declares_the_sizes_of_its_pictures_and_not_those_of_its_directory() -> None:
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 300, 200)
    bitmap = struct.pack("<Iii", 40, 48, 96) + bytes(12)
    entries = [(png, 54), (bitmap, 54 + len(png)), (b"", 10_000)]  # the last lies outside the file
    directory = b"".join(struct.pack("<BBBBHHII", 1, 1, 0, 0, 1, 32, 9, place) for _, place in entries)
    data = struct.pack("<HHH", 0, 1, 3) + directory + png + bitmap
    assert list(icon_sizes(data)) == [(200, 300), (96, 48)]
    assert list(icon_sizes(data[:20])) == []


def test_every_kind_of_webp_declares_its_canvas() -> None:
    head = b"RIFF" + bytes(4) + b"WEBP"
    extended = struct.pack("<I", 69)[:3] + struct.pack("<I", 49)[:3]
    assert webp_size(head + b"VP8X" + bytes(8) + extended) == (HEIGHT, WIDTH)
    lossless = struct.pack("<I", 69 | 49 << 14)
    assert webp_size(head + b"VP8L" + bytes(4) + b"\x2f" + lossless + bytes(5)) == (HEIGHT, WIDTH)
    lossy = bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", 70, 50)
    assert webp_size(head + b"VP8 " + bytes(4) + lossy) == (HEIGHT, WIDTH)
    assert webp_size(head + b"VP8X") == (0, 0)
