"""Small sets of pictures with masks of objects: the rectangles of `box_scenes`, each without its upper right quarter.

So a mask is not its box, and three formats can say the same.
"""

from pathlib import Path

import numpy as np
from box_scenes import CLASSES, HEIGHT, WIDTH, Rectangle, scenes, write_coco
from box_scenes import scene as box_scene
from pictures import save
from PIL import Image

# The values of the classes in VOC's masks: a bird and a boat.
VOC_VALUES = (3, 4)
VOC_NAMES = ("bird", "boat")


def corners(rectangle: Rectangle) -> list[int]:
    """Return the polygon of an object: x, y, x, y..."""
    _, left, top, right, bottom = rectangle
    x, y = (left + right) // 2, (top + bottom) // 2
    return [left, top, x, top, x, y, right, y, right, bottom, left, bottom]


def mask_of(rectangle: Rectangle) -> np.ndarray:
    """Return the mask of an object (48, 64)."""
    _, left, top, right, bottom = rectangle
    mask = np.zeros((HEIGHT, WIDTH), dtype=bool)
    mask[top:bottom, left:right] = True
    mask[top : (top + bottom) // 2, (left + right) // 2 : right] = False
    return mask


def scene(seed: int) -> tuple[np.ndarray, list[Rectangle]]:
    """Make a picture (48, 64, 3) and the rectangles around its objects."""
    pixels, rectangles = box_scene(seed)
    rng = np.random.default_rng(seed)
    ground = rng.integers(0, 60, pixels.shape, dtype=np.uint8)
    lit = np.any([mask_of(one) for one in rectangles], axis=0)
    return np.where(lit[..., None], pixels, ground), rectangles


def coco_outlines(root: Path, *, train: int = 6, val: int = 2) -> Path:
    """Write COCO's layout with polygons."""

    def facts(rectangle: Rectangle) -> dict[str, object]:
        return {"segmentation": [corners(rectangle)], "area": float(mask_of(rectangle).sum())}

    return write_coco(root, scene, facts, train=train, val=val)


def yolo_outlines(root: Path, *, train: int = 6, val: int = 2) -> Path:
    """Write YOLO's polygons."""
    for split, seeds in scenes(train, val).items():
        for seed in seeds:
            pixels, rectangles = scene(seed)
            save(root / split / "images" / f"{seed:03d}.png", pixels)
            file = root / split / "labels" / f"{seed:03d}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{one[0]} {shares(one)}\n" for one in rectangles))
    (root / "data.yaml").write_text(f"nc: 2\nnames: [{', '.join(CLASSES)}]\n")
    return root


def shares(rectangle: Rectangle) -> str:
    """Return the polygon of an object as shares of the picture."""
    return " ".join(
        f"{value / side:.8f}" for value, side in zip(corners(rectangle), (WIDTH, HEIGHT) * 6, strict=True)
    )


def voc_objects(root: Path, *, train: int = 6, val: int = 2, border: int = 0) -> Path:
    """Write VOC's PNGs of objects and classes, with a border of some pixels around each object."""
    for split, seeds in scenes(train, val).items():
        for seed in seeds:
            pixels, rectangles = scene(seed)
            save(root / "JPEGImages" / f"{seed:03d}.jpg", pixels)
            objects, classes = (np.zeros((HEIGHT, WIDTH), dtype=np.uint8) for _ in range(2))
            for _, left, top, right, bottom in rectangles:
                if border:
                    rows = slice(max(top - border, 0), bottom + border)
                    columns = slice(max(left - border, 0), right + border)
                    objects[rows, columns] = classes[rows, columns] = 255
            for place, one in enumerate(rectangles):
                objects[mask_of(one)], classes[mask_of(one)] = place + 1, VOC_VALUES[one[0]]
            for folder, values in (("SegmentationObject", objects), ("SegmentationClass", classes)):
                file = root / folder / f"{seed:03d}.png"
                file.parent.mkdir(exist_ok=True)
                image = Image.frombytes("P", (WIDTH, HEIGHT), values.tobytes())
                image.putpalette([value % 256 for value in range(768)])
                image.save(file)
        lists = root / "ImageSets" / "Segmentation"
        lists.mkdir(parents=True, exist_ok=True)
        (lists / f"{split}.txt").write_text("".join(f"{seed:03d}\n" for seed in seeds))
    return root
