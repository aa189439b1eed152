"""Folders laid out as ObjectNet: all four mapping files, and as many pictures with red borders as a test needs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vitrine.data.decoding.image_file import Pixels

RED = (255, 0, 0)
# In ImageNet's standard order: each class has two synonyms, as most of the real ones.
NAMES = tuple(f"thing {place}, other word for {place}" for place in range(1000))
OBJECTS = tuple(f"Object {number:03d}" for number in range(313))
# By object; the others up to 113 have one class each.
SEVERAL = {OBJECTS[0]: (5, 7, 9), OBJECTS[1]: (20, 30)}


def folder_of(name: str) -> str:
    """The folder of an object's pictures."""
    return name.lower().replace(" ", "_")


def overlap(several: Mapping[str, Sequence[int]] = SEVERAL) -> dict[str, tuple[int, ...]]:
    """ImageNet classes of the first 113 objects, those of `several` as given."""
    used = {place for places in several.values() for place in places}
    free = iter(place for place in range(1000) if place not in used)
    return {name: tuple(several[name]) if name in several else (next(free),) for name in OBJECTS[:113]}


def write_mappings(root: Path, accepted: Mapping[str, Sequence[int]] | None = None) -> None:
    """Write the four files; the lines of the label file are in an order of their own, as in the archive."""
    folder = root / "mappings"
    folder.mkdir(parents=True, exist_ok=True)
    lines = np.random.default_rng(0).permutation(1000)  # place in standard order -> line
    labels = [""] * 1000
    for place, line in enumerate(lines.tolist()):
        labels[line] = NAMES[place]
    words = {
        name: "; ".join(NAMES[place] for place in places) for name, places in (accepted or overlap()).items()
    }
    (folder / "imagenet_to_label_2012_v2").write_text("\n".join(labels) + "\n")
    for name, content in (
        ("folder_to_objectnet_label.json", {folder_of(one): one for one in OBJECTS}),
        ("objectnet_to_imagenet_1k.json", words),
        ("pytorch_to_imagenet_2012_id.json", {str(place): int(line) for place, line in enumerate(lines)}),
    ):
        (folder / name).write_text(json.dumps(content))


def with_border(inner: Pixels, colour: tuple[int, int, int] = RED) -> Pixels:
    """Pixels (H, W, 3) inside a border of 2 pixels."""
    height, width, _ = inner.shape
    framed = np.full((height + 4, width + 4, 3), colour, dtype=np.uint8)
    framed[2:-2, 2:-2] = inner
    return framed


def write_pictures(root: Path, name: str, pictures: Sequence[Pixels]) -> None:
    """Write the pictures of an object, each with its border."""
    folder = root / "images" / folder_of(name)
    folder.mkdir(parents=True, exist_ok=True)
    for number, inner in enumerate(pictures):
        Image.fromarray(with_border(inner)).save(folder / f"{number}.png")


def noise(count: int, *, seed: int) -> list[Pixels]:
    """Pictures of 20 x 24 pixels that differ much."""
    rng = np.random.default_rng(seed)
    return [
        np.clip(rng.integers(0, 256, 3) + rng.integers(-60, 60, (20, 24, 3)), 0, 255).astype(np.uint8)
        for _ in range(count)
    ]
