"""Pictures for tests: each seed another one, with large shapes and fine detail as photos have."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def photo(seed: int, height: int = 48, width: int = 64) -> np.ndarray:
    """Make (height, width, 3) uint8: smooth colours with finer and finer structure on top."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width, 3))
    for cells, strength in ((3, 60), (7, 35), (16, 20)):
        coarse = rng.normal(size=(cells, cells, 3)).astype(np.float32)
        layers = [
            np.asarray(Image.fromarray(coarse[:, :, c]).resize((width, height), Image.Resampling.BICUBIC))
            for c in range(3)
        ]
        total += strength * np.stack(layers, axis=2)
    return np.clip(total + 110, 0, 255).astype(np.uint8)


def altered(pixels: np.ndarray, *, down: int = 1, right: int = -1, gain: float = 1.15) -> np.ndarray:
    """Make a copy as it is met in the wild: moved, brightened, re-compressed at quality 75."""
    moved = np.roll(pixels, (down, right), axis=(0, 1))
    brighter = np.clip(moved * gain, 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(brighter).save(buffer, "JPEG", quality=75)
    return np.asarray(Image.open(buffer))


def save(path: Path, pixels: np.ndarray, **options: object) -> Path:
    """Save pixels at `path`, folders made as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def class_folders(
    root: Path, *, classes: tuple[str, ...] = ("cat", "dog"), each: int = 6, first: int = 0
) -> Path:
    """Make `root/<class>/<number>.png`, every picture another one."""
    for number, name in enumerate(classes):
        for index in range(each):
            save(root / name / f"{index}.png", photo(first + 1000 * number + index))
    return root


def vtab_lists(root: Path, tasks: dict[str, int]) -> None:
    """Write tasks of so many classes in the community's layout of VTAB; the label is the brightness."""
    random = np.random.default_rng(0)
    for task, num_classes in tasks.items():
        lines: dict[str, list[str]] = {}
        for split, name, count in (("train", "train800", 24), ("val", "val200", 8), ("test", "test", 20)):
            lines[name] = []
            for number in range(count):
                label = number % num_classes
                path = f"images/{split}/{number:06d}.jpg"
                noise = random.integers(-5, 6, (20, 20, 3))
                pixels = np.clip(12 + label * 230 // num_classes + noise, 0, 255).astype(np.uint8)
                save(root / task / path, pixels, quality=95)
                lines[name].append(f"{path} {label}")
        lines["train800val200"] = lines["train800"] + lines["val200"]
        for name, rows in lines.items():
            (root / task / f"{name}.txt").write_text("\n".join(rows) + "\n")
