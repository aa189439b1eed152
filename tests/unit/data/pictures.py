"""Small files that the data tests read."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def smooth(height: int, width: int, *, seed: int = 0) -> np.ndarray:
    """A picture without sharp edges, as photographs mostly are: (H, W, 3)."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def encoded(pixels: np.ndarray | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    stream = io.BytesIO()
    image.save(stream, format=kind, **options)
    return stream.getvalue()


def save(path: Path, *, seed: int = 0, height: int = 12, width: int = 16) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = "JPEG" if path.suffix == ".jpg" else "PNG"
    path.write_bytes(encoded(smooth(height, width, seed=seed), kind))
    return path


def class_folders(root: Path, counts: dict[str, int]) -> Path:
    """Make `root/<name>/NN.png` with pictures that are all different."""
    seed = 0
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            seed += 1
            save(root / name / f"{number:02d}.png", seed=seed)
    return root
