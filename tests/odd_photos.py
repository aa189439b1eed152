"""Fifty photos as they are met in the wild: every common format, colour, orientation, depth and shape."""

import functools
import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from pictures import photo
from PIL import Image, ImageCms

ORIENTATION = 0x0112


@functools.cache
def odd_photos() -> dict[str, bytes]:
    """Return encoded photos by what is odd about each."""
    return dict((*jpegs(), *pngs(), *others(), *shapes()))


def jpegs() -> Iterator[tuple[str, bytes]]:
    image = Image.fromarray(photo(1, 375, 500))
    for orientation in range(1, 9):
        turned = Image.fromarray(photo(10 + orientation, 301, 423))
        yield f"jpeg, orientation {orientation}", saved(turned, "JPEG", exif=exif(orientation), quality=90)
    large = Image.fromarray(photo(2, 1203, 1607))
    yield "jpeg, large", saved(large, "JPEG", quality=88)
    yield "jpeg, large, on its side", saved(large, "JPEG", quality=88, exif=exif(6))
    yield "jpeg, large, 4:4:4", saved(large, "JPEG", quality=88, subsampling=0)
    yield "jpeg, quality 30", saved(image, "JPEG", quality=30)
    yield "jpeg, quality 100", saved(image, "JPEG", quality=100)
    yield "jpeg, 4:2:2", saved(image, "JPEG", subsampling=1)
    yield "jpeg, 4:4:4", saved(image, "JPEG", subsampling=0)
    yield "jpeg, progressive", saved(image, "JPEG", progressive=True)
    yield "jpeg, grey", saved(image.convert("L"), "JPEG", quality=90)
    yield "jpeg, grey, large", saved(large.convert("L"), "JPEG", quality=90)
    yield "jpeg, CMYK", saved(image.convert("CMYK"), "JPEG", quality=95)
    yield "jpeg, foreign profile", saved(image, "JPEG", quality=92, icc_profile=swapped_profile())
    yield "jpeg, with a comment", saved(image, "JPEG", quality=92, comment=b"hello")


def pngs() -> Iterator[tuple[str, bytes]]:
    pixels = photo(3, 240, 320)
    image = Image.fromarray(pixels)
    ramp = np.linspace(0, 255, 320).astype(np.uint8)[None].repeat(240, axis=0)
    yield "png", saved(image, "PNG")
    yield "png, grey", saved(image.convert("L"), "PNG")
    yield "png, two levels", saved(image.convert("1"), "PNG")
    yield "png, palette", saved(image.quantize(64), "PNG")
    yield "png, palette with transparency", saved(image.quantize(64), "PNG", transparency=3)
    yield "png, alpha", saved(Image.fromarray(np.dstack([pixels, ramp])), "PNG")
    yield "png, grey with alpha", saved(Image.merge("LA", (image.convert("L"), Image.fromarray(ramp))), "PNG")
    wide = pixels[:, :, 0].astype(np.uint16) * 257 - np.arange(320, dtype=np.uint16) % 100
    yield "png, 16 bits, grey", saved(Image.fromarray(wide), "PNG")
    yield "png, 16 bits, colour", colour_png_of_16_bits(pixels)
    yield "png, gamma", with_chunk(saved(image, "PNG"), b"gAMA", struct.pack(">I", 100_000))
    yield "png, foreign profile", saved(image, "PNG", icc_profile=swapped_profile())
    yield "png, orientation 6", saved(image, "PNG", exif=exif(6))


def others() -> Iterator[tuple[str, bytes]]:
    pixels = photo(4, 260, 333)
    image = Image.fromarray(pixels)
    half = np.full((260, 333), 128, dtype=np.uint8)
    yield "webp", saved(image, "WEBP", quality=85)
    yield "webp, lossless", saved(image, "WEBP", lossless=True)
    yield "webp, alpha", saved(Image.fromarray(np.dstack([pixels, half])), "WEBP", lossless=True)
    yield "webp, orientation 8", saved(image, "WEBP", quality=90, exif=exif(8))
    yield "webp, foreign profile", saved(image, "WEBP", quality=90, icc_profile=swapped_profile())
    yield "gif", saved(image.quantize(128), "GIF")
    yield "gif, transparent", saved(image.quantize(64), "GIF", transparency=5)
    second = Image.fromarray(photo(5, 260, 333)).quantize(64)
    yield "gif, animated", saved(image.quantize(64), "GIF", save_all=True, append_images=[second])
    yield "bmp", saved(image, "BMP")
    yield "bmp, grey", saved(image.convert("L"), "BMP")
    yield "avif", saved(image, "AVIF", quality=90)


def shapes() -> Iterator[tuple[str, bytes]]:
    yield "1 x 1", saved(Image.fromarray(photo(6, 1, 1)), "PNG")
    yield "2 x 3", saved(Image.fromarray(photo(6, 2, 3)), "PNG")
    yield "3 x 900", saved(Image.fromarray(photo(7, 3, 900)), "PNG")
    yield "900 x 3", saved(Image.fromarray(photo(7, 900, 3)), "JPEG", quality=95)
    yield "10 x 4000", saved(Image.fromarray(photo(8, 10, 4000)), "PNG")
    yield "jpeg of 17 x 23", saved(Image.fromarray(photo(9, 17, 23)), "JPEG", quality=95)


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def exif(orientation: int) -> Image.Exif:
    values = Image.Exif()
    values[ORIENTATION] = orientation
    return values


def swapped_profile() -> bytes:
    """Make a colour profile that swaps red and blue: whoever heeds it is far off."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    names = {bytes(profile[at : at + 4]): at for at in range(132, 132 + 12 * profile[131], 12)}
    red, blue = names[b"rXYZ"], names[b"bXYZ"]
    profile[red : red + 4], profile[blue : blue + 4] = b"bXYZ", b"rXYZ"
    return bytes(profile)


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def with_chunk(png: bytes, name: bytes, data: bytes) -> bytes:
    """Insert a chunk after the header, which is always 33 bytes."""
    return png[:33] + chunk(name, data) + png[33:]


def colour_png_of_16_bits(pixels: np.ndarray) -> bytes:
    """Write RGB of 16 bits per sample, which Pillow reads but cannot write."""
    height, width, _ = pixels.shape
    wide = (pixels.astype(np.uint16) * 257 - np.arange(width, dtype=np.uint16)[None, :, None] % 90).astype(
        ">u2"
    )
    rows = b"".join(b"\0" + row.tobytes() for row in wide)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
