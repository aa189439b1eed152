"""Small sets of pictures with boxes: one or two bright rectangles of two classes on a dark, noisy ground."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pictures import save

CLASSES = ("green", "blue")
HEIGHT, WIDTH = 48, 64
# One object: class, left, top, right, bottom.
Rectangle = tuple[int, int, int, int, int]


def scene(seed: int) -> tuple[np.ndarray, list[Rectangle]]:
    """Make a picture (48, 64, 3) and its rectangles, which do not overlap."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 60, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    rectangles: list[Rectangle] = []
    for half in range(1 + seed % 2):
        left = half * 34 + int(rng.integers(1, 8))
        top = int(rng.integers(1, 16))
        width, height = int(rng.integers(14, 22)), int(rng.integers(14, 30))
        number = int(rng.integers(2))
        pixels[top : top + height, left : left + width, 1 + number] += 180
        rectangles.append((number, left, top, left + width, top + height))
    return pixels, rectangles


def scenes(train: int, val: int) -> dict[str, list[int]]:
    """Return the seeds of the pictures of two splits."""
    return {"train": list(range(train)), "val": list(range(100, 100 + val))}


def voc_boxes(root: Path, *, train: int = 6, val: int = 2) -> Path:
    """Write VOC's XML with lists."""
    for split, seeds in scenes(train, val).items():
        for seed in seeds:
            pixels, rectangles = scene(seed)
            save(root / "JPEGImages" / f"{seed:03d}.png", pixels)
            write_xml(root / "Annotations" / f"{seed:03d}.xml", rectangles)
        lists = root / "ImageSets" / "Main"
        lists.mkdir(parents=True, exist_ok=True)
        (lists / f"{split}.txt").write_text("".join(f"{seed:03d}\n" for seed in seeds))
    return root


def write_xml(file: Path, rectangles: list[Rectangle], *, size: tuple[int, int] = (HEIGHT, WIDTH)) -> None:
    """Write the objects of a picture as VOC does: counted from 1, the last pixel included."""
    file.parent.mkdir(parents=True, exist_ok=True)
    objects = "".join(
        f"<object><name>{CLASSES[number]}</name><difficult>0</difficult><bndbox><xmin>{left + 1}</xmin>"
        f"<ymin>{top + 1}</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for number, left, top, right, bottom in rectangles
    )
    file.write_text(
        f"<annotation><size><width>{size[1]}</width><height>{size[0]}</height></size>{objects}</annotation>"
    )


def coco_boxes(root: Path, *, train: int = 6, val: int = 2) -> Path:
    """Write COCO's layout with boxes."""

    def facts(rectangle: Rectangle) -> dict[str, object]:
        _, left, top, right, bottom = rectangle
        return {"area": (right - left) * (bottom - top)}

    return write_coco(root, scene, facts, train=train, val=val)


def write_coco(
    root: Path,
    scene: Callable[[int], tuple[np.ndarray, list[Rectangle]]],
    facts: Callable[[Rectangle], dict[str, object]],
    *,
    train: int,
    val: int,
) -> Path:
    """Write COCO's layout, with gaps in the ids of categories; `facts` are an object's besides its box."""
    categories = [{"id": 7, "name": "blue"}, {"id": 3, "name": "green"}]
    for split, seeds in scenes(train, val).items():
        images, annotations = list[dict[str, object]](), list[dict[str, object]]()
        for seed in seeds:
            pixels, rectangles = scene(seed)
            save(root / f"{split}2017" / f"{seed:03d}.png", pixels)
            images.append({"id": seed + 1, "file_name": f"{seed:03d}.png", "height": HEIGHT, "width": WIDTH})
            annotations += [
                {
                    "id": 10 * seed + place, "image_id": seed + 1, "category_id": (3, 7)[number],
                    "bbox": [left, top, right - left, bottom - top], "iscrowd": 0,
                    **facts((number, left, top, right, bottom)),
                }
                for place, (number, left, top, right, bottom) in enumerate(rectangles)
            ]  # fmt: skip
        file = root / "annotations" / f"instances_{split}2017.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return root


def yolo_boxes(root: Path, *, train: int = 6, val: int = 2) -> Path:
    """Write YOLO's text files."""
    for split, seeds in scenes(train, val).items():
        for seed in seeds:
            pixels, rectangles = scene(seed)
            save(root / split / "images" / f"{seed:03d}.png", pixels)
            file = root / split / "labels" / f"{seed:03d}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(
                "".join(
                    f"{number} {(left + right) / 2 / WIDTH} {(top + bottom) / 2 / HEIGHT} {(right - left) / WIDTH} "
                    f"{(bottom - top) / HEIGHT}\n"
                    for number, left, top, right, bottom in rectangles
                )
            )
    (root / "data.yaml").write_text("train: ../elsewhere\nnc: 2\nnames: [green, blue]\n")
    return root
