"""The kind of a file by its first bytes, whatever it is called.

Extensions of files are often missing or wrong: downloads without one, WebP saved as .jpg, photos renamed to .txt. The
first bytes tell. Formats without a signature (TGA, ICO) are known by their extension alone.
"""

import os
import re
import shlex

from vitrine.spelling import printable

try:
    import pillow_heif
except ImportError:  # the extra `heic`; other formats are read without it
    pillow_heif = None

# Extensions of files that are images; decoding one shows whether it is.
_SUFFIXES = "jpg jpeg jpe jfif png bmp gif webp tif tiff ppm pgm pbm pnm avif jp2 ico tga"
IMAGE_SUFFIXES = frozenset("." + name for name in _SUFFIXES.split())
HEIC_SUFFIXES = frozenset((".heic", ".heif"))
# Raw files of cameras. Most have the signature of a TIFF, and a preview is all that a TIFF reader finds in them.
RAW_SUFFIXES = frozenset((".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2"))
VIDEO_SUFFIXES = frozenset((".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".wmv", ".3gp"))
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1")
AVIF_BRANDS = (b"avif", b"avis")
# Enough for every signature below.
SIGNATURE_BYTES = 32
_SIGNATURES = (
    b"\xff\xd8\xff",  # JPEG
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"II*\0",  # TIFF
    b"MM\0*",
    b"II+\0",  # BigTIFF
    b"MM\0+",
    b"\0\0\0\x0cjP  \r\n\x87\n",  # JPEG 2000
    b"\xff\x4f\xff\x51",
)
# "P6 640 480": two letters alone would match text.
_NETPBM = re.compile(rb"P[1-6]\s+(#|\d+\s)")
# Sizes of the second header of a BMP: "BM" alone would match text.
_BMP_HEADERS = (12, 40, 52, 56, 64, 108, 124)


def is_image_data(start: bytes) -> bool:
    """Whether the first bytes of a file are the signature of an image that Pillow reads."""
    if start.startswith(_SIGNATURES) or _NETPBM.match(start):
        return True
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return True
    if start[:2] == b"BM":
        return int.from_bytes(start[14:18], "little") in _BMP_HEADERS
    return start[4:8] == b"ftyp" and start[8:12] in AVIF_BRANDS


def reads_heic() -> bool:
    """Whether the package that decodes HEIC is installed."""
    return pillow_heif is not None


def register_heic() -> None:
    """Make HEIC known to Pillow as the format `HEIF`."""
    pillow_heif.register_heif_opener(thumbnails=False)


def is_heic_data(start: bytes) -> bool:
    """Whether the first bytes of a file are those of HEIC, the format of iPhone photos."""
    return start[4:8] == b"ftyp" and start[8:12] in HEIC_BRANDS


def is_image_file(folder: str, name: str) -> bool:
    """Whether a file is an image, by its extension, or by its first bytes if the extension is another one."""
    ending = suffix_of(name)
    if ending in IMAGE_SUFFIXES:
        return True
    if ending in HEIC_SUFFIXES:
        return reads_heic()
    if ending in RAW_SUFFIXES:
        return False
    start = first_bytes(os.path.join(folder, name))  # noqa: PTH118
    return is_image_data(start) or (reads_heic() and is_heic_data(start))


def first_bytes(path: str) -> bytes:
    """Read the first bytes of a file; none where it cannot be read or is not a file."""
    try:
        if not os.path.isfile(path):  # noqa: PTH113 (a pipe or device would block)
            return b""
        with open(path, "rb") as file:  # noqa: PTH123 (called for every file)
            return file.read(SIGNATURE_BYTES)
    except OSError:
        return b""


def suffix_of(name: str) -> str:
    """Return the extension of a name in lower case, with its dot; empty without one."""
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 (called for every file)


def is_video_data(start: bytes) -> bool:
    """Whether the first bytes of a file are those of a video: MP4 and MOV, AVI, Matroska and WebM."""
    if start[:4] == b"RIFF" and start[8:12] == b"AVI ":
        return True
    if start[:4] == b"\x1a\x45\xdf\xa3":  # EBML, the container of Matroska
        return True
    return start[4:8] == b"ftyp" and start[8:12] not in (*HEIC_BRANDS, *AVIF_BRANDS)


def frames_advice(name: str) -> str:
    """Write the command that extracts one frame per second from a video."""
    video = shlex.quote(printable(name))
    return (
        f"extract frames and pass their folder: mkdir frames && ffmpeg -i {video} -vf fps=1 frames/%05d.jpg"
    )


HEIC_ADVICE = "install pillow-heif (pip install 'vitrine[heic]') or save the photos as JPEG"
