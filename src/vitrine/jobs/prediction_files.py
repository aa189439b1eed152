"""What the verbs that write predictions share: names of files, pictures, and the exit code."""

from pathlib import Path

from PIL import Image

from vitrine.runtime.files import write_atomically

# JPEG quality of the pictures in overlays; masks are not compressed with loss.
JPEG_QUALITY = 90


def exit_code_of(num_errors: int, *, num_pictures: int, is_strict: bool) -> int:
    """Return 1 if no picture could be read, or if the command is strict and any could not."""
    return int(num_errors == num_pictures or (is_strict and num_errors > 0))


def save_picture(file: Path, image: Image.Image) -> None:
    """Write a picture in one step, as a JPEG or a PNG by its name."""
    kind = "JPEG" if file.suffix == ".jpg" else "PNG"
    with write_atomically(file) as opened:
        image.save(opened, kind, quality=JPEG_QUALITY)


def unique_stems(names: list[str]) -> list[str]:
    """Return the names of files without folder and extension; a number is added to one that occurs again."""
    used: set[str] = set()
    stems = []
    for name in names:
        stem = Path(name).stem or "picture"
        chosen, number = stem, 1
        while chosen in used:
            number += 1
            chosen = f"{stem}-{number}"
        used.add(chosen)
        stems.append(chosen)
    return stems
