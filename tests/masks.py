"""Small sets of pictures with masks: a bright rectangle of class 1 or 2 on a dark, noisy ground of class 0."""

from pathlib import Path

import numpy as np
from pictures import save
from PIL import Image

SIDE = 48


def scene(seed: int, *, height: int = SIDE, width: int = SIDE + 16) -> tuple[np.ndarray, np.ndarray]:
    """Make a picture (height, width, 3) and its class map, with a border of 255 around the rectangle."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 60, (height, width, 3), dtype=np.uint8)
    classes = np.zeros((height, width), dtype=np.uint8)
    number = 1 + seed % 2
    top, left = rng.integers(2, height // 2), rng.integers(2, width // 2)
    rows, columns = rng.integers(12, height // 2), rng.integers(12, width // 2)
    classes[top - 1 : top + rows + 1, left - 1 : left + columns + 1] = 255
    classes[top : top + rows, left : left + columns] = number
    pixels[top : top + rows, left : left + columns, number] += 180
    return pixels, classes


def mask_folders(root: Path, *, train: int = 12, val: int = 4) -> Path:
    """Make `images/` and `masks/` with a folder per split, and the names of the classes."""
    for split, first, count in (("train", 0, train), ("val", 100, val)):
        for number in range(count):
            pixels, classes = scene(first + number)
            save(root / "images" / split / f"{number:03d}.png", pixels)
            save(root / "masks" / split / f"{number:03d}.png", classes)
    (root / "classes.txt").write_text("ground\ngreen\nblue\n")
    return root


def voc_folder(root: Path, *, train: int = 3, val: int = 2) -> Path:
    """Make a folder laid out as VOC 2012, with palette masks and lists."""
    for split, first, count in (("train", 0, train), ("val", 100, val)):
        names = []
        for number in range(first, first + count):
            pixels, classes = scene(number)
            names.append(f"2007_{number:06d}")
            save(root / "JPEGImages" / f"{names[-1]}.jpg", pixels)
            path = root / "SegmentationClass" / f"{names[-1]}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image = Image.fromarray(classes)
            palette = Image.frombytes("P", image.size, image.tobytes())
            palette.putpalette([value % 256 for value in range(768)])
            palette.save(path)
        file = root / "ImageSets" / "Segmentation" / f"{split}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(names) + "\n")
    return root
