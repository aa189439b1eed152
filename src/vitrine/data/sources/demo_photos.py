"""A folder of pictures for a demonstration without a network: rendered, lit and blurred like photos, with faults.

The faults are known, so that a check can be shown to find them.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from vitrine.data.decoding.image_file import Pixels
from vitrine.data.sources.generated import FACTORS, render
from vitrine.runtime.files import write_atomically
from vitrine.runtime.progress import track

CLASSES = ("circle", "cross", "ring", "square", "star", "triangle")
SIDE = 320
# The object is large and near the centre, and the crop keeps little around it, so that it covers about a third.
_CUT = 0.66
_QUALITY = 88
# New pictures, for predictions, are numbered from here.
NEW = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A deliberate fault: the file, and the name that `vitrine check` gives the problem."""

    path: str
    problem: str


def write_photos(folder: Path, *, count: int, seed: int = 0) -> tuple[Fault, ...]:
    """Write `count` pictures, one folder per class, and faults among them; return the faults."""
    each = -(-count // len(CLASSES))
    numbers = [(name, number) for number in range(each) for name in CLASSES][:count]
    for name, number in track(numbers, "Rendering pictures"):
        _save(folder / name / f"{number:03d}.jpg", scene(name, number=number, seed=seed))
    return plant_faults(folder)


def write_inbox(folder: Path, *, seed: int = 0) -> None:
    """Write one new picture of each class under a neutral name, and a file that is not a picture."""
    for place, name in enumerate(CLASSES):
        _save(folder / f"new-{place + 1}.jpg", scene(name, number=NEW + place, seed=seed))
    _write(folder / "not-a-picture.jpg", b"This is a note, whatever its name says.\n")


def plant_faults(folder: Path) -> tuple[Fault, ...]:
    """Add an empty file, a text file, a truncated JPEG, and one picture under two labels."""
    first = sorted((folder / CLASSES[0]).iterdir())[0].read_bytes()
    whole = sorted((folder / CLASSES[1]).iterdir())[0].read_bytes()
    faults = {
        f"{CLASSES[1]}/empty.jpg": (b"", "empty file"),
        f"{CLASSES[2]}/notes.jpg": (b"Shot on a sunny day.\n", "not an image"),
        f"{CLASSES[3]}/cut-short.jpg": (whole[: len(whole) // 2], "damaged"),
        f"{CLASSES[4]}/copy.jpg": (first, "conflicting labels"),
    }
    for path, (data, _) in faults.items():
        _write(folder / path, data)
    return tuple(Fault(path=path, problem=problem) for path, (_, problem) in faults.items())


def scene(name: str, *, number: int, seed: int = 0) -> Pixels:
    """Render one picture (height, width, 3) of an object with random light, focus and aspect ratio."""
    # The same number in different classes must not share its random choices.
    unlike = number * len(CLASSES) + CLASSES.index(name)
    random = np.random.default_rng([seed, unlike])
    factors = {factor: str(random.choice(values)) for factor, values in FACTORS.items()}
    factors |= {"shape": name, "scale": "large", "position": "middle-centre", "count": "1"}
    picture = render(factors, size=SIDE, seed=seed, number=unlike, noise=0).astype(np.float32)
    picture *= 1 + 0.3 * _field(random, cells=3)[:, :, None]  # the light
    picture += 22 * _field(random, cells=24)[:, :, None] + 10 * _field(random, cells=90)[:, :, None]
    picture += random.normal(0, 5, picture.shape)
    clipped = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
    blurred = clipped.filter(ImageFilter.GaussianBlur(float(random.uniform(0.4, 1.6))))
    height, width = (int(SIDE * _CUT * random.uniform(0.9, 1.25)) for _ in range(2))
    top, left = (int((SIDE - side) * random.uniform(0.35, 0.65)) for side in (height, width))
    return np.asarray(blurred)[top : top + height, left : left + width]


def _field(random: np.random.Generator, *, cells: int) -> NDArray[Any]:
    """Draw smooth noise (SIDE, SIDE) of about unit size, with `cells` bumps per side."""
    coarse = Image.fromarray(random.normal(size=(cells, cells)).astype(np.float32))
    return np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC))


def _save(path: Path, pixels: Pixels) -> None:
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "JPEG", quality=_QUALITY)
    _write(path, encoded.getvalue())


def _write(path: Path, data: bytes) -> None:
    with write_atomically(path) as file:
        file.write(data)
